"""`diskreplay warmup` and an ordinary run find what the other has compiled."""

import ctypes
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.effort import PROFILE
from tests.test_jit import homeless, run

pytestmark = pytest.mark.skipif(
    PROFILE == "same", reason="compiles all kernels: HYPOTHESIS_PROFILE=whole"
)

EVERYTHING = str(Path(__file__).resolve().parents[1] / "everything.py")
WARMUP = ["-m", "diskreplay", "warmup", "--json"]
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE = 24, 1


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("package")
    return homeless(tmp_path, HOME=os.devnull, NUMBA_DEBUG_CACHE="1")


@pytest.fixture(scope="module")
def warmed(environment, tmp_path_factory):
    """A directory that `warmup` has filled."""
    kept = tmp_path_factory.mktemp("kept")
    done = warm_up(kept, environment)
    assert done["found"] == 0
    assert done["compiled"] >= 20
    assert all(directory.startswith(str(kept)) for directory in done["directories"])
    return kept, done["compiled"]


def warm_up(kept, environment):
    quiet = {**environment, "NUMBA_DEBUG_CACHE": "0", "NUMBA_CACHE_DIR": str(kept)}
    done = run(kept, quiet, *WARMUP)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def use_everything(directory, kept, environment, prepare=None):
    """Names of the kernels that one process compiles which calls each of them."""
    environment = {**environment, "NUMBA_CACHE_DIR": str(kept)}
    done = run(directory, environment, "-W", "error::RuntimeWarning", EVERYTHING, prepare=prepare)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    compiled = [line for line in lines if not line.startswith("[cache]")]
    assert sum("data saved to" in line for line in lines) >= len(compiled)  # is it still said?
    return compiled, [line for line in lines if "saved" in line]


def state(kept):
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for path in kept.rglob("*")
        if path.suffix in (".nbi", ".nbc")
    }


def test_warmup_finds_all_that_a_run_compiled(warmed, environment, tmp_path):
    """A run compiles some of all, kernels and parts, that are forgotten again."""
    kept, kernels = tmp_path / "kept", warmed[1]
    shutil.copytree(warmed[0], kept)
    forgotten = sorted(kept.rglob("*.nbi"))[::4]
    for index in forgotten:
        index.unlink()
    compiled, _ = use_everything(tmp_path, kept, environment)
    assert len(compiled) >= len(forgotten) >= 5
    before = state(kept)
    done = warm_up(kept, environment)
    assert (done["compiled"], done["found"]) == (0, kernels)
    assert state(kept) == before


def test_warmup_finds_what_it_compiled(warmed, environment):
    kept, kernels = warmed
    done = warm_up(kept, environment)
    assert (done["compiled"], done["found"]) == (0, kernels)


@pytest.mark.skipif(sys.platform != "linux", reason="root is refused by no mode")
def test_a_run_of_a_user_who_may_only_read_finds_all_that_warmup_compiled(
    warmed, environment, tmp_path
):
    """And is not warned: warnings are errors there."""
    kept, _ = warmed
    directories = [kept, *(path for path in kept.rglob("*") if path.is_dir())]
    options = {**environment, "NUMBA_CACHE_DIR": str(kept)}
    for path in directories:
        path.chmod(0o555)
    try:
        probe = f"open({str(kept / 'new')!r}, 'w')"
        refused = run(tmp_path, options, "-c", probe, prepare=_obey_modes)
        assert "PermissionError" in refused.stderr
        before = state(kept)
        found = use_everything(tmp_path, kept, environment, prepare=_obey_modes)
        assert found == ([], [])
    finally:
        for path in directories:
            path.chmod(0o755)
    assert state(kept) == before


def _obey_modes() -> None:
    """In the child: root, too, is refused by the modes of files."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
