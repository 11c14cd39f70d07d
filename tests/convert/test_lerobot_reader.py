"""Files that say they are a LeRobot data set: what is none, and what it lacks."""

import json

import pytest

pytest.importorskip("pyarrow")

from diskreplay.convert.lerobot_reader import LeRobotFiles
from diskreplay.errors import FormatError, InvalidInputError, StorePermissionError

INFO = {"codebase_version": "v3.0", "fps": 10, "features": {}, "data_path": "data/{x}.parquet"}


def written(path, text):
    (path / "meta").mkdir()
    (path / "meta" / "info.json").write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def test_where_there_is_none(tmp_path):
    with pytest.raises(FormatError, match=r"no LeRobot data set: .* is missing"):
        LeRobotFiles(tmp_path)
    with pytest.raises(FormatError, match="no LeRobot data set"):
        LeRobotFiles(tmp_path / "gone")
    (tmp_path / "meta").touch()
    with pytest.raises(FormatError, match="no LeRobot data set"):
        LeRobotFiles(tmp_path)
    for path in (5, b"x", "s3://bucket/x"):
        with pytest.raises(InvalidInputError, match=r"^path: "):
            LeRobotFiles(path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "5", "null", "{}", "[" * 100_000, '{"a": ' * 50_000,
     *({**INFO, **changed} for changed in (
        {"codebase_version": 3}, {"codebase_version": None}, {"fps": 0}, {"fps": -1},
        {"fps": "10"}, {"fps": None}, {"fps": float("nan")}, {"features": []}, {"features": None},
        {"data_path": ""}, {"data_path": None},
     ))],
    ids=lambda text: str(text)[:10],
)  # fmt: skip
def test_an_info_that_is_damaged(tmp_path, text):
    with pytest.raises(FormatError, match=r"info\.json: damaged"):
        LeRobotFiles(written(tmp_path, text))


@pytest.mark.parametrize("name", INFO)
def test_an_info_that_lacks_something(tmp_path, name):
    info = dict(INFO)
    del info[name]
    with pytest.raises(FormatError, match=r"info\.json: damaged .*" + name):
        LeRobotFiles(written(tmp_path, info))


@pytest.mark.parametrize("version", ["v2.1", "v4.0", "3.0", "v30", ""])
def test_one_of_another_version(tmp_path, version):
    with pytest.raises(FormatError, match=f"version '{version}'; this diskreplay reads v3.0"):
        LeRobotFiles(written(tmp_path, INFO | {"codebase_version": version}))


def test_bytes_that_are_no_text(tmp_path):
    path = written(tmp_path, INFO)
    (path / "meta" / "info.json").write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="damaged"):
        LeRobotFiles(path)


def test_one_that_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    from pathlib import Path

    def refuse(*_arguments, **_options):
        raise PermissionError(13, "Permission denied")

    path = written(tmp_path, INFO)
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(StorePermissionError, match="cannot read the file"):
        LeRobotFiles(path)
