"""A signal may come before `__init__` has set anything: to drop the object says nothing then."""

import ast
import importlib
import sys
from pathlib import Path

import pytest

import diskreplay

PACKAGE = Path(diskreplay.__file__).parent


def classes_that_clear_up():
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(
                isinstance(part, ast.FunctionDef) and part.name == "__del__" for part in node.body
            ):
                module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
                yield pytest.param(module, node.name, id=f"{module}.{node.name}")


@pytest.mark.parametrize(("module", "name"), [*classes_that_clear_up()])
def test_what_was_hardly_begun_can_be_dropped(module, name, monkeypatch):
    kind, said = getattr(importlib.import_module(module), name), []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    kind.__new__(kind)
    assert said == []


def test_there_are_some():
    assert len(list(classes_that_clear_up())) >= 5
