"""Which leaves records of torchrl have, and whether others have the same, case by case."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")
from tests.integrations import torchrl_extension  # noqa: E402

torchrl_extension.load()

from tensordict import NonTensorData, TensorDict, lazy_stack  # noqa: E402

from diskreplay.errors import (  # noqa: E402
    DtypeError,
    InvalidInputError,
    SchemaError,
    ShapeError,
)
from diskreplay.integrations import torchrl_records as records  # noqa: E402
from diskreplay.integrations.record_layout import RecordLayout  # noqa: E402


def shelf_of(data, axes=1):
    """What a shelf says of its leaves."""
    described = [records.described(key, value, axes, 16, 1) for key, value in records.items(data)]
    layout = RecordLayout(described)
    leaves = {
        leaf.key: SimpleNamespace(name=name, dtype=getattr(torch, leaf.dtype), shape=leaf.shape)
        for name, leaf in layout.leaves.items()
    }
    return SimpleNamespace(log=SimpleNamespace(layout=layout), leaves=leaves)


def record(n, **more):
    return TensorDict(
        {"seen": torch.zeros(n, 5, dtype=torch.uint8), "next": {"reward": torch.zeros(n)}, **more},
        [n],
    )


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 100])
@pytest.mark.parametrize("inner", [(), (1,), (4,), (2, 3)])
def test_a_size_is_rounded_up_to_whole_rows_of_the_first_axis(size, inner):
    each = int(np.prod(inner))
    assert records.rounded(size, inner) == next(n for n in range(size, 200) if n % each == 0)


def test_which_cursors_are_one_number():
    for one in (3, np.int64(3), torch.tensor(3)):
        assert records.is_int(one)
    for several in (torch.tensor([3]), np.array([3]), [3], range(3), slice(3)):
        assert not records.is_int(several)


def test_leaves_that_can_be_rows():
    data = record(
        2, text=NonTensorData("a"), none=torch.zeros(2, 0),
        ragged=lazy_stack([TensorDict({"x": torch.zeros(1)}), TensorDict({"x": torch.zeros(2)})]),
    )  # fmt: skip
    assert [key for key, _ in records.items(data)] == [("seen",), ("next", "reward")]
    tree = {"a": torch.zeros(2), "b": [torch.ones(2), torch.zeros(2, 3)]}
    found = dict(records.items(tree))
    assert list(found) == [("a",), ("b", "0"), ("b", "1")]
    assert (found["b", "0"] == 1).all()


def test_one_of_several_records():
    assert records.first(record(3)).batch_size == torch.Size([])
    found = records.first({"a": torch.arange(3), "b": [torch.ones(3, 2)]})
    assert found["a"] == 0
    assert found["b"][0].shape == (2,)


def test_a_list_is_stacked_where_its_records_are_alike():
    one = records.stacked([record(2)[0], record(2)[1]])
    assert one.batch_size == (2,)
    trees = records.stacked([(torch.zeros(3), torch.tensor(i)) for i in range(4)])
    assert trees[0].shape == (4, 3)
    assert trees[1].tolist() == [0, 1, 2, 3]
    for unlike in ([torch.zeros(2), torch.zeros(3)], [{"a": torch.zeros(1)}, (torch.zeros(1),)]):
        with pytest.raises(RuntimeError, match="Stacking the elements of the list resulted in"):
            records.stacked(unlike)


@pytest.mark.parametrize(
    ("tensor", "axes", "stack", "shape", "stored", "on_disk", "frames"),
    [
        (torch.zeros(3, 16, dtype=torch.uint8), 1, 1, (16,), "u1", True, 1),
        (torch.zeros(3, 15, dtype=torch.uint8), 1, 4, (15,), "u1", False, 1),
        (torch.zeros(3, 2, 4), 2, 4, (4,), "f4", True, 4),
        (torch.zeros(3, dtype=torch.float64), 1, 4, (), "f8", False, 1),
        (torch.zeros(16, dtype=torch.bfloat16), 0, {"x": 3}, (16, 2), "u1", True, 3),
        (torch.zeros(16, dtype=torch.uint8), 0, {"other": 3}, (16,), "u1", True, 1),
        (torch.zeros(4, dtype=torch.complex64), 0, 1, (4, 8), "u1", True, 1),
        (torch.zeros(5, 0), 1, 1, (0,), "f4", False, 1),
    ],
)  # fmt: skip
def test_where_a_leaf_is_kept(tensor, axes, stack, shape, stored, on_disk, frames):
    leaf = records.described(("next", "x"), tensor, axes, 16, stack)
    assert leaf.key == ("next", "x")
    assert tuple(leaf.shape) == shape
    assert getattr(torch, leaf.dtype) is tensor.dtype
    assert (leaf.stored, leaf.on_disk, leaf.stack) == (np.dtype(stored), on_disk, frames)


def test_frames_in_a_stack():
    assert records.checked_stack(4) == 4
    assert records.checked_stack({"a": 2, "b": 1}) == {"a": 2, "b": 1}
    for bad in (0, 101, 1.5, {"a": 0}, {"a": "2"}):
        with pytest.raises(InvalidInputError, match="stack"):
            records.checked_stack(bad)


@pytest.mark.parametrize("is_one", [False, True])
def test_records_that_have_all_leaves_and_nothing_else(is_one):
    shelf, data = shelf_of(record(3)), record(3)
    found = records.whole_records(data[1] if is_one else data, shelf, is_one)
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        leaf.name: (1 if is_one else 3, *leaf.shape) for leaf in shelf.leaves.values()
    }
    given = data[1] if is_one else data
    assert records.whole_records(given, shelf, not is_one) is None
    for other in (
        given.exclude("seen"), given.clone().set("more", given["seen"]),
        given.clone().set("seen", given["seen"].float()),
        given.clone().set("seen", given["seen"][..., :4]),
        given.clone().set("seen", torch.nn.Parameter(given["seen"].float())),
    ):  # fmt: skip
        assert records.whole_records(other, shelf, is_one) is None
    assert records.whole_records({"seen": given["seen"]}, shelf, is_one) is None


def test_leaves_that_are_not_those_of_the_first_record():
    shelf, storage = shelf_of(record(3)), record(3, known=torch.zeros(3, 2000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records.check(record(2), shelf, storage, 1)
        records.check(record(2, known=torch.zeros(2, 2000)), shelf, storage, 1)
        records.check(lazy_stack([record(2)[0], record(2)[1]]), shelf, storage, 1)
    changed = record(2)
    with pytest.raises(DtypeError, match=r"\('seen',\): torch.uint8 expected, found torch.float32"):
        records.check(changed.clone().set("seen", torch.zeros(2, 5)), shelf, storage, 1)
    small = torch.zeros(2, 4, dtype=torch.uint8)
    for data in (
        changed.clone().set("seen", small),
        lazy_stack([changed[0], changed[1].clone().set("seen", small[0])]),
    ):
        with pytest.raises(ShapeError, match=r"\('seen',\): records of shape \(5,\) expected"):
            records.check(data, shelf, storage, 1)
    with pytest.raises(InvalidInputError, match=r"\('x',\) is new, and large"):
        records.check(record(2, x=torch.zeros(2, 256)), shelf, storage, 1)
    with pytest.warns(UserWarning, match=r"\('x',\) was not among the leaves"):
        records.check(record(2, x=torch.zeros(2, 255)), shelf, storage, 1)


@pytest.mark.parametrize(
    ("max_size", "ndim", "fits"), [(12, 2, True), (10, 2, True), (13, 2, False), (12, 1, False)]
)
def test_a_store_of_other_records(tmp_path, monkeypatch, max_size, ndim, fits):
    said = {"shape": [3, 4]}
    monkeypatch.setattr(records, "read_attributes", lambda source: None)
    monkeypatch.setattr(records, "parse_metadata", lambda attributes: ({"records": said}, None))
    if fits:
        assert records.noted(tmp_path, ndim, max_size) is said
    else:
        with pytest.raises(SchemaError, match=r"made for records of shape \(3, 4\), not for"):
            records.noted(tmp_path, ndim, max_size)
    monkeypatch.setattr(records, "parse_metadata", lambda attributes: ({}, None))
    with pytest.raises(SchemaError, match="not made by a DiskStorage"):
        records.noted(tmp_path, ndim, max_size)


def test_a_writer_that_failed_is_where_it_was():
    from torchrl.data import RoundRobinWriter

    def writer(storage):
        made = RoundRobinWriter()
        made._storage, made._cursor, made._write_count = storage, 7, 20
        return made

    storage = SimpleNamespace()
    ours, other = writer(storage), writer(SimpleNamespace())
    storage._attached_entities = [
        SimpleNamespace(_writer=ours), SimpleNamespace(_writer=other), SimpleNamespace(),
    ]  # fmt: skip
    records.put_back(storage, torch.tensor([4, 5, 6]), False)
    assert (int(ours._cursor), int(ours._write_count)) == (7, 20)
    records.put_back(storage, torch.tensor([4, 5, 6]), True)
    assert (int(ours._cursor), int(ours._write_count)) == (4, 17)
    records.put_back(storage, 3, True)
    assert (int(ours._cursor), int(ours._write_count)) == (3, 16)
    assert (int(other._cursor), int(other._write_count)) == (7, 20)
