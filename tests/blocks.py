"""The code blocks of a document, as its readers paste them."""

import re
import shlex
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
)


class Block(NamedTuple):
    """A block of a page; `language` is what stands behind its fence."""

    language: str
    text: str


def blocks(page):
    """All blocks of a page, in order; `page` is its path below the root."""
    text = (ROOT / page).read_text()
    found = re.findall(r"^( *)```([^\n`]*)\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
    return [Block(language, textwrap.dedent(code)) for _, language, code in found]


def new_side(difference):
    """What a block of the language ``diff`` leaves: the lines that stay and those that come. What
    is indented stands in a function, and is taken out of it."""
    lines = [line[1:] for line in difference.splitlines() if not line.startswith("-")]
    parts = "\n".join(line.rstrip() for line in lines).split("\n\n")
    return "\n\n".join(map(textwrap.dedent, parts)) + "\n"


def commands(text):
    """The commands of a block of the language ``bash``, as lists of words."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def paste(block, name, variables):
    """Run a block among these variables; errors name `name`."""
    exec(compile(block, name, "exec"), variables)
