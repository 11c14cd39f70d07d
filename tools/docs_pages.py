"""What MkDocs asks while it builds the site: pages from beside docs/, and links that lead there.

README.md is the site's first page, CHANGELOG.md one of its last. Links to other files of the
repository, which are not on the site, lead to where it is published. Links to elsewhere are looked
at for their form only: nobody asks the network. A page that would fetch something is an error.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/diskreplay/diskreplay"
FROM_BESIDE = {"index.md": "README.md", "changelog.md": "CHANGELOG.md"}  # page: file
_LINK = re.compile(r"(\]\()([^()\s#]+)(#[^()\s]*)?(?=\))")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_ABROAD = re.compile(r"https://[\w-]+(\.[\w-]+)+(/[^\s\"<>]*)?")
_FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^>]*>"
    r"|<link\b(?=[^>]*rel=[\"']?(?:stylesheet|preload|preconnect|icon))[^>]*href=[\"']?(?:https?:)?//[^>]*>"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Let a page that the navigation does not name yet stand at its end; refuse one named twice."""
    docs, nav = Path(config.docs_dir), config.nav or []
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    named = list(_named(nav))
    if twice := sorted({page for page in named if named.count(page) > 1}):
        raise PluginError(f".mkdocs.yml: nav has more than once: {', '.join(twice)}")
    if rest := sorted(pages - set(named)):
        config.nav = [*nav, {"More": rest}]
    return config


def _named(entry: Any) -> Iterator[str]:
    """The pages that a part of the navigation has."""
    if isinstance(entry, str):
        yield entry
        return
    for inner in entry.values() if isinstance(entry, dict) else entry:
        yield from _named(inner)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from beside docs/."""
    for page, source in FROM_BESIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_more: Any) -> str:
    """Let each link lead to a page of the site, or to the published repository."""
    path = page.file.src_uri
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):  # code is code
        parts += [_linked(markdown[end : fence.start()], path), fence.group()]
        end = fence.end()
    return "".join([*parts, _linked(markdown[end:], path)])


def on_post_page(output: str, *, page: Page, **_more: Any) -> str:
    """Refuse a page that has scripts, styles or pictures from elsewhere."""
    if found := _FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri}: fetched from elsewhere: {found[0]}")
    return output


def _linked(text: str, page: str) -> str:
    """A part of the page with its links changed."""
    of = FROM_BESIDE.get(page, f"docs/{page}")

    def lead(match: re.Match[str]) -> str:
        opening, target, anchor = match[1], match[2], match[3] or ""
        if re.match(r"[a-z]+:", target):
            if not _ABROAD.fullmatch(target):
                raise PluginError(f"{of}: no address of the form https://host/path: {target}")
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(of), target))
        if not (ROOT / target).exists():
            raise PluginError(f"{of}: a link to {match[2]}, and there is no {target}")
        for shown, source in FROM_BESIDE.items():
            target = f"docs/{shown}" if target == source else target
        if (ROOT / target).is_dir() or not target.startswith("docs/"):
            kind = "tree" if (ROOT / target).is_dir() else "blob"
            return f"{opening}{REPOSITORY}/{kind}/main/{target}{anchor}"
        return opening + posixpath.relpath(target, posixpath.dirname(f"docs/{page}")) + anchor

    return _LINK.sub(lead, text)
