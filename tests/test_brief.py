"""A message about a mistake does not fail itself."""

import pytest

from diskreplay.brief import brief


class WithoutText:
    def __repr__(self):
        raise RuntimeError("half made")


def nested():
    """More lists in each other than Python writes."""
    made = []
    for _ in range(100_000):
        made = [made]
    return made


def test_what_python_writes():
    assert brief("a") == "'a'"
    assert brief([1, 2]) == "[1, 2]"
    assert brief("a" * 100) == "'" + "a" * 59
    assert brief("abc", 2) == "'a"


@pytest.mark.parametrize(
    ("make", "kind"), [(lambda: 10**5000, "int"), (lambda: [10**5000], "list"),
                       (WithoutText, "WithoutText"), (nested, "list")],
)  # fmt: skip
def test_what_python_cannot_write(make, kind):
    assert brief(make()) == f"a value of type {kind} that cannot be shown"
