"""Which stores are read, and for how long."""

import pytest

import diskreplay
from diskreplay.errors import InvalidInputError
from diskreplay.view.shown_stores import key_of
from tests.pictures.making import record


def test_nothing_stays_open_of_what_nobody_asks_for(tmp_path, readers, monkeypatch):
    from diskreplay.view import readers as module

    record(tmp_path / "store", (5,))
    reader = readers.of(key_of(tmp_path / "store"))
    with reader.reading() as buffer:
        monkeypatch.setattr(module, "_IDLE", -1.0)
        readers.sweep()
        assert buffer.take("reward", [0]).shape == (1,)  # who reads is not disturbed
    with pytest.raises(diskreplay.errors.ClosedError):
        buffer.take("reward", [0])
    assert readers.of(key_of(tmp_path / "store")) is not reader


def test_only_so_many_are_open(tmp_path, readers, monkeypatch):
    from diskreplay.view import readers as module

    monkeypatch.setattr(module, "_MOST", 2)
    made = []
    for number in range(4):
        record(tmp_path / f"store{number}", (3,))
        readers.stores._looked = float("-inf")  # what there is is looked for again at once
        made.append(readers.of(key_of(tmp_path / f"store{number}")))
        made[-1].pulse()
    assert len(readers._readers) == 2
    assert [reader._handle is None for reader in made] == [True, True, False, False]


def test_an_unknown_store(readers):
    with pytest.raises(InvalidInputError, match="none with this key"):
        readers.of("nothing")
