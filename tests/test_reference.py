"""The reference has every public name, and each public docstring is complete."""

import ast
import re

import pytest

import diskreplay
from tests.blocks import ROOT

griffe = pytest.importorskip("griffe")

PAGES = [*(ROOT / "docs/reference").glob("*.md"), ROOT / "docs/troubleshooting.md"]
# What a module exports is public; most have no `__all__`, and are the package's own.
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "diskreplay").rglob("*.py")
    if any(
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for node in ast.parse(path.read_text()).body
    )
)
# These export for others of the package what has its place on a page under another module's name.
NAMED_ELSEWHERE = {"diskreplay.opening", "diskreplay.compat.reagent.buffer"}
SECTIONS = {"parameters", "other parameters", "attributes"}


@pytest.fixture(scope="module")
def package():
    return griffe.load("diskreplay", search_paths=[ROOT], docstring_parser="numpy")


def target(item):
    return item.final_target if item.is_alias else item


def found(package, path):
    """The object of this path, wherever it is defined."""
    inner = path.removeprefix("diskreplay").lstrip(".")
    return target(package[inner] if inner else package)


def shown(package):
    """Where that is defined which the pages have a directive for, alone or as part of a module."""
    for page in PAGES:
        for path in re.findall(r"^::: (\S+)$", page.read_text(), re.M):
            item = found(package, path)
            yield item.path
            if item.is_module and path != "diskreplay":
                names = item.exports or [name for name, m in item.members.items() if m.is_public]
                yield from (found(package, f"{path}.{name}").path for name in names)


def public(package):
    for module in MODULES:
        if module not in NAMED_ELSEWHERE:
            for name in found(package, module).exports:
                yield f"{module}.{name}", found(package, f"{module}.{name}")


def test_every_public_name_is_on_a_page(package):
    on_pages = set(shown(package))
    assert len(on_pages) > 100
    lacking = [name for name, item in public(package) if item.path not in on_pages]
    assert not lacking
    errors = {item.path for item in found(package, "diskreplay.errors").classes.values()}
    assert {f"diskreplay.errors.{name}" for name in dir(diskreplay) if name.endswith("Error")} <= (
        errors & on_pages
    )


def named(item):
    """The parameters and attributes that a docstring has sections for."""
    sections = item.docstring.parse("numpy") if item.docstring else []
    entries = (s.value for s in sections if s.kind.value in SECTIONS)
    found = {name.strip(" *") for its in entries for entry in its for name in entry.name.split(",")}
    if item.is_class:  # a dataclass
        found |= {name for name, member in item.attributes.items() if member.docstring}
    return found


def calls(package):
    """``(name, function, who documents it)`` of what a user may call."""
    for path, item in public(package):
        if item.is_function:
            yield path, item, [item]
        elif item.is_class:
            for name, member in item.all_members.items():
                member = target(member)
                if name == "__init__" and member.is_function:
                    yield path, member, [item, member, member.parent]
                elif member.is_function and not name.startswith("_"):
                    yield f"{path}.{name}", member, [member]


def test_every_public_name_says_what_it_is(package):
    lacking = [name for name, item in public(package) if not item.docstring]
    lacking += [name for name, _call, who in calls(package) if not any(i.docstring for i in who)]
    assert not lacking


def test_every_parameter_is_described(package):
    """But those that another package describes: an older API is its original's, and the methods of
    a framework's buffer are the framework's. What is different, pages and docstrings say."""
    lacking = {}
    for name, call, who in calls(package):
        is_method = call.parent.is_class and len(who) == 1
        if name.startswith("diskreplay.compat.") or (is_method and ".integrations." in name):
            continue
        described = set().union(*map(named, who))
        asked = {p.name.strip("*") for p in call.parameters} - {"self", "cls", "args"}
        if asked - described:
            lacking[name] = sorted(asked - described)
    assert lacking == {}
