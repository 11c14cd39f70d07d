"""What an object says is believed only if a push can have written it."""

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskreplay.errors import CorruptCheckpointError, DiskReplayError
from diskreplay.remote import catalog, document


@pytest.fixture
def pushed(run, remote):
    run.add(300)
    remote().push(run.save(1))
    one = remote()
    return one, one.list()[0].document


def test_it_is_what_it_was(pushed):
    remote, key = pushed
    data, _tag = remote._bucket.get(key, 1 << 30)
    found = document.parse(data, "here")
    assert found.encode() == data
    assert found.contents().files.keys() == found.parts.keys()
    data, _tag = remote._bucket.get(catalog.KEY, 1 << 30)
    assert catalog.parse(data, "here").encode() == data


def _places(node, path=()):
    yield path
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _places(value, (*path, key))
    elif isinstance(node, list):
        for key, value in enumerate(node):
            yield from _places(value, (*path, key))


def _with(node, path, value):
    if not path:
        return value
    copied = dict(node) if isinstance(node, dict) else list(node)
    copied[path[0]] = _with(node[path[0]], path[1:], value)
    return copied


HOSTILE = [
    None, True, -1, 2**63, 1.5, "", "../../etc/passwd", "a\0b", [], {}, [[]], "9" * 400,
    float("nan"),
]  # fmt: skip


@pytest.mark.costly(1)
@pytest.mark.parametrize("which", ["document", "catalog"])
def test_hostile_values(pushed, which, tmp_path):
    """Every value in turn is another one: it is refused by name, or does no harm."""
    remote, key = pushed
    key = key if which == "document" else catalog.KEY
    data, _tag = remote._bucket.get(key, 1 << 30)
    whole = json.loads(data)
    refused = 0
    for path in list(_places(whole)):
        for value in HOSTILE if len(path) < 3 else HOSTILE[:7]:
            remote._bucket.put(key, json.dumps(_with(whole, path, value)).encode())
            remote._reader._documents.clear()
            try:
                pulled = remote.pull(1, tmp_path / "pulled")
                assert pulled.is_relative_to(tmp_path / "pulled")
            except DiskReplayError:
                refused += 1
                assert not any((tmp_path / "pulled").glob("*"))
            else:
                for file in pulled.iterdir():
                    assert file.exists()
                shutil.rmtree(tmp_path / "pulled")
    assert refused > 100
    assert not (tmp_path.parent / "etc").exists()


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_rubbish(data):
    for parse in (document.parse, catalog.parse):
        with pytest.raises(CorruptCheckpointError, match="here: "):
            parse(data, "here")


@pytest.mark.parametrize("where", ["key", "listing"])
def test_half_a_character(pushed, tmp_path, where):
    """JSON may have one, and no file can: neither a name nor the manifest itself."""
    remote, key = pushed
    data, _tag = remote._bucket.get(key, 1 << 30)
    found = json.loads(data)
    listing = json.loads(found["manifest"])
    if where == "key":
        listing["files"]["a\ud800"] = listing["files"]["zarr.json"]
        found["files"]["a\ud800"] = found["files"]["zarr.json"]
        found["manifest"] = json.dumps(listing)
    else:
        found["manifest"] = json.dumps(listing | {"more": "\ud800"}, ensure_ascii=False)
    remote._bucket.put(key, json.dumps(found).encode())
    with pytest.raises(CorruptCheckpointError, match="damaged"):
        remote.pull(1, tmp_path / "pulled")


def test_a_newer_version(pushed):
    remote, key = pushed
    data, _tag = remote._bucket.get(key, 1 << 30)
    newer = json.dumps(json.loads(data) | {"format": 2}).encode()
    with pytest.raises(CorruptCheckpointError, match="upgrade"):
        document.parse(newer, "here")
