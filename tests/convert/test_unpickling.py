"""Pickles from strangers: which values come back, and that nothing is called."""

import itertools
import os
import pickle
import sys
import types

import numpy as np
import pytest

from diskreplay.convert.unpickling import (
    PickledSumTree,
    levels,
    pickled_set,
    pickled_sum_tree,
    unpickled,
)
from diskreplay.errors import CorruptCheckpointError


def test_unpickling_takes_plain_values_and_nothing_else():
    taken = [
        1, -(2**70), 1.5, "text", b"bytes", None, True, [1, (2, {"a": {3}})], frozenset({1}),
        np.float64(2.5), np.int32(7),
    ]  # fmt: skip
    for value in taken:
        for protocol in range(2, 6):
            assert unpickled(pickle.dumps(value, protocol), "here") == value
    for array in (
        np.arange(6.0).reshape(2, 3),
        np.arange(3, dtype=">i4"),
        np.zeros(0),
        np.ones(()),
    ):
        for protocol in range(2, 6):
            found = unpickled(pickle.dumps(array, protocol), "here")
            np.testing.assert_array_equal(found, array)
    refused = [
        pickle.dumps(os.system),
        pickle.dumps(np.array([{}], object)),
        b"cos\nsystem\n(S'true'\ntR.",
        b"c__builtin__\neval\n(S'1'\ntR.",
        b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93.",
        b"(ios\nsystem\n.",
        b"\x80\x02\x82\x01.",  # an extension code
        b"\x80\x02K\x01r\xff\xff\xff\x7f.",  # a memo of two thousand million places
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00abc.",  # more bytes than there are
        b"",
        b".",
        pickle.dumps([1, 2, 3])[:-3],
    ]
    for data in refused:
        with pytest.raises(CorruptCheckpointError):
            unpickled(data, "here")


def test_arrays_of_fortran_order_and_within_containers():
    array = np.asfortranarray(np.arange(6).reshape(2, 3))
    for protocol in range(2, 6):
        found = unpickled(pickle.dumps({"a": [array], "b": np.array([True])}, protocol), "here")
        np.testing.assert_array_equal(np.asarray(found["a"][0]), array)
        assert np.asarray(found["a"][0], np.float32).dtype == np.float32
        assert np.asarray(found["b"]).tolist() == [True]


def test_each_level_has_the_sums_of_the_one_below():
    for count in (1, 2, 3, 5, 8, 9):
        leaves = np.arange(1.0, count + 1)
        found = levels(leaves)
        assert [len(level) for level in found] == [1 << at for at in range(len(found))]
        assert len(found[-1]) == next(each for each in (1, 2, 4, 8, 16) if each >= count)
        assert found[-1][:count].tolist() == leaves.tolist()
        for above, below in itertools.pairwise(found):
            assert above.tolist() == below.reshape(-1, 2).sum(axis=1).tolist()
        assert found[0][0] == leaves.sum()


@pytest.mark.parametrize("package", ["reagent", "dopamine"])
def test_a_sum_tree_is_one_where_the_package_is_installed(monkeypatch, package):
    class SumTree:
        pass

    for name in (package, f"{package}.replay_memory", f"{package}.replay_memory.sum_tree"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[f"{package}.replay_memory.sum_tree"].SumTree = SumTree
    leaves = np.array([0.5, 2.0, 0.25])
    data = pickled_sum_tree(leaves, 7.5, package=package)
    there = pickle.loads(data)
    assert isinstance(there, SumTree)
    assert there.max_recorded_priority == 7.5
    for found, wanted in zip(there.nodes, levels(leaves), strict=True):
        np.testing.assert_array_equal(found, wanted)
    again = unpickled(data, "here")
    assert isinstance(again, PickledSumTree)
    assert again.leaves.tolist() == [0.5, 2.0, 0.25, 0.0]
    assert again.max_recorded_priority == 7.5
    assert b"_core" not in data


@pytest.mark.parametrize(
    "state",
    [
        {"nodes": [np.array([[1.0]])], "max_recorded_priority": 1.0},
        {"nodes": [np.array(["a"])], "max_recorded_priority": 1.0},
        {"nodes": [np.array([-1.0])], "max_recorded_priority": 1.0},
        {"nodes": [np.array([np.nan])], "max_recorded_priority": 1.0},
        {"nodes": [np.array([1.0])], "max_recorded_priority": -1.0},
        {"nodes": [np.array([1.0])], "max_recorded_priority": np.inf},
        {"nodes": [], "max_recorded_priority": 1.0},
        {"nodes": [np.array([1.0])]},
    ],
)
def test_a_sum_tree_that_cannot_be_is_refused(state):
    body = pickle.dumps(state, protocol=3)[2:-1]
    data = b"\x80\x03creagent.replay_memory.sum_tree\nSumTree\n)\x81" + body + b"b."
    with pytest.raises(CorruptCheckpointError, match="here: "):
        unpickled(data, "here")


def test_a_set_of_numbers():
    assert pickle.loads(pickled_set([3, 1, 3])) == {1, 3}
    assert unpickled(pickled_set([]), "here") == set()
