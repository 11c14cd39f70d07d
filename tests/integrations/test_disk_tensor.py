"""Tensors on disk against tensors in memory: the same views, values, and writes."""

import copy
import pickle

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from diskreplay.integrations.disk_tensor import DiskTensor


class InMemory:
    """A leaf whose records are an array, and which counts what is read."""

    def __init__(self, records, shape, dtype=torch.float32):
        self.shape, self.dtype, self.device = shape, dtype, torch.device("cpu")
        size = int(np.prod((records, *shape)))
        self.values = torch.arange(size).reshape(records, *shape).to(dtype)
        self.read_records = 0

    def read(self, slots):
        self.read_records += slots.size
        return self.values[torch.as_tensor(slots)].clone()

    def write(self, slots, values):
        self.values[torch.as_tensor(slots)] = values


def pair(records=(4, 6), shape=(3, 2), dtype=torch.float32):
    leaf = InMemory(int(np.prod(records)), shape, dtype)
    slots = torch.arange(int(np.prod(records))).view(records)
    return DiskTensor(leaf, slots), leaf.values.clone().view(*records, *shape), leaf


VIEWS = {
    "all": lambda t: t[:],
    "ellipsis": lambda t: t[...],
    "slice": lambda t: t[1:3],
    "one": lambda t: t[2],
    "last": lambda t: t[-1],
    "cell": lambda t: t[2, 3],
    "column": lambda t: t[:, 4],
    "steps": lambda t: t[::2, 1::3],
    "none": lambda t: t[None],
    "flat": lambda t: t.flatten(0, 1),
    "view": lambda t: t.view(2, 2, 6, 3, 2),
    "reshape": lambda t: t.reshape(24, 3, 2),
    "reshape -1": lambda t: t.reshape(-1, 3, 2),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "squeeze": lambda t: t[:1].squeeze(0),
    "transpose": lambda t: t.transpose(0, 1),
    "transpose, flat": lambda t: t.transpose(0, 1).reshape(24, 3, 2),
    "permute": lambda t: t.permute(1, 0, 2, 3),
    "expand": lambda t: t[:1].expand(5, 6, 3, 2),
    "expand -1": lambda t: t.unsqueeze(0).expand(3, -1, -1, -1, -1),
    "detach": lambda t: t.detach(),
    "nothing": lambda t: t[4:],
}
READS = {
    "list": lambda t: t[[0, 2, 2]],
    "tensor": lambda t: t[torch.tensor([3, 0])],
    "two tensors": lambda t: t[torch.tensor([3, 0]), torch.tensor([1, 5])],
    "mask": lambda t: t[torch.tensor([True, False, True, False])],
    "whole mask": lambda t: t[torch.arange(24).view(4, 6) % 5 == 0],
    "into the leaf": lambda t: t[torch.tensor([1, 2]), torch.tensor([1, 2]), torch.tensor([2, 0])],
    "leaf's axis": lambda t: t[..., 1],
    "slice and list": lambda t: t[1:, [2, 0]],
    "select": lambda t: t.index_select(1, torch.tensor([5, 5, 0])),
    "sum": lambda t: t.sum(),
    "clone": lambda t: t.clone(),
    "to": lambda t: t.to(torch.float64),
    "arithmetic": lambda t: (t + 1) * t,
    "compare": lambda t: t == t.max(),
    "cat": lambda t: torch.cat([t, t[:1]]),
    "stack": lambda t: torch.stack([t[0], t[1]]),
    "leaf's view": lambda t: t.reshape(4, 6, 6),
    "across": lambda t: t.permute(2, 0, 1, 3),
    "where": lambda t: torch.where(t > 5, t, 0.0),
    "like": lambda t: torch.zeros_like(t),
    "unbind": lambda t: t.unbind(0)[2],
    "split": lambda t: t.split(3, 1)[1],
    "item": lambda t: torch.tensor(t[1, 2, 0, 1].item()),
    "list of numbers": lambda t: torch.tensor(t.tolist()),
    "numpy": lambda t: torch.from_numpy(t.numpy()),
    "array": lambda t: torch.from_numpy(np.asarray(t)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_the_record_axes_read_nothing(name):
    disk, memory, leaf = pair()
    found, wanted = VIEWS[name](disk), VIEWS[name](memory)
    assert isinstance(found, DiskTensor)
    assert leaf.read_records == 0
    assert found.shape == wanted.shape
    assert torch.equal(found.read(), wanted)
    assert found.dtype == wanted.dtype


@pytest.mark.parametrize("name", READS)
def test_operations_are_those_of_tensors(name):
    disk, memory, _ = pair()
    found, wanted = READS[name](disk), READS[name](memory)
    found = found.read() if isinstance(found, DiskTensor) else found
    assert type(found) is torch.Tensor
    assert torch.equal(found, wanted)


def test_indexing_reads_what_is_asked_for_only():
    disk, _, leaf = pair()
    disk[1:][torch.tensor([0, 2]), torch.tensor([1, 1])]
    assert leaf.read_records == 2


def test_empty_like_reads_nothing():
    disk, memory, leaf = pair()
    made = torch.empty_like(disk, dtype=torch.int64)
    assert (type(made), made.shape, made.dtype) == (torch.Tensor, memory.shape, torch.int64)
    assert leaf.read_records == 0


WRITES = {
    "one": lambda t: t.__setitem__(2, torch.full((6, 3, 2), 7.0)),
    "number": lambda t: t.__setitem__(2, 7),
    "slice": lambda t: t.__setitem__(slice(1, 3), torch.ones(2, 6, 3, 2)),
    "broadcast": lambda t: t.__setitem__(slice(1, 3), torch.arange(2.0)),
    "tensor": lambda t: t.__setitem__(torch.tensor([3, 1]), torch.ones(2, 6, 3, 2)),
    "broadcast to a tensor": lambda t: t.__setitem__(torch.tensor([3, 1]), torch.arange(2.0)),
    "cells": lambda t: t.__setitem__(
        (torch.tensor([3, 1]), torch.tensor([0, 5])), torch.rand(2, 3, 2).round()
    ),
    "mask": lambda t: t.__setitem__(torch.tensor([True, False, True, False]), -1.0),
    "cast": lambda t: t.__setitem__(0, torch.full((6, 3, 2), 3, dtype=torch.int64)),
    "leaf's axis": lambda t: t.__setitem__((..., 1), 5.0),
    "into the leaf": lambda t: t.__setitem__(
        (torch.tensor([1, 2]), torch.tensor([1, 2]), torch.tensor([2, 0])), torch.zeros(2, 2)
    ),
    "through a view": lambda t: t[1:].flatten(0, 1)[3:5].fill_(9),
    "zero": lambda t: t[:2].zero_(),
    "copy": lambda t: t[0].copy_(torch.ones(2)),
    "in place": lambda t: t[1:3].add_(2).mul_(3),
    "self": lambda t: t.__setitem__(slice(0, 2), t[2:4]),
    "accumulate": lambda t: t.index_put_((torch.tensor([1, 1]),), torch.tensor(1.0), True),
    "index copy": lambda t: t.index_copy_(0, torch.tensor([2, 0]), torch.ones(2, 6, 3, 2)),
    "masked fill": lambda t: t.masked_fill_(torch.tensor([[[False, True]] * 3] * 6), 4.0),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_are_those_of_tensors(name):
    disk, memory, leaf = pair()
    torch.manual_seed(0)
    WRITES[name](disk)
    torch.manual_seed(0)
    WRITES[name](memory)
    assert torch.equal(leaf.values.view_as(memory), memory)


def test_assigning_another_dtype_by_a_tensor_is_refused_as_torch_does():
    disk, memory, leaf = pair()
    before = leaf.values.clone()
    for tensor in (disk, memory):
        with pytest.raises(RuntimeError, match="dtypes match"):
            tensor[torch.tensor([1])] = torch.zeros(1, 6, 3, 2, dtype=torch.float64)
    assert torch.equal(leaf.values, before)


def test_wrong_shapes_are_refused_as_torch_does():
    disk, _, leaf = pair()
    before = leaf.values.clone()
    for write in (
        lambda: disk.__setitem__(0, torch.zeros(5, 3, 2)),
        lambda: disk.__setitem__(torch.tensor([1]), torch.zeros(2, 6, 3, 2)),
        lambda: disk.view(5, 5, 3, 2),
    ):
        with pytest.raises(RuntimeError):
            write()
    with pytest.raises(IndexError):
        disk[7]
    with pytest.raises(IndexError):
        disk[torch.tensor([24])]
    assert torch.equal(leaf.values, before)


def test_copies_and_pickles_refer_to_the_leaf():
    disk, memory, _ = pair()
    for other in (pickle.loads(pickle.dumps(disk[1:])), copy.deepcopy(disk[1:])):
        assert isinstance(other, DiskTensor)
        assert torch.equal(other.read(), memory[1:])


def test_it_says_what_it_is():
    disk, _, leaf = pair()
    assert repr(disk) == "DiskTensor(shape=(4, 6, 3, 2), dtype=torch.float32, on disk)"
    assert disk.is_shared()
    assert disk.share_memory_() is disk
    assert leaf.read_records == 0
