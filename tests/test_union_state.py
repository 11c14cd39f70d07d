"""What a union saves of itself, and files of another one."""

import json
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from diskreplay.errors import FormatError
from diskreplay.sampling.new_windows import NewWindows
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.union_state import UnionState, packed


class Sampler:
    def __init__(self, leaves, largest):
        self._leaves, self.largest = np.array(leaves, float), largest

    def leaves(self):
        return self._leaves


def member(path, *, alpha=0.5, keeps=False, leaves=((1.0,), (2.0,)), first=3, new=None):
    buffer = SimpleNamespace(path=path, num_envs=1)
    restored = []
    return SimpleNamespace(
        buffer=buffer, alpha=alpha, keeps_itself=keeps, sampler=Sampler(leaves, 9.0),
        rows=SimpleNamespace(store=SimpleNamespace(first=np.array([first, first + 2]))),
        restored=restored, restore=lambda *what: restored.append(what),
        new=new, restore_new=restored.append,
    )  # fmt: skip


def members():
    return [member("/a"), member("/b", alpha=None), member("/c", keeps=True)]


def rng(seed):
    return ReplayableRng(np.random.default_rng(seed))


class Prefetchers:
    open = ("some",)

    def __init__(self):
        self.back = []

    def put_back(self, what):
        self.back.append(what)


def test_what_no_member_saves_comes_back(tmp_path):
    saved, path = rng(1), tmp_path / "state.npz"
    saved.random(5)
    path.write_bytes(packed(members(), saved))
    found = members()
    state = UnionState(path, found)
    again, prefetchers = rng(2), Prefetchers()
    assert found[0].restored == []
    state.restore(again, prefetchers)
    assert again.random(4).tolist() == saved.random(4).tolist()
    assert prefetchers.back == [("some",)]
    ((start, leaves, largest),) = found[0].restored
    assert (start, largest) == (3, 9.0)
    assert leaves.tolist() == [[1.0], [2.0]]
    assert found[1].restored == found[2].restored == []


def test_the_leaves_and_the_priority_that_a_member_may_have_come_back(tmp_path):
    """The largest priority of a store that was opened with a larger alpha since may be any."""
    path, one = tmp_path / "state.npz", member("/a", leaves=((0.0,), (np.nan,), (1e297,)))
    one.sampler.largest = 1.7e308
    path.write_bytes(packed([one], rng(1)))
    UnionState(path, [one]).restore(rng(2), Prefetchers())
    ((_start, leaves, largest),) = one.restored
    np.testing.assert_array_equal(leaves, [[0.0], [np.nan], [1e297]])
    assert largest == 1.7e308


def test_which_windows_were_handed_out_comes_back(tmp_path):
    new = NewWindows(np.array([7]), np.array([3, 2]))
    path, one = tmp_path / "state.npz", member("/a", alpha=None, new=new)
    path.write_bytes(packed([one], rng(1)))
    UnionState(path, [one]).restore(rng(2), Prefetchers())
    assert [each.as_json() for each in one.restored] == [{"cursor": [7], "returned": [3, 2]}]
    path.write_bytes(packed([member("/a", alpha=None)], rng(1)))  # it counts by itself
    UnionState(path, [one]).restore(rng(2), Prefetchers())
    assert len(one.restored) == 1


def test_ctrl_c_leaves_no_member_behind(tmp_path):
    path, both = tmp_path / "state.npz", [member("/a"), member("/b")]
    path.write_bytes(packed(both, rng(1)))
    put = both[0].restore
    both[0].restore = lambda *what: (put(*what), signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            UnionState(path, both).restore(rng(2), Prefetchers())
    finally:
        signal.signal(signal.SIGINT, before)
    assert [len(each.restored) for each in both] == [1, 1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("cursor", []), ("cursor", [1, 2]), ("returned", [2**63]), ("returned", None)]
    + [(n, v) for n in ("cursor", "returned") for v in ([-1], [0.5], [[1]], [2**64], 1, "1", {})],
)
def test_damaged_new_windows_are_refused(tmp_path, name, value):
    said = {"cursor": [7], "returned": [], name: value}
    path, one = tmp_path / "state.npz", member("/a", alpha=None)
    one.new = SimpleNamespace(as_json=lambda: said)
    path.write_bytes(packed([one], rng(1)))
    with pytest.raises(FormatError, match=rf"no saved state of this union.*{name}"):
        UnionState(path, [one])


@pytest.mark.parametrize(
    "others",
    [members()[:2], [*members(), member("/d")],
     [member("/a", alpha=None), *members()[1:]], [member("/a", keeps=True), *members()[1:]],
     [members()[0], member("/b"), members()[2]]],
)  # fmt: skip
def test_that_of_other_members_is_refused(tmp_path, others):
    path = tmp_path / "state.npz"
    path.write_bytes(packed(members(), rng(1)))
    with pytest.raises(FormatError, match="no saved state of this union"):
        UnionState(path, others)


@pytest.mark.parametrize(
    ("leaves", "change"),
    [(((-1.0,), (2.0,)), {}), (((np.inf,), (2.0,)), {}), (((2.0,), (1.1e297,)), {}),
     (((1.0, 2.0),), {}), ((1.0,), {}), ((((1.0,),),), {}), (1.0, {}),
     (((1.0,),), {"largest": 0}), (((1.0,),), {"largest": np.inf}),
     (((1.0,),), {"largest": "x"}), (((1.0,),), {"start": -1}), (((1.0,),), {"start": 2**63}),
     (((1.0,),), {"start": 1.5}), (((1.0,),), {"version": 2}), (((1.0,),), {"rng": {}})],
)  # fmt: skip
def test_one_that_is_damaged_is_refused(tmp_path, leaves, change):
    path, one = tmp_path / "state.npz", member("/a", leaves=leaves)
    path.write_bytes(packed([one], rng(1)))
    with np.load(path) as file:
        arrays = dict(file)
    state = json.loads(arrays["state"].tobytes())
    if change.keys() <= state["members"][0].keys():
        state["members"][0] |= change
    else:
        state |= change
    arrays["state"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    np.savez(path, **arrays)
    with pytest.raises(FormatError, match="no saved state"):
        UnionState(path, [member("/a")])


def test_a_file_that_is_none_is_refused(tmp_path):
    path = tmp_path / "state.npz"
    with pytest.raises(FormatError):
        UnionState(path, members())
    whole = packed(members(), rng(1))
    for data in (b"", b"rubbish", whole[:-30], whole[: len(whole) // 2]):
        path.write_bytes(data)
        with pytest.raises(FormatError, match="no saved state"):
            UnionState(path, members())
