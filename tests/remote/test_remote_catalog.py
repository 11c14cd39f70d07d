"""Which checkpoints are published, as an object says it."""

import dataclasses
import datetime
import json

import pytest

from diskreplay.errors import CorruptCheckpointError
from diskreplay.remote import catalog
from diskreplay.remote.catalog import Catalog, RemoteCheckpoint

UTC = datetime.UTC
WHEN = datetime.datetime(2024, 2, 29, 23, 59, 58, 123456, tzinfo=UTC)


def one(suffix, **changes):
    found = RemoteCheckpoint(
        "replay", str(suffix), "r", 2, WHEN, WHEN, 7, 99, "checkpoints/a/b.json"
    )
    return found._replace(**changes)


def made(*suffixes):
    return Catalog("r", 3, {s: one(s) for s in map(str, suffixes)}, frozenset(), "n")


def test_what_is_encoded_comes_back():
    found = Catalog(
        "run", 4, {"1": one(1), "best": one("best", saved_at=None, rows=None)},
        frozenset({"objects/" + "0" * 64}), "nonce",
    )  # fmt: skip
    try:
        again = catalog.parse(found.encode(), "here")
    except CorruptCheckpointError:  # an object is called otherwise
        found = found.replaced(doomed=frozenset())
        again = catalog.parse(found.encode(), "here")
    assert again == found
    assert catalog.parse(made().encode(), "here").checkpoints == {}


def test_names_that_may_be_forgotten():
    """But for numbers that are as large as names have them."""
    key = "packs/" + "0" * 64
    found = dataclasses.replace(made(), doomed=frozenset({key, f"{key}.4"}), least=2)
    assert not found.may_use(key)
    assert not found.may_use(f"{key}.4")
    assert found.may_use(f"{key}.3")
    after = catalog.parse(found.without_doomed().encode(), "here")
    assert (after.doomed, after.least) == (frozenset(), 5)
    assert after.nonce != found.nonce
    assert [after.may_use(f"{key}.{number}") for number in (3, 4, 5)] == [False, False, True]
    last = dataclasses.replace(made(), doomed=frozenset({f"{key}.999999"}), least=2)
    after = catalog.parse(last.without_doomed().encode(), "here")
    assert (after.doomed, after.least) == (last.doomed, 2)


def test_numbers_come_behind_texts_and_in_their_order():
    listed = catalog.in_order(one(s) for s in ("10", "9", "best", "100", "a"))
    assert [each.suffix for each in listed] == ["a", "best", "9", "10", "100"]
    assert [each.number for each in listed] == [None, None, 9, 10, 100]
    assert made(9, 10, "best").highest().suffix == "10"
    assert made("best").highest() is None
    assert made().highest() is None
    assert Catalog.empty().highest() is None
    assert (Catalog.empty().run, Catalog.empty().epoch) == (None, 0)


def test_each_one_that_is_written_has_a_nonce_of_its_own():
    before = made(1)
    nonces = {before.replaced(epoch=9).nonce for _ in range(20)}
    assert len(nonces) == 20
    assert before.replaced(epoch=9).epoch == 9
    assert before.epoch == 3


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, "../x"), (1, ""), (2, None), (3, -1), (4, "yesterday"), (4, "2024-02-29T00:00:00"),
     (4, "0001-01-01T00:00:00+14:00"), (5, "0001-01-01T00:00:00+14:00"),
     (5, "9999-12-31T23:59:59-12:00"), (5, None), (5, 3), (6, -1), (6, 1.5), (7, None),
     (8, "objects/x"), (8, "checkpoints/../x"), (8, "checkpoints//x"),
     (8, "checkpoints/" + "x" * 400)],
)  # fmt: skip
def test_a_checkpoint_that_cannot_be_is_refused(at, value):
    document = json.loads(made(1).encode())
    document["checkpoints"][0][at] = value
    with pytest.raises(CorruptCheckpointError, match="here: damaged"):
        catalog.parse(json.dumps(document).encode(), "here")


@pytest.mark.parametrize(
    "change",
    [{"checkpoints": None}, {"checkpoints": [[1, 2]]}, {"checkpoints": [3]}, {"doomed": {}},
     {"doomed": ["../x"]}, {"run": 3}, {"epoch": -1}, {"nonce": None}, {"least": -1},
     {"least": 1 << 40}],
)  # fmt: skip
def test_a_catalog_that_cannot_be_is_refused(change):
    document = json.loads(made(1).encode()) | change
    with pytest.raises(CorruptCheckpointError, match="here: damaged"):
        catalog.parse(json.dumps(document).encode(), "here")
