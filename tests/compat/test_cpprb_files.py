"""Files of transitions: to and from the original, and from those who mean harm."""

import io
import os
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.compat.cpprb import PrioritizedReplayBuffer, ReplayBuffer

ENV = {"obs": {"shape": 3}, "act": {"dtype": np.int8}, "done": {"dtype": bool}}


def filled(count, size=10, **options):
    buffer = ReplayBuffer(size, ENV, **options)
    obs = np.arange(3 * count + 3).reshape(-1, 3)
    columns = {"obs": obs[:-1], "act": np.arange(count), "done": np.arange(count) % 3 == 0}
    if "next_of" in options:
        columns["next_obs"] = obs[1:]
    buffer.add(**columns)
    return buffer


def same(found, expected):
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("safe", [True, False])
def test_what_is_saved_is_loaded(tmp_path, safe):
    with filled(7, next_of="obs") as first, ReplayBuffer(10, ENV, next_of="obs") as second:
        first.save_transitions(tmp_path / "rows", safe=safe)
        second.load_transitions(tmp_path / "rows.npz")
        same(second.get_all_transitions(), first.get_all_transitions())
        second.load_transitions(str(tmp_path / "rows.npz"))  # appends
        assert second.get_stored_size() == 10
        assert second.get_all_transitions()["act"].ravel().tolist() == [
            *[3, 4, 5, 6], *[4, 5, 6], *[0, 1, 2],
        ]  # fmt: skip


def test_slot_order_is_kept_and_the_newest_fit():
    file = io.BytesIO()
    with filled(13) as first:
        first.save_transitions(file)
    with np.load(io.BytesIO(file.getvalue()), allow_pickle=True) as saved:
        assert sorted(saved.files) == ["Nstep", "cache", "data", "next_of", "safe", "version"]
        assert saved["safe"] == np.True_
        assert saved["version"] == 1
        assert saved["Nstep"] == np.False_
        data = saved["data"].item()
    assert list(data) == ["obs", "act", "done"]
    assert data["act"].ravel().tolist() == [10, 11, 12, 3, 4, 5, 6, 7, 8, 9]
    with ReplayBuffer(4, ENV) as second:
        second.load_transitions(io.BytesIO(file.getvalue()))
        assert second.get_all_transitions()["act"].ravel().tolist() == [6, 7, 8, 9]


def test_a_prioritized_buffer_gives_loaded_rows_the_largest_priority(tmp_path):
    with filled(4) as first:
        first.save_transitions(tmp_path / "rows.npz")
    with PrioritizedReplayBuffer(10, ENV, alpha=1, eps=0) as second:
        second.add(obs=[1, 2, 3], act=0, done=0, priorities=4.0)
        second.load_transitions(tmp_path / "rows.npz")
        assert (second.sample(50)["weights"] == 1).all()
        assert set(second.sample(500)["indexes"].tolist()) == set(range(5))


def test_only_like_is_loaded_into_like(tmp_path):
    nstep = {"size": 2}
    with filled(4) as single, filled(4, Nstep=nstep) as several:
        assert several.get_stored_size() == 3
        single.save_transitions(tmp_path / "single.npz")
        several.save_transitions(tmp_path / "several.npz")
        with pytest.raises(ValueError, match="n-step"):
            single.load_transitions(tmp_path / "several.npz")
        with pytest.raises(ValueError, match="n-step"):
            several.load_transitions(tmp_path / "single.npz")
        several.load_transitions(tmp_path / "several.npz")
        assert several.get_all_transitions()["act"].ravel().tolist() == [0, 1, 2, 0, 1, 2]
    with ReplayBuffer(4, ENV | {"more": {}}) as other:
        with pytest.raises(KeyError, match="more"):
            other.load_transitions(tmp_path / "single.npz")
        assert other.get_stored_size() == 0
        with pytest.raises(FileNotFoundError):
            other.load_transitions(tmp_path / "nowhere.npz")


def raw_file(**members):
    file = io.BytesIO()
    members = {"safe": True, "version": 1, "Nstep": False, "cache": None, "next_of": None} | members
    np.savez_compressed(file, **members)
    return file


def test_a_file_of_the_other_kind():
    """As the original writes with safe=False: columns as they lie in memory, and a cache."""
    data = {
        "obs": np.float32([[6, 7, 8], [7, 8, 9], [8, 9, 6], [9, 6, 7]]),  # 2 and 3 overwritten
        "act": np.int8([[6], [7], [3], [5]]),
        "done": np.zeros((4, 1), bool),
    }
    cache = {
        1: {"next_obs": np.float32([8, 9, 10])},
        np.int64(2): {np.str_("obs"): np.float32([2, 3, 4]), "next_obs": np.float32([3, 4, 5])},
        3: {np.str_("obs"): np.float32([5, 6, 7])},
    }
    file = raw_file(safe=False, data=data, cache=cache, next_of=np.array(["obs"]))
    with ReplayBuffer(6, ENV, next_of="obs") as buffer:
        buffer.load_transitions(file)
        found = buffer.get_all_transitions()
    assert found["obs"].tolist() == [[6, 7, 8], [7, 8, 9], [2, 3, 4], [5, 6, 7]]
    assert found["next_obs"].tolist() == [[7, 8, 9], [8, 9, 10], [3, 4, 5], [6, 7, 8]]


class Harm:
    """Its pickle makes a directory."""

    def __init__(self, what, *arguments):
        self.what = what, arguments

    def __reduce__(self):
        return self.what


COLUMNS = {
    "obs": np.zeros((2, 3)), "act": np.zeros((2, 1), np.int8), "done": np.zeros((2, 1)),
}  # fmt: skip


def hostile(harmed):
    loop = {}
    loop["obs"] = loop
    make = Harm(os.mkdir, str(harmed))
    yield "calls", raw_file(data={**COLUMNS, "obs": make})
    yield "calls in an array", raw_file(data={**COLUMNS, "obs": np.array([make], dtype=object)})
    yield "calls in the cache", raw_file(data=COLUMNS, safe=False, cache={0: {"obs": make}})
    yield "calls beside", raw_file(data=COLUMNS, next_of=np.array(make, dtype=object), safe=make)
    yield "NumPy called", raw_file(data={**COLUMNS, "obs": Harm(np.lib.format.open_memmap, "x")})
    yield "a huge array", raw_file(data={**COLUMNS, "obs": Harm(np.ndarray, (1 << 50,))})
    yield "itself", raw_file(data=loop)
    yield "a list", raw_file(data=[1, 2])
    yield "no dict", raw_file(data=np.zeros(3))
    yield "a number as a name", raw_file(data={3: np.zeros(3)})
    yield "no arrays", raw_file(data={**COLUMNS, "obs": [1.0, 2.0, 3.0]})
    yield "a strange slot", raw_file(data=COLUMNS, safe=False, cache={9: {"obs": np.zeros(3)}})
    yield "a strange name", raw_file(data=COLUMNS, safe=False, next_of=np.array(["no"]))
    yield "a strange shape", raw_file(data={**COLUMNS, "obs": np.zeros((2, 2))})
    yield "of unequal length", raw_file(data={**COLUMNS, "obs": np.zeros((3, 3))})
    yield "another version", raw_file(data=COLUMNS, version=2)
    yield "version of many", raw_file(data=COLUMNS, version=np.ones(4))
    yield "no zip", io.BytesIO(b"PK nothing")
    yield "no bytes", io.BytesIO()
    lacking = io.BytesIO()
    np.savez(lacking, data=COLUMNS)
    yield "members lacking", lacking
    for label, pickled in {
        "memo": b"\x80\x04r\xff\xff\xff\x7f.",
        "bytes": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.",
        "stops": pickle.dumps(np.array(COLUMNS, dtype=object))[:40],
        "empty": b"",
        "eval": b"cbuiltins\neval\n(Vos.mkdir()\ntR.",
        "state": b"cnumpy\ndtype\n(Vf8\ntR(I3\nV<\nNNNI-1\nI-1\nI0\ntb.",
        "class": b"cnumpy\nndarray\n}Vx\nI1\nsb.",
    }.items():
        file = raw_file(data=COLUMNS)
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "|O", "fortran_order": False, "shape": ()}
        )
        yield f"pickle: {label}", replaced(file, "data.npy", header.getvalue() + pickled)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<i8", "fortran_order": False, "shape": (1 << 50,)}
    )
    yield "a huge header", replaced(raw_file(data=COLUMNS), "version.npy", header.getvalue())
    yield (
        "no header",
        replaced(raw_file(data=COLUMNS), "version.npy", b"\x93NUMPY\x01\x00\xff\xff{"),
    )


def replaced(file, member, content):
    result = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(result, "w") as new:
        for name in old.namelist():
            new.writestr(name, content if name == member else old.read(name))
    return result


def test_hostile_files_are_refused_and_change_nothing(tmp_path):
    with filled(4, size=5) as buffer:
        before = buffer.get_all_transitions()
        seen = 0
        for label, file in hostile(tmp_path / "harmed"):
            try:
                buffer.load_transitions(file)
            except ValueError:
                pass
            else:
                pytest.fail(label)
            assert not (tmp_path / "harmed").exists(), label
            same(buffer.get_all_transitions(), before)
            seen += 1
        assert seen > 20
        buffer.load_transitions(raw_file(data=COLUMNS))
        assert buffer.get_next_index() == 1


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_damaged_files_are_refused_or_read(data):
    intact = bytearray(
        raw_file(data=COLUMNS, safe=False, cache={0: {"obs": np.ones(3)}}).getvalue()
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(intact) - 1))
        intact[at] = data.draw(st.integers(0, 255))
    from diskreplay.compat.cpprb import files

    try:
        found = files.load(io.BytesIO(bytes(intact)), is_nstep=False)
    except ValueError:
        return
    assert all(isinstance(values, np.ndarray) for values in found.values())
