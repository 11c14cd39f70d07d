"""Kernels compile and run whatever becomes of the directory that keeps them."""

import importlib.util
import os
import pickle
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from diskreplay import jit
from diskreplay.cli import warmup
from tests.effort import PROFILE

ROOT = Path(__file__).resolve().parent.parent
SOURCE = """
from diskreplay.jit import kernel

@kernel("int64")
def twice(number):
    return 2 * number
"""
SUMMING = """
from diskreplay.jit import int64, int64s, kernel, part, pointer

@part(int64, int64s, int64)
def total(numbers, count):
    found = 0
    for i in range(count):
        found += numbers[i]
    return found

@kernel("int64[::1]")
def of_all(numbers):
    return total(pointer(numbers), len(numbers))

@kernel("int64[::1]")
def of_all_but_one(numbers):
    return total(pointer(numbers), len(numbers) - 1)
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

    before = dict(jit.kernels)
    yield load, tmp_path / "kept"
    for kernel in set(jit.kernels) - set(before):
        del jit.kernels[kernel]


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


@pytest.mark.parametrize("found", [False, True])
def test_ctrl_c_waits_until_it_is_compiled_or_loaded(made, monkeypatch, found):
    """Else LLVM's lock stayed held, for ever, or the process died of a segmentation fault."""
    load, _directory = made
    if found:
        assert not hits(load())
    twice, begun = load(), jit.KernelCache.load_overload

    def interrupted(cache, *arguments):
        signal.raise_signal(signal.SIGINT)
        return begun(cache, *arguments)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(jit.KernelCache, "load_overload", interrupted)
            with pytest.raises(KeyboardInterrupt):
                twice(21)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(twice.overloads) == 1
    assert hits(twice) is found


def test_without_any_directory_there_is_one_warning(made):
    load, directory = made
    directory.write_text("a file where a directory would be")
    first, second = load(), load()
    with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR") as said:
        assert [hits(first), hits(second)] == [False, False]
    assert len(said) == 1
    assert said[0].filename == __file__  # the line that calls it
    found = f"NUMBA_CACHE_DIR is {str(directory)!r}, which cannot be written to"
    assert found in str(said[0].message)
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
@pytest.mark.costly
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


def test_a_part_is_compiled_once_for_all_kernels_that_call_it(tmp_path):
    (tmp_path / "summing.py").write_text(SUMMING)
    code = """
import numpy as np, summing
numbers = np.arange(10)
print(summing.of_all(numbers), summing.of_all_but_one(numbers))
try:
    summing.of_all(numbers[::2])  # a pointer says nothing of steps
except Exception as error:
    print(type(error).__name__)
"""
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "kept"), "PYTHONPATH": f"{ROOT}:{tmp_path}"
    }  # fmt: skip
    for _ in range(2):  # the second finds all three compiled
        done = run(tmp_path, environment, "-c", code)
        assert done.stdout.split() == ["45", "36", "TypingError"], done.stderr
    assert sorted(path.name.split("-")[0] for path in kept(tmp_path / "kept", ".nbc")) == [
        "summing.of_all", "summing.of_all_but_one", "summing.total"
    ]  # fmt: skip


def on_terminal(directory, environment, code):
    """What a process writes to a terminal that is its standard error."""
    ours, theirs = pty.openpty()
    subprocess.run(
        [sys.executable, "-c", code], cwd=directory, env=environment, stderr=theirs, check=True,
        timeout=600,
    )  # fmt: skip
    os.set_blocking(ours, False)
    try:
        return os.read(ours, 1 << 16).decode()
    except BlockingIOError:
        return ""
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("changed", ["inlined", "numbers", "parts"])
@pytest.mark.costly(1)
def test_what_a_kernel_takes_from_another_file_is_not_taken_from_an_older_one(tmp_path, changed):
    """Numba looks at the file of the kernel only."""
    files = {
        "__init__": "",
        "numbers": "FACTOR = 2\n",
        "parts": (
            "from diskreplay.jit import int64, part\n"
            "@part(int64, int64)\ndef more(number):\n    return number + 2\n"
        ),
        "inlined": (
            "from diskreplay.jit import inner\n@inner\ndef less(number):\n    return number - 2\n"
        ),
        "kernels": (
            "from diskreplay.jit import kernel\n"
            "from layers.inlined import less\n"
            "from layers.numbers import FACTOR\n"
            "from layers.parts import more\n"
            "@kernel('int64')\ndef of(number):\n    return more(less(number) * FACTOR)\n"
        ),
    }
    package = tmp_path / "layers"
    package.mkdir()
    for name, source in files.items():
        (package / f"{name}.py").write_text(source)

    def run():
        return subprocess.run(
            [sys.executable, "-B", "-c", "from layers.kernels import of; print(of(10))"],
            cwd=tmp_path,
            env=os.environ | {
                "PYTHONPATH": f"{tmp_path}:{ROOT}", "NUMBA_CACHE_DIR": str(tmp_path / "kept"),
            },
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip

    assert run() == str((10 - 2) * 2 + 2)
    path = package / f"{changed}.py"
    path.write_text(path.read_text().replace("2", "3"))
    assert run() == {"inlined": "16", "numbers": "26", "parts": "19"}[changed]


@pytest.mark.costly
def test_a_terminal_is_told_while_kernels_are_compiled(tmp_path):
    (tmp_path / "doubling.py").write_text(SOURCE)
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "kept"), "PYTHONPATH": f"{ROOT}:{tmp_path}"
    }  # fmt: skip
    code = "import doubling; doubling.twice(1); doubling.twice(1.5)"
    outputs = [on_terminal(tmp_path, environment, code) for _ in range(2)]
    line = jit._LINE + "\r\x1b[K"
    assert outputs == [line + line, ""]  # two specialisations; then they are found
    shutil.rmtree(tmp_path / "kept")
    done = run(tmp_path, environment, "-c", code)
    assert done.stderr == ""


def test_a_terminal_is_not_told_of_parts_that_are_found(tmp_path):
    (tmp_path / "summing.py").write_text(SUMMING)
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "kept"), "PYTHONPATH": f"{ROOT}:{tmp_path}"
    }  # fmt: skip
    code = "import numpy as np, summing; summing.of_all(np.arange(3))"
    line = jit._LINE + "\r\x1b[K"
    assert [on_terminal(tmp_path, environment, code) for _ in range(2)] == [line + line, ""]


def test_every_module_of_kernels_is_warmed_up():
    found = {
        path.relative_to(ROOT / "diskreplay").with_suffix("").as_posix().replace("/", ".")
        for path in (ROOT / "diskreplay").rglob("*.py")
        if "\n@kernel(" in path.read_text()
    }
    assert found == set(warmup.MODULES)


@pytest.mark.costly
def test_warmup_says_where_nothing_can_be_kept(tmp_path):
    environment = homeless(tmp_path, HOME=os.devnull)
    done = run(tmp_path, environment, "-m", "diskreplay", "warmup")
    assert done.returncode == 4
    assert "NUMBA_CACHE_DIR" in done.stderr
    assert "Traceback" not in done.stderr


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


@pytest.mark.skipif(PROFILE == "same", reason="compiles most kernels: HYPOTHESIS_PROFILE=whole")
def test_commands_and_buffers_without_any_cache(tmp_path):
    environment = homeless(tmp_path, HOME=os.devnull)
    code = """
import sys, numpy as np, diskreplay
from gymnasium.spaces import Box, Discrete
space = Box(0, 255, (84, 84), "uint8")
with diskreplay.PrioritizedReplayBuffer(
    "store", observation_space=space, action_space=Discrete(3), capacity=500
) as buffer:
    for i in range(40):
        buffer.add(space.sample(), i % 3, 0.5, i % 9 == 8, False)
    buffer.update_priorities(buffer.sample(8).id, np.ones(8))
    buffer.save("saved", 1)
from diskreplay.cli.app import main
for command in (["stats", "store"], ["verify", "store"], ["show", "store", "3"]):
    sys.argv[1:] = command
    try:
        main()
    except SystemExit as end:
        print("exit code of", command[0] + ":", end.code or 0)
"""
    done = run(tmp_path, environment, "-c", code)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("NUMBA_CACHE_DIR") == 1
    for command in (["stats", "store"], ["verify", "store"], ["show", "store", "3"]):
        assert f"exit code of {command[0]}: 0" in done.stdout
    done = run(tmp_path, environment, "-m", "diskreplay", "stats", "store")
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()  # and nothing of where in the source somebody warned
    assert line.startswith("warning: compiled kernels cannot be kept")


def run(directory, environment, *arguments, prepare=None):
    return subprocess.run(
        [sys.executable, *arguments], cwd=directory, env=environment, capture_output=True,
        text=True, timeout=600, preexec_fn=prepare,
    )  # fmt: skip
