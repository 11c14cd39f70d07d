"""The .npz file against what was recorded, and back."""

import json
import re
import zipfile

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from hypothesis import given

import diskreplay
from diskreplay.convert.npz import from_npz, to_npz
from diskreplay.errors import FormatError, InvalidInputError
from tests.convert.recorded import FEW, ON, STREAM, Recorded, few_examples

modest = few_examples(10)


@modest
@given(stream=STREAM)
def test_there_and_back(tmp_path_factory, stream):
    path = tmp_path_factory.mktemp("s")
    recorded = Recorded(path / "store", **stream)
    with recorded.buffer as buffer:
        to_npz(buffer, path / "all.npz")
        with np.load(path / "all.npz", allow_pickle=False) as found:
            rows = [row for env in range(recorded.num_envs) for row in recorded.kept(env)]
            for field, (shape, dtype) in buffer.fields.items():
                array = found[f"{field}_" if field == "env" else field]
                expected = np.array([row[field] for row in rows], dtype).reshape(-1, *shape)
                np.testing.assert_array_equal(array, expected)
                assert array.dtype == dtype
            assert [*zip(found["env"], found["row"], strict=True)] == [
                (env, t)
                for env in range(recorded.num_envs)
                for t in range(recorded.first(env), len(recorded.rows[env]))
            ]
            assert ("priority" in found) == stream["prioritized"]
        with from_npz(path / "all.npz", path / "back") as back:
            recorded.check_store(back)
            if stream["prioritized"]:
                recorded.check_priorities(back, [recorded.first(e) for e in range(back.num_envs)])
            assert (back.gamma, back.batch_size, back.capacity) == (0.5, 7, buffer.capacity)


def test_rows_that_leave_while_it_is_written(tmp_path, monkeypatch):
    """It is begun anew, with rows that stay."""
    import diskreplay.convert.npz as module

    monkeypatch.setattr(module, "_MARGINS", (0, 0.4))
    recorded = Recorded(
        tmp_path / "s", **{**FEW, "num_envs": 1, "rows_per_env": 9, "ticks": [ON] * 9}
    )
    written = []

    def write_on(amount, total):
        if not written:
            written.append(recorded.tick(ON))

    to_npz(recorded.buffer, tmp_path / "all.npz", progress=write_on)
    with np.load(tmp_path / "all.npz") as found:
        assert found["row"].tolist() == list(range(5, 10))
        np.testing.assert_array_equal(
            found["reward"], [row["reward"] for row in recorded.rows[0][5:]]
        )
    recorded.buffer.close()


def test_of_a_small_store_whose_rows_leave_most_are_written(tmp_path):
    """It was an empty file: a thousand rows were left to the writer."""
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=Discrete(9), action_space=Discrete(2), capacity=200
    ) as buffer:
        for row in range(300):
            buffer.add(0, 0, float(row), False, False)
        left = []

        def write_on(amount, total):
            if not left:
                left.append(buffer.add(0, 0, 300.0, False, False))

        to_npz(buffer, tmp_path / "all.npz", progress=write_on)
        first, stop = buffer.bounds[0]
    with np.load(tmp_path / "all.npz") as found:
        assert found["row"].tolist() == list(range(first + (stop - first) // 64 + 1, stop))


def test_a_live_store_and_a_checkpoint(tmp_path, recorded):
    checkpoint = recorded.buffer.save(tmp_path / "checkpoints", 1)
    for path in (tmp_path / "store", checkpoint):
        with diskreplay.open(path) as reader:
            to_npz(reader, tmp_path / "all.npz", overwrite=True)
        with from_npz(tmp_path / "all.npz", tmp_path / "back", overwrite=True) as back:
            recorded.check_store(back)


def header_says(path, arrays, names, shape):
    """Write arrays, some of them with another number of rows in the header than there are."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                header = np.lib.format.header_data_from_array_1_0(array)
                if name in names:
                    header["shape"] = (*shape, *array.shape[1:])
                np.lib.format.write_array_header_1_0(member, header)
                member.write(array.tobytes())


def test_what_is_refused(tmp_path, recorded):
    out = tmp_path / "all.npz"
    to_npz(recorded.buffer, out)
    with pytest.raises(InvalidInputError, match="already"):
        to_npz(recorded.buffer, out)
    with np.load(out) as found:
        arrays = dict(found)
    document = json.loads(str(arrays["diskreplay"]))

    def refused(match, **changed):
        if changed:
            kept = {name: array for name, array in (arrays | changed).items() if array is not None}
            np.savez(out, **kept)
        with pytest.raises(FormatError, match=match):
            from_npz(out, tmp_path / "back")
        assert not (tmp_path / "back").exists()

    refused("missing", reward=None)
    refused("float64", reward=arrays["reward"].astype(float))
    refused("object", reward=arrays["reward"].astype(object))
    for name in ("env", "row", "reward", "begins"):
        short, rows = arrays[name][:-1], len(arrays["env"])
        found, wanted = (rows, rows - 1) if name == "env" else (rows - 1, rows)
        refused(f"{found} rows found, {wanted} expected", **{name: short})
    refused("neither 0 nor 1", terminated=(arrays["terminated"].view("u1") + 2).view(bool))
    for shape, match in (((-5,), "shape"), ((rows + 1,), "rows found"), ((0,), "rows found")):
        header_says(out, arrays, ["reward"], shape)
        refused(match)
    for shape, match in (((rows + 9,), "ends before"), ((rows - 9,), "goes on behind")):
        header_says(out, arrays, list(arrays.keys() - {"diskreplay"}), shape)
        refused(match)
    to_npz(recorded.buffer, out, overwrite=True)
    refused("to_npz did not write it", diskreplay=None)
    refused("version 2", diskreplay=np.array(json.dumps(document | {"npz_version": 2})))
    whole = out.read_bytes()
    out.write_bytes(whole[: len(whole) // 2])
    refused("no .npz file")
    flags = bytearray(whole)
    for header, at in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        for found_at in re.finditer(header, whole):
            flags[found_at.start() + at] |= 1
    out.write_bytes(flags)
    refused("encrypted")
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("diskreplay.npy", b"nonsense")
    refused("to_npz did not write it")
    out.unlink()
    refused("no such file")


def test_an_error_of_the_callers_own_function_is_passed_on(tmp_path, recorded):
    to_npz(recorded.buffer, tmp_path / "all.npz")

    def stop(amount, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough") as raised:
        from_npz(tmp_path / "all.npz", tmp_path / "back", progress=stop)
    assert type(raised.value) is RuntimeError


def test_extras_named_like_other_arrays(tmp_path):
    names = ["env", "env_", "row", "row__", "diskreplay", "diskreplay_"]
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=Discrete(9), action_space=Discrete(9), capacity=None,
        extras=dict.fromkeys(names, ((), "int8")),
    ) as buffer:  # fmt: skip
        for i in range(5):
            buffer.add(i, i, 1, False, False, **{name: i + k for k, name in enumerate(names)})
        to_npz(buffer, tmp_path / "all.npz")
    with zipfile.ZipFile(tmp_path / "all.npz") as archive:
        assert len(archive.namelist()) == len({*archive.namelist()})
    with from_npz(tmp_path / "all.npz", tmp_path / "back") as back:
        for k, name in enumerate(names):
            assert back.take(name, np.arange(5)).tolist() == [i + k for i in range(5)]


def test_a_damaged_description(tmp_path, recorded):
    out = tmp_path / "all.npz"
    to_npz(recorded.buffer, out)
    with np.load(out) as found:
        arrays = dict(found)
    document = json.loads(str(arrays.pop("diskreplay")))

    def refused(document, **changed):
        np.savez(out, **(arrays | changed), diskreplay=np.array(json.dumps(document)))
        with pytest.raises(FormatError):
            from_npz(out, tmp_path / "back")
        assert not (tmp_path / "back").exists()

    for key in document:
        refused({name: value for name, value in document.items() if name != key})
        refused(document | {key: "nonsense"})
    for key in document["buffer"].keys() & {"kind", "action_space", "compressor"}:
        buffer = {name: value for name, value in document["buffer"].items() if name != key}
        refused(document | {"buffer": buffer})
    refused([document])
    refused(document | {"members": document["members"] | {"reward": "wages"}})
    np.savez(out, **arrays | {"env": arrays["env"] - 1}, diskreplay=np.array(json.dumps(document)))
    with pytest.raises(InvalidInputError, match="env: 0 to 2 expected, found -1"):
        from_npz(out, tmp_path / "back")


def test_a_compression_that_zipfile_does_not_know(tmp_path, recorded):
    out = tmp_path / "all.npz"
    to_npz(recorded.buffer, out)
    whole = bytearray(out.read_bytes())
    at = whole.index(b"PK\x01\x02")  # the first entry of the directory at the end
    whole[at + 10 : at + 12] = (99).to_bytes(2, "little")
    out.write_bytes(whole)
    with pytest.raises(FormatError, match="damaged"):
        from_npz(out, tmp_path / "back")


def test_rows_that_are_missing_are_told_of(tmp_path, recorded):
    out = tmp_path / "all.npz"
    to_npz(recorded.buffer, out)
    with np.load(out) as found:
        arrays = dict(found)
    keep = (arrays["env"] != 1) | (arrays["row"] != 3)  # inside episode 1, which goes on to row 4
    np.savez(out, **{name: a[keep] if a.ndim else a for name, a in arrays.items()})
    with pytest.warns(RuntimeWarning, match=r"all.npz: 1 row\(s\) left out"):
        back = from_npz(out, tmp_path / "back")
    back.close()


def test_nothing_half_written_stays(tmp_path, recorded):
    def stop(amount, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        to_npz(recorded.buffer, tmp_path / "all.npz", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
