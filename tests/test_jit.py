"""Kernels compile and run whatever becomes of the directory that keeps them."""

import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from diskreplay import jit

ROOT = Path(__file__).resolve().parent.parent
SOURCE = """
from diskreplay.jit import kernel

@kernel
def twice(number):
    return 2 * number
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """``load()`` imports a module with a kernel anew, as another process would; its directory."""
    module = tmp_path / "module" / "doubling.py"
    module.parent.mkdir()
    module.write_text(SOURCE)
    monkeypatch.setattr(jit, "_warned", False)
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "kept"))
    # Numba's other choices: beside the module, and the user's own.
    (module.parent / "__pycache__").write_text("a file where a directory would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(module))

    def load():
        spec = importlib.util.spec_from_file_location("doubling", module)
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded.twice

    return load, tmp_path / "kept"


def kept(directory, suffix):
    return sorted(directory.rglob(f"*{suffix}"))


def hits(twice):
    """The result of a call, and whether it was found compiled."""
    assert twice(21) == 42
    return sum(twice.stats.cache_hits.values()) == 1


def test_the_next_process_finds_it_compiled(made):
    load, directory = made
    assert not hits(load())
    assert len(kept(directory, ".nbi")) == len(kept(directory, ".nbc")) == 1
    again = load()
    assert hits(again)
    assert str(directory) in again._cache.cache_path
    assert again._cache.kept is None


def test_without_any_directory_there_is_one_warning(made):
    load, directory = made
    directory.write_text("a file where a directory would be")
    first, second = load(), load()
    with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR") as said:
        assert [hits(first), hits(second)] == [False, False]
    assert len(said) == 1
    assert first._cache.cache_path is None
    assert first._cache.kept is False


@pytest.mark.parametrize("what", ["garbage", "cut", "empty", "another version", "another class"])
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_rotten_files_are_made_anew(made, suffix, what):
    load, directory = made
    hits(load())
    (path,) = kept(directory, suffix)
    whole = path.read_bytes()
    path.write_bytes(
        {
            "garbage": b"\x80\x05garbage" * 9, "cut": whole[: len(whole) // 2], "empty": b"",
            "another version": pickle.dumps("0.0.1") + b"what that version wrote",
            "another class": b"cno.such.module\nThing\n.",
        }[what]
    )  # fmt: skip
    assert not hits(load())
    assert hits(load())


def test_a_directory_that_fills_up(made, monkeypatch):
    load, directory = made

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("numba.core.caching.IndexDataCacheFile._save_data", full)
        with pytest.warns(RuntimeWarning, match="No space left on device"):
            assert not hits(load())
    assert not kept(directory, ".nbc")
    assert not hits(load())  # not what the index would have named
    assert hits(load())


def test_what_an_older_source_left_is_not_taken_when_the_disk_is_full(made, monkeypatch):
    """Numba writes the index first: it would name the old kernel's file as the new one's."""
    load, directory = made
    hits(load())
    module = directory.parent / "module" / "doubling.py"
    module.write_text(SOURCE.replace("2 *", "number - number + 3 *"))

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("numba.core.caching.IndexDataCacheFile._save_data", full)
        with pytest.warns(RuntimeWarning):
            assert load()(5) == 15
    assert load()(5) == 15


def test_a_directory_that_can_only_be_read_is_read(made, monkeypatch):
    """As the one of an image, that another user runs."""
    load, directory = made
    hits(load())
    before = [path.read_bytes() for path in kept(directory, ".nb?")]

    def refused(*_arguments, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("numba.core.caching.tempfile.TemporaryFile", refused)
    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._open_for_write", refused)
    found = load()
    assert hits(found)
    assert found._cache.cache_path is None
    assert [path.read_bytes() for path in kept(directory, ".nb?")] == before


def test_an_index_that_cannot_be_read_and_not_be_replaced(made, monkeypatch):
    load, _directory = made
    hits(load())

    def refused(*_arguments, **_options):
        raise PermissionError(13, "Permission denied", "somebody's index")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._load_index", refused)
    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._open_for_write", refused)
    with pytest.warns(RuntimeWarning, match=r"somebody's index.*NUMBA_CACHE_DIR"):
        assert not hits(load())


@pytest.fixture
def open_path():
    """As `tmp_path`, and others may enter it."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("mode", [0o000, 0o755])
def test_a_directory_of_another_user(open_path, mode):
    """Root compiled with ``sudo``; the user cannot read what is kept, or not write to it."""
    tmp_path = open_path
    module = tmp_path / "doubling.py"
    module.write_text(SOURCE)
    (tmp_path / "__pycache__").write_text("")
    code = f"""
import os, sys, numba, warnings
from diskreplay import jit
assert numba.njit(lambda: 1)() == 1  # what is imported late: it may lie where only root may look
sys.path.insert(0, {str(tmp_path)!r})
import doubling
os.setuid(65534)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert doubling.twice(21) == 42
print(sum(doubling.twice.stats.cache_hits.values()), len(said), *said)
"""
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "kept"), "XDG_CACHE_HOME": os.devnull,
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    as_root = run(tmp_path, environment, "-c", code.replace("os.setuid(65534)", ""))
    assert as_root.stdout.split() == ["0", "0"], as_root.stderr
    for directory in [*tmp_path.rglob("kept/*/"), tmp_path / "kept"]:
        directory.chmod(mode)
    as_user = run(tmp_path, environment, "-c", code)
    if mode:
        assert as_user.stdout.split() == ["1", "0"], as_user.stderr
    else:
        assert as_user.stdout.startswith("0 1 "), as_user.stderr
        assert "NUMBA_CACHE_DIR" in as_user.stdout


def homeless(tmp_path, **more):
    """An environment without a home, for a copy of the package beside which nothing can be made."""
    shutil.copytree(
        ROOT / "diskreplay", tmp_path / "diskreplay", ignore=shutil.ignore_patterns("__pycache__")
    )
    for directory in [tmp_path / "diskreplay", *(tmp_path / "diskreplay").rglob("*/")]:
        if directory.is_dir():
            (directory / "__pycache__").write_text("")
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "NUMBA_CACHE_DIR")}
    environment |= {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": os.devnull}
    return environment | {"PYTHONDONTWRITEBYTECODE": "1", **more}


def test_commands_and_buffers_without_any_cache(tmp_path):
    environment = homeless(tmp_path, HOME=os.devnull)
    code = """
import numpy as np, diskreplay
from gymnasium.spaces import Box, Discrete
space = Box(0, 255, (84, 84), "uint8")
with diskreplay.PrioritizedReplayBuffer(
    "store", observation_space=space, action_space=Discrete(3), capacity=500
) as buffer:
    for i in range(40):
        buffer.add(space.sample(), i % 3, 0.5, i % 9 == 8, False)
    buffer.update_priorities(buffer.sample(8).id, np.ones(8))
    buffer.save("saved", 1)
"""
    done = [run(tmp_path, environment, "-c", code)]
    for command in (["stats", "store"], ["verify", "store"], ["show", "store", "3"]):
        done.append(run(tmp_path, environment, "-m", "diskreplay", *command))
    for one in done:
        assert one.returncode == 0, one.stderr
        assert "Traceback" not in one.stderr
        assert one.stderr.count("NUMBA_CACHE_DIR") == 1


def run(directory, environment, *arguments):
    return subprocess.run(
        [sys.executable, *arguments], cwd=directory, env=environment, capture_output=True,
        text=True, timeout=600,
    )  # fmt: skip
