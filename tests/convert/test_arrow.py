"""Columns as Arrow arrays, and back."""

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from diskreplay.convert.arrow import (
    check_path,
    from_arrow,
    to_arrow,
    type_of,
    type_with_nulls,
)
from diskreplay.errors import FormatError, InvalidInputError

SPECS = [((), "f4"), ((), "?"), ((), "i8"), ((3,), "f8"), ((2, 3), "i2"), ((4, 5), "u1"),
         ((4, 5, 3), "u1"), ((7,), "u1"), ((1,), "?"), ((2, 2), "?")]  # fmt: skip


@pytest.mark.parametrize(("shape", "dtype"), SPECS)
@pytest.mark.parametrize("rows", [0, 1, 6])
@pytest.mark.parametrize("make", [type_of, type_with_nulls])
def test_what_goes_in_comes_out(shape, dtype, rows, make):
    dtype = np.dtype(dtype)
    values = np.random.default_rng(rows).integers(0, 2, (rows, *shape)).astype(dtype)
    type_ = make(pa, shape, dtype)
    array = to_arrow(pa, type_, values)
    assert array.type.equals(type_)
    assert len(array) == rows
    found = from_arrow(Path("x"), "f", array, type_, (shape, dtype))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)
    if rows > 3:  # a part of a longer one
        part = from_arrow(Path("x"), "f", array.slice(2, 3), type_, (shape, dtype))
        np.testing.assert_array_equal(part, values[2:5])
        turned = np.moveaxis(np.repeat(values[..., None], 2, -1), -1, 0)[1]  # not contiguous
        found = from_arrow(Path("x"), "f", to_arrow(pa, type_, turned), type_, (shape, dtype))
        np.testing.assert_array_equal(found, values)


def test_types():
    assert type_of(pa, (), np.dtype("f2")) == pa.float16()
    assert type_of(pa, (4, 5), np.dtype("u1")) == pa.binary(20)
    assert type_of(pa, (20,), np.dtype("u1")) == pa.list_(pa.uint8(), 20)
    assert type_of(pa, (4, 5), np.dtype("i1")) == pa.list_(pa.int8(), 20)
    assert type_with_nulls(pa, (4, 5), np.dtype("u1")) == pa.binary(20)
    assert type_with_nulls(pa, (4, 5), np.dtype("i1")) == pa.list_(pa.int8())
    assert type_with_nulls(pa, (), np.dtype("f4")) == pa.float32()


@pytest.mark.parametrize(("shape", "dtype"), SPECS)
def test_rows_without_a_value_are_refused(shape, dtype):
    type_ = type_with_nulls(pa, shape, np.dtype(dtype))
    with pytest.raises(FormatError, match="x: 'f' has nulls; every row needs a value"):
        from_arrow(Path("x"), "f", pa.nulls(3, type_), type_, (shape, np.dtype(dtype)))


@pytest.mark.parametrize("of_fixed_size", [True, False])
def test_a_list_that_lacks_a_value_is_refused(of_fixed_size):
    type_ = pa.list_(pa.int64(), 2) if of_fixed_size else pa.list_(pa.int64())
    array = pa.array([[1, 2], [7, None]], type_)
    with pytest.raises(FormatError, match="x: 'f' has nulls; every row needs a value"):
        from_arrow(Path("x"), "f", array, type_, ((2,), np.dtype(np.int64)))


def test_a_path_that_pyarrow_has_no_name_for():
    check_path(Path("/tmp/ä"))
    with pytest.raises(InvalidInputError, match="names in UTF-8"):
        check_path(Path(os.fsdecode(b"/tmp/n\xff")))


def test_another_type_is_refused():
    wanted = pa.list_(pa.float32(), 3)
    for array in (pa.array([1.0]), pa.array([[1.0, 2.0, 3.0]]), pa.array(["x"]),
                  pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))):  # fmt: skip
        with pytest.raises(FormatError, match=r"x: 'f' is of type .*, .*\[3\] expected"):
            from_arrow(Path("x"), "f", array, wanted, ((3,), np.dtype("f4")))


@pytest.mark.parametrize("lists", [[[1, 2], [3, 4, 5]], [[]], [[1, 2, 3], []], [[1] * 6, []]])
def test_lists_of_another_length_are_refused_also_where_they_add_up(lists):
    array = pa.array(lists, pa.list_(pa.int8()))
    with pytest.raises(FormatError, match="3 expected in each"):
        from_arrow(Path("x"), "f", array, array.type, ((3,), np.dtype("i1")))
