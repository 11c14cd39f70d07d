"""Exports that the disk refuses, and data sets of LeRobot in which a byte rots."""

import contextlib
import resource
import shutil

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

pytest.importorskip("pyarrow")
pytest.importorskip("pandas")

import diskreplay
from diskreplay.convert.lerobot import from_lerobot, to_lerobot
from diskreplay.convert.npz import to_npz
from diskreplay.convert.parquet import from_parquet, to_parquet
from diskreplay.convert.table import to_csv
from diskreplay.errors import DiskFullError, FormatError, StorageError
from tests.effort import effort

WRITERS = {"npz": to_npz, "csv": to_csv, "parquet": to_parquet, "lerobot": to_lerobot}


@pytest.fixture
def buffer(tmp_path):
    rng = np.random.default_rng(0)
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Box(-9, 9, (40,), "float64"),
        action_space=Discrete(2), capacity=100,
    ) as made:  # fmt: skip
        for number in range(60):
            end = number % 10 == 9
            seen, led = rng.random(40), rng.random(40) if end else None
            made.add(seen, number % 2, float(number), end, False, led)
    with diskreplay.open(tmp_path / "store") as opened:
        yield opened


@contextlib.contextmanager
def files_of_at_most(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_of_hdf5_that_may_not_grow(tmp_path, buffer, monkeypatch):
    """HDF5 itself cannot close it, and takes the process with it in the end."""
    pytest.importorskip("h5py")
    to_minari = pytest.importorskip("diskreplay.convert.minari").to_minari
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    for size in (40, 4000, 30_000):
        with (
            files_of_at_most(size),
            pytest.raises(StorageError, match="aa/few-v0: cannot write it"),
        ):
            to_minari(buffer, "aa/few-v0")
        assert list((tmp_path / "sets").iterdir()) == []
    assert to_minari(buffer, "aa/few-v0").total_steps == 60


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_may_not_grow(tmp_path, buffer, kind):
    """The system's own error, of Python and of pyarrow, is one of ours; nothing is left."""
    with files_of_at_most(4000), pytest.raises(StorageError, match=f"out.{kind}: cannot write it"):
        WRITERS[kind](buffer, tmp_path / f"out.{kind}")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    WRITERS[kind](buffer, tmp_path / f"out.{kind}")


def test_files_that_may_not_grow(tmp_path, buffer):
    with files_of_at_most(4000), pytest.raises(StorageError, match="out: cannot write it"):
        to_parquet(buffer, tmp_path / "out", partition="episodes")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_disk_that_is_full(tmp_path, buffer, monkeypatch):
    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("zipfile.ZipFile.open", full)
    with pytest.raises(DiskFullError, match="free some space"):
        to_npz(buffer, tmp_path / "out.npz")


def rows(buffer):
    ids = np.arange(*buffer.bounds[0])
    return {name: buffer.take(name, ids).tobytes() for name in buffer.fields}


@pytest.mark.costly(1)
@pytest.mark.parametrize("kind", ["parquet", "lerobot"])
def test_no_byte_that_rots_gives_other_rows(tmp_path, buffer, kind):
    """Of files that we wrote: pages have checksums."""
    out, rng = tmp_path / f"out.{kind}", np.random.default_rng(3)
    WRITERS[kind](buffer, out)
    read = {"parquet": from_parquet, "lerobot": from_lerobot}[kind]
    with read(out, tmp_path / "whole") as made:
        whole = rows(made)
    parts = [out] if out.is_file() else sorted(out.glob("d*/**/*.parquet"))
    damaged = 0
    for number in range(effort(40, 150)):
        path = parts[number % len(parts)]
        data = bytearray(before := path.read_bytes())
        data[rng.integers(len(data))] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        try:
            with read(out, tmp_path / "again") as made:
                assert rows(made) == whole
        except FormatError:
            damaged += 1
        finally:
            path.write_bytes(before)
            shutil.rmtree(tmp_path / "again", ignore_errors=True)
    assert damaged
