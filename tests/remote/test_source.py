"""A checkpoint as a push reads it: how long files are, and which are damaged."""

import json
import os

import pytest

from diskreplay.errors import CorruptCheckpointError, DiskReplayError
from diskreplay.remote.source import Source, is_sound
from diskreplay.store import manifest, plain_file
from diskreplay.store.segment import Seal


@pytest.fixture
def path(run):
    run.add(600)
    return run.save(1)


def test_every_file_is_read_as_it_is_on_the_disk(path):
    source = Source(path)
    assert source.listing == (path / manifest.NAME).read_text()
    assert source.contents == manifest.read(path)
    assert source.rows == 600
    for key, seal in source.contents.files.items():
        data = (path / key).read_bytes()
        assert source.read(key).tobytes() == data
        assert source.length(key) == len(data.rstrip(b"\0"))
        assert seal.size == len(data)


@pytest.mark.parametrize("piece", [7, 4096])
def test_zeros_at_the_end_are_not_counted(tmp_path, run, path, monkeypatch, piece):
    monkeypatch.setattr(plain_file, "PIECE", piece)
    source = Source(path)
    for data in (b"", b"\0", b"a", b"a\0\0", b"\0" * 20, b"\0" * 20 + b"b" + b"\0" * 30, b"x" * 50):
        (path / "probe").write_bytes(data)
        assert source.length("probe") == len(data.rstrip(b"\0"))
    with pytest.raises(CorruptCheckpointError, match="not pushed"):
        source.length("nothing")


def test_each_flipped_bit_is_seen(path):
    source = Source(path)
    for key in source.contents.files:
        data = (path / key).read_bytes()
        for at in {0, len(data) // 2, len(data) - 1}:
            changed = bytearray(data)
            changed[at] ^= 4
            (path / key).unlink()
            (path / key).write_bytes(changed)
            if key.startswith("observation/c.") and data[at:].strip(b"\0") == b"":
                continue
            with pytest.raises(CorruptCheckpointError, match="not pushed"):
                source.read(key)
        (path / key).write_bytes(data[:-1])
        with pytest.raises(CorruptCheckpointError):
            source.read(key)
        (path / key).unlink()
        with pytest.raises(CorruptCheckpointError, match="not pushed"):
            source.read(key)
        (path / key).write_bytes(data)
        source.read(key)


@pytest.mark.parametrize("replaced", [True, False])
def test_all_is_of_one_manifest_where_it_is_replaced_or_vanishes_meanwhile(
    path, monkeypatch, replaced
):
    listing, look = path / manifest.NAME, os.stat
    text = listing.read_text()

    def overtaken(at, *args, **named):
        if str(at).endswith("reward/zarr.json"):  # after the manifest was read
            listing.unlink(missing_ok=True)
            if replaced:
                document = json.loads(text) | {"saved_at": "2020-01-01T00:00:00+00:00"}
                listing.write_text(json.dumps(document))
        return look(at, *args, **named)

    monkeypatch.setattr(os, "stat", overtaken)
    source = Source(path)
    monkeypatch.undo()
    assert not replaced or listing.read_text() != text
    assert source.listing == text
    assert source.contents == manifest.parse(json.loads(text))


def test_a_manifest_that_is_no_utf_8_is_refused(path):
    listing = path / manifest.NAME
    listing.write_bytes(listing.read_text().encode("utf-16"))
    with pytest.raises(CorruptCheckpointError, match="not pushed"):
        Source(path)


def test_metadata_that_name_no_fields_are_refused(path):
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"]["diskreplay"]["fields"] = 3
    (path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(DiskReplayError):
        Source(path)


def test_a_file_is_sound_by_its_length_and_checksum(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"123456789")
    assert is_sound(path, Seal(9, 0), 0xE3069283)  # RFC 3720's test of CRC-32C
    assert not is_sound(path, Seal(8, 0), 0xE3069283)
    assert not is_sound(path, Seal(9, 0), 0)
    assert not is_sound(tmp_path / "nothing", Seal(9, 0), 0)
