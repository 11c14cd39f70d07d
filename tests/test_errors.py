"""Each error says what it means, why it comes and what to do; docs/troubleshooting.md shows it."""

import inspect
import re

import pytest

import diskreplay
from diskreplay import errors

TREE = [
    kind for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, errors.DiskReplayError)
]  # fmt: skip


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_an_error_has_a_cause_and_a_remedy(kind):
    summary, *parts = inspect.cleandoc(kind.__doc__).split("\n\n")
    assert summary.endswith(".")
    assert [part.partition(": ")[0] for part in parts] == ["Cause", "Remedy"]
    assert all(len(part.partition(": ")[2]) > 8 for part in parts)


def test_the_tree_that_is_drawn_is_the_one_there_is():
    drawn = re.findall(r"^ *[│├└─ ]*(\w+(?:Error|Timeout))\b", errors.__doc__, re.M)
    assert sorted(drawn) == sorted(kind.__name__ for kind in TREE)
    depth = {}
    for line in errors.__doc__.splitlines():
        if match := re.match(r"^( *[│├└─ ]*)(\w+(?:Error|Timeout))\b", line):
            depth[match[2]] = (len(match[1]) - 4) // 4
    for kind in TREE:
        ours = [base for base in kind.__mro__ if base in TREE]
        assert depth[kind.__name__] == len(ours) - 1, kind


def test_every_error_is_exported():
    assert {kind.__name__ for kind in TREE} == {
        name for name in diskreplay.__all__ if name.endswith(("Error", "Timeout"))
    }
