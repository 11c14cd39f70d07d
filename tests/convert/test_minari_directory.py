"""The place of a new Minari data set: there whole, or nothing of it."""

import json
import os
import shutil
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from diskreplay.convert import minari_directory
from diskreplay.convert.minari_directory import check_space, datasets_below, new_dataset
from diskreplay.errors import DiskFullError, InvalidInputError

pytest.importorskip("minari", reason="needs Minari: pip install diskreplay[minari]")
ROOT = "MINARI_DATASETS_PATH"


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv(ROOT, str(tmp_path / "sets"))
    return tmp_path / "sets"


def write(own, dataset_id, text="data"):
    data = own / dataset_id / "data"
    data.mkdir(parents=True)
    (data / "main.txt").write_text(text)


@pytest.mark.parametrize("dataset_id", ["pong-v0", "atari/pong-v1", "deep/er/pong-v0"])
def test_it_is_put_in_its_place_when_all_is_written(root, dataset_id):
    with new_dataset(dataset_id) as own:
        write(own, dataset_id)
        assert not (root / dataset_id / "data").exists()
        assert own.is_relative_to(root)
    assert (root / dataset_id / "data" / "main.txt").read_text() == "data"
    files = {path.name for path in root.rglob("*") if path.is_file()}
    assert files <= {"main.txt", "namespace_metadata.json"}
    if "/" in dataset_id:
        space = root / dataset_id.rpartition("/")[0] / "namespace_metadata.json"
        assert isinstance(json.loads(space.read_text()), dict)
    with pytest.raises(InvalidInputError, match="is there already"), new_dataset(dataset_id):
        raise AssertionError("begun")


def fail_amid(root, *, keep):
    with new_dataset("deep/er/pong-v0") as own:
        write(own, "deep/er/pong-v0")
        if keep:
            (root / "deep").mkdir(exist_ok=True)
            (root / "deep" / "mine").touch()
        raise ZeroDivisionError


@pytest.mark.parametrize("keep", [False, True])
def test_an_error_leaves_nothing_but_what_others_have_put_there(root, keep):
    with pytest.raises(ZeroDivisionError):
        fail_amid(root, keep=keep)
    left = {path.relative_to(root).as_posix() for path in root.rglob("*")}
    assert left == ({"deep", "deep/mine"} if keep else set())


def test_one_that_somebody_else_has_made_meanwhile_stays(root):
    def overtaken():
        with new_dataset("pong-v0") as own:
            write(own, "pong-v0", "mine")
            write(root, "pong-v0", "theirs")

    with pytest.raises(InvalidInputError, match="is there already"):
        overtaken()
    assert (root / "pong-v0" / "data" / "main.txt").read_text() == "theirs"


@pytest.mark.parametrize("wrong", ["pong", "a/pong-v0", "", "../pong-v0", 3, "pong-vx"])
def test_ids_that_are_none_are_refused(root, wrong):
    with pytest.raises(InvalidInputError, match="dataset_id"), new_dataset(wrong):
        raise AssertionError("begun")
    assert not root.exists() or not any(root.iterdir())


def test_a_root_that_is_no_absolute_path_is_refused(monkeypatch):
    monkeypatch.setenv(ROOT, "sets")
    with pytest.raises(InvalidInputError, match="needs an absolute path, found 'sets'"):
        with new_dataset("pong-v0"):
            raise AssertionError("begun")


@pytest.mark.parametrize("before", [None, "/elsewhere"])
def test_data_sets_are_made_below_a_directory_meanwhile(tmp_path, monkeypatch, before):
    monkeypatch.delenv(ROOT, raising=False)
    if before:
        monkeypatch.setenv(ROOT, before)
    with datasets_below(tmp_path):
        assert os.environ[ROOT] == str(tmp_path)
    assert os.environ.get(ROOT) == before
    with pytest.raises(ZeroDivisionError), datasets_below(tmp_path):
        raise ZeroDivisionError
    assert os.environ.get(ROOT) == before


def test_a_disk_without_room_is_seen_before(tmp_path, monkeypatch):
    buffer = SimpleNamespace(fields={
        "observation": ((4, 5), np.dtype("u1")), "reward": ((), np.dtype("f4")),
        "step": ((), np.dtype("i4")), "is_final": ((), np.dtype(bool)),
    })  # fmt: skip
    usage = SimpleNamespace(free=240)
    monkeypatch.setattr(minari_directory.shutil, "disk_usage", lambda path: usage)
    check_space(buffer, 10, tmp_path)  # 24 bytes a row
    with pytest.raises(DiskFullError, match="takes 264 bytes or more, and 240 are free"):
        check_space(buffer, 11, tmp_path)
    assert shutil.disk_usage is minari_directory.shutil.disk_usage


def test_an_error_leaves_the_namespace_that_another_export_has_just_made(root):
    namespace = root / "deep" / "namespace_metadata.json"

    def fail():
        with new_dataset("deep/pong-v0"):
            namespace.parent.mkdir()
            namespace.write_text("{}")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert namespace.exists()


def test_one_that_comes_at_the_last_moment_is_named(root, monkeypatch):
    make, wanted = minari_directory._make_namespaces, "deep/pong-v0"

    def overtaken(*arguments):
        make(*arguments)
        write(root, wanted, "theirs")

    monkeypatch.setattr(minari_directory, "_make_namespaces", overtaken)

    def export():
        with new_dataset(wanted) as own:
            write(own, wanted)

    with pytest.raises(InvalidInputError, match=f"{wanted} is there already"):
        export()
    assert (root / wanted / "data" / "main.txt").read_text() == "theirs"


def test_an_export_waits_for_the_root_while_another_thread_has_it_elsewhere(root, tmp_path):
    places = []

    def export():
        with new_dataset("pong-v0") as own:
            write(own, "pong-v0")
            places.append(own)

    thread = threading.Thread(target=export)
    with datasets_below(tmp_path / "hidden"):
        thread.start()
        thread.join(0.2)  # without the lock it would be done by then
    thread.join()
    assert [place.is_relative_to(root) for place in places] == [True]
    assert (root / "pong-v0" / "data" / "main.txt").exists()
