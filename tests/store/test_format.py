"""The metadata documents of format version 2: what may be in them, as docs/format.md says."""

import json
import math

import numpy as np
import pytest

from diskreplay.errors import DiskReplayError, FormatError, StorageError
from diskreplay.store import format
from diskreplay.store.field import Field

RAW = Field("f", (3,), np.dtype("i4"), "raw", 8, 2)


def head(num_envs=5, capacity=40, **changed):
    fields = [RAW.describe() | changed, Field("g", (), np.dtype("f4"), "lz4", 8, 2).describe()]
    return {"num_envs": num_envs, "capacity": capacity, "fields": fields}


# -- a group's attributes


def test_a_head_comes_back():
    num_envs, capacity, fields = format.parse_head(json.loads(json.dumps(head())))
    assert (num_envs, capacity) == (5, 40)
    assert [field.describe() for field in fields] == head()["fields"]
    assert format.parse_head(head(capacity=None))[1] is None
    assert format.parse_head(head(capacity=5))[1] == 5  # one row of each env
    assert format.parse_head(head(capacity=2**62))[1] == 2**62


@pytest.mark.parametrize(
    "changed",
    [
        {"num_envs": 0}, {"num_envs": -1}, {"num_envs": True}, {"num_envs": "5"},
        {"num_envs": 2**17 + 1}, {"num_envs": 1.0}, {"capacity": 4}, {"capacity": 0},
        {"capacity": 2**62 + 1}, {"capacity": 40.0}, {"capacity": "40"}, {"fields": []},
        {"fields": None}, {"fields": [{}]}, {"fields": [None]}, {"fields": {"a": 1}},
    ],
)  # fmt: skip
def test_a_head_that_nobody_can_have_meant(changed):
    with pytest.raises((KeyError, TypeError, ValueError, DiskReplayError)):
        format.parse_head(head() | changed)


def test_as_many_fields_as_a_store_may_have():
    one = Field("x", (), np.dtype("u1"), "raw", 8, 1).describe()
    fields = [one | {"name": f"f{i}"} for i in range(4097)]
    assert len(format.parse_head({"num_envs": 1, "capacity": 9, "fields": fields[:4096]})[2]) > 4095
    with pytest.raises(ValueError, match="fields expected, found 4097"):
        format.parse_head({"num_envs": 1, "capacity": 9, "fields": fields})


@pytest.mark.parametrize("key", ["num_envs", "capacity", "fields"])
def test_a_head_that_lacks_something(key):
    document = head()
    del document[key]
    with pytest.raises(KeyError):
        format.parse_head(document)


def test_two_fields_of_one_name():
    with pytest.raises(ValueError, match="two fields have one name"):
        format.parse_head(head(name="g"))


@pytest.mark.parametrize("groups", [(1, 2), (6, 6), (2, 6), (9, 9)])
def test_groups_of_envs_that_fields_do_not_share_or_that_have_more_envs_than_there_are(groups):
    document = head()
    for field, group in zip(document["fields"], groups, strict=True):
        field["env_group"] = group
    with pytest.raises(ValueError, match="env_group: one for all fields expected, of 1 to 5 envs"):
        format.parse_head(document)
    for field in document["fields"]:
        field["env_group"] = 5
    assert format.parse_head(document)[0] == 5


def test_the_rows_of_each_env():
    count, first = format.parse_rows({"count": [4, 0, 9], "first": [4, 0, 2]}, 3)
    assert (count.tolist(), first.tolist()) == ([4, 0, 9], [4, 0, 2])
    assert count.dtype == first.dtype == np.int64
    most = 2**62 // 3
    assert format.parse_rows({"count": [most] * 3, "first": [0] * 3}, 3)[0].tolist() == [most] * 3


@pytest.mark.parametrize(
    ("count", "first"),
    [([4, 1], [4, 2]), ([4], [4]), ([4, 4, 4], [0, 0, 0]), ([4, -1], [0, -1]), ([4, 2.0], [0, 0]),
     ([4, 2**61 + 1], [0, 0]), (None, [0, 0]), ("44", [0, 0]), ([4, 4], [0, None])],
)  # fmt: skip
def test_rows_that_there_cannot_be(count, first):
    with pytest.raises(ValueError, match=r"count|first"):
        format.parse_rows({"count": count, "first": first}, 2)


def test_transitions_are_rows_too():
    count = np.array([4, 0, 9])
    found = format.parse_transitions({"transitions": [4, 0, 1]}, count)
    assert found.tolist() == [4, 0, 1]
    for wrong in ([5, 0, 1], [0, 1, 0], [0, 0], [-1, 0, 0], None, [0, 0, "1"]):
        with pytest.raises(ValueError, match="transitions"):
            format.parse_transitions({"transitions": wrong}, count)
    with pytest.raises(KeyError):
        format.parse_transitions({}, count)


# -- priorities


def test_chunks_of_priorities_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 9, 0):
        (tmp_path / format.priority_key(number)).touch()
    for name in ("zarr.json", "c.x.0", "c.01.0", "c.1", "c.-1.0", "d.1.0"):
        (tmp_path / name).touch()
    assert (tmp_path / "c.10.0").exists()
    assert format.priority_chunks(tmp_path) == [0, 9, 10]


def test_the_document_of_priorities_says_what_they_were_raised_to():
    document = format.priority_document(7, 3, 4, 0.5)
    assert document["shape"] == [7, 3]
    assert document["chunk_grid"]["configuration"]["chunk_shape"] == [4, 3]
    assert document["fill_value"] == "NaN"
    assert document["attributes"] == {"diskreplay": {"alpha": 0.5}}
    assert format.priority_document(7, 3, 4, None)["attributes"] == {}
    assert format.priority_document(7, 3, 4, 0.0)["attributes"] == {"diskreplay": {"alpha": 0.0}}
    assert format.priority_document(7, 3, 4, None, {})["attributes"] == {}
    found = format.priority_document(7, 3, 4, None, {"eps": 0.1})["attributes"]
    assert found == {"diskreplay": {"notes": {"eps": 0.1}}}


# -- documents of arrays and groups


def test_a_nested_field_has_a_group_for_each_part_of_its_name(tmp_path):
    field = Field("a/b/c", (), np.dtype("u1"), "raw", 8, 1)
    found = format.field_documents(tmp_path, field, {"x": 1})
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    assert found == {
        tmp_path / "a" / "zarr.json": group, tmp_path / "a" / "b" / "zarr.json": group,
        tmp_path / "a" / "b" / "c" / "zarr.json": {"x": 1},
    }  # fmt: skip
    paths = format.write_documents(tmp_path, field, {"x": 1})
    assert {path: json.loads(path.read_bytes()) for path in paths} == found
    assert sorted(tmp_path.rglob("zarr.json")) == sorted(found)


def test_a_flat_field_has_no_group(tmp_path):
    assert list(format.field_documents(tmp_path, RAW, {})) == [tmp_path / "f" / "zarr.json"]


def test_how_rows_lie_in_a_file():
    def codecs(field):
        return [codec["name"] for codec in format.array_document(field, 9, 5, {})["codecs"]]

    assert codecs(RAW) == ["bytes"]
    wide = Field("f", (1024,), np.dtype("u1"), "raw", 8, 2)
    assert codecs(wide) == ["transpose", "bytes"]
    document = format.array_document(wide, 9, 5, {"seals": {}})
    assert document["codecs"][0]["configuration"] == {"order": [1, 0, 2]}
    assert document["shape"] == [9, 5, 1024]
    assert document["chunk_grid"]["configuration"]["chunk_shape"] == [8, 2, 1024]
    assert document["attributes"] == {"diskreplay": {"seals": {}}}
    packed = Field("a/f", (3, 4), np.dtype("?"), "zstd", 16, 2, 4)
    document = format.array_document(packed, 9, 5, {})
    (sharding,) = document["codecs"]
    assert sharding["configuration"]["chunk_shape"] == [4, 1, 3, 4]
    assert [each["name"] for each in sharding["configuration"]["codecs"]][1:] == ["blosc", "crc32c"]
    assert document["dimension_names"] == ["row", "env", "a_f_0", "a_f_1"]
    assert document["fill_value"] is False
    assert format.array_document(RAW, 9, 5, {})["fill_value"] is not False


# -- files


def test_a_document_comes_back(tmp_path):
    document = {"a": [1, 2.5, None, "\u00fc"], "b": {"c": True}, "d": []}
    data = format.encode(document)
    assert len(data.splitlines()) == 2 + len(document)  # a line for each member
    (tmp_path / "x").write_bytes(data)
    assert format.read_document(tmp_path / "x") == document
    (tmp_path / "x").write_bytes(format.encode({}))
    assert format.read_document(tmp_path / "x") == {}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_json_does_not_have_is_not_written(number):
    with pytest.raises(ValueError, match="JSON"):
        format.encode({"a": number})


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b"[1]", b"3", b'"x"', b"null", b'{"a": NaN}', b'{"a": Infinity}',
     b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a": 1} more', b'{"a": ' + b"[" * 100_000,
     b'{"a": ' + b"1" * 5000 + b"}"],
    ids=lambda data: data[:12].decode(errors="replace"),
)  # fmt: skip
def test_what_is_no_document(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(FormatError, match=r"not valid JSON|a JSON object was expected"):
        format.read_document(tmp_path / "x")


def test_one_that_is_too_large_is_not_read(tmp_path):
    with open(tmp_path / "x", "wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(FormatError, match="larger than any metadata"):
        format.read_document(tmp_path / "x")


def group(tmp_path, document):
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    return format.read_attributes(tmp_path)


def test_the_attributes_of_a_store(tmp_path):
    attributes = {"format_version": 2, "x": 1}
    assert group(tmp_path, format.group_document(attributes)) == attributes


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "no 'diskreplay' attribute"),
        ({"attributes": None}, "no 'diskreplay' attribute"),
        ({"attributes": []}, "no 'diskreplay' attribute"),
        ({"attributes": {"diskreplay": 3}}, "no 'diskreplay' attribute"),
        ({"attributes": {"diskreplay": {}}}, "version None is no version"),
        ({"attributes": {"diskreplay": {"format_version": "2"}}}, "version '2' is no version"),
        ({"attributes": {"diskreplay": {"format_version": 2.0}}}, "version 2.0 is no version"),
        ({"attributes": {"diskreplay": {"format_version": 0}}}, "version 0 is no version"),
        ({"attributes": {"diskreplay": {"format_version": 1}}}, "given up before the first"),
        ({"attributes": {"diskreplay": {"format_version": 3}}}, "reads up to 2: upgrade it"),
        ({"attributes": {"diskreplay": {}}, "node_type": "array"}, "an array of a store"),
    ],
)
def test_what_is_no_store_of_this_version(tmp_path, document, said):
    with pytest.raises(FormatError, match=said):
        group(tmp_path, document)


def test_where_there_is_no_document(tmp_path):
    with pytest.raises(FormatError, match=r"it has no zarr\.json"):
        format.read_attributes(tmp_path)
    with pytest.raises(FormatError, match="no such directory"):
        format.read_attributes(tmp_path / "gone")
    (tmp_path / "zarr.json").mkdir()
    with pytest.raises((FormatError, StorageError)):
        format.read_attributes(tmp_path)
