"""One word for one thing: the words that were given up do not come back, as names or as files."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "diskreplay"

# Old word to new: whole names of modules, classes, functions, attributes, arguments and variables.
# `docs/contributing.md` says what the new ones mean.
GIVEN_UP = {
    "Rows": "IndexedStore",
    "Ring": "SlotBuffer",
    "Draft": "DrawnBatch",
    "Gathering": "BatchReader",
    "gathering": "batch_reader",
    "Fitting": "RowValidator",
    "fitting": "validation",
    "Stream": "ReplayableRng",
    "Arrivals": "Importer",
    "arrivals": "importer",
    "blueprint": "options_of",
    "surroundings": "store_activity",
    "wording": "humanize",
    "OnDisk": "Facade",
    "settle": "draw_pending, wait_until_drawn, hand_over or apply_pending; sweep, sync_sealed",
    "Keeping": "Maintenance",
    "keeping": "maintenance",
    "keeper": "maintenance, or the maintenance thread",
    "Survey": "Catalog, or Snapshot",
    "survey": "catalog, or snapshot",
    "Gate": "RWLock",
    "gate": "rwlock",
    "Visit": "ReadGuard",
    "visit": "guard",
    "leftovers": "tempfiles",
    "expect": "prefetch_line",
    "process": "signals, or fork",
    "strays": "pending_deletes",
    "recorded": "durable_count, or added",
}
# Of these files no module may have the name.
FILES_GIVEN_UP = {
    "rows", "values", "fitting", "gathering", "ring", "stream", "arrivals", "blueprint",
    "description", "surroundings", "wording", "helping", "written", "on_disk", "keeping", "finding",
    "survey", "gate", "process", "caches", "leftovers",
}  # fmt: skip

MODULES = sorted(PACKAGE.rglob("*.py"))


def names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            if not ast.unparse(node).startswith("torch."):  # its own names are its own
                yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg


def test_names_are_found():
    tree = ast.parse("class Rows:\n    def settle(self, ring): self.x = y; torch.cuda.Stream()")
    assert "Stream" not in names(tree)
    assert {"Rows", "settle", "ring", "x", "y"} <= set(names(tree))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_words_that_were_given_up_are_not_used(path):
    assert path.stem not in FILES_GIVEN_UP
    used = {name.strip("_") for name in names(ast.parse(path.read_text()))}
    place = path.relative_to(PACKAGE).as_posix()
    for word in used & GIVEN_UP.keys():
        pytest.fail(f"{place}: {word}: say {GIVEN_UP[word]}")


def test_the_glossary_has_the_new_words():
    text = (ROOT / "docs" / "contributing.md").read_text()
    glossary = text[text.index("## Glossary") :]
    for word in ("IndexedStore", "SlotBuffer", "DrawnBatch", "BatchReader", "RowValidator",
                 "ReplayableRng", "Importer", "Facade", "Session", "StoreKind", "RWLock",
                 "ReadGuard", "Catalog", "SegmentEntry", "Snapshot"):  # fmt: skip
        assert f"`{word}`" in glossary, word
