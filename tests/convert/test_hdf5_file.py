"""HDF5's files, where the disk takes them and where it does not."""

import errno
import io
import os
import random
import subprocess
from types import SimpleNamespace

import pytest

from diskreplay.convert.hdf5_file import UnrefusingFile, telling_nothing
from tests import disks


@pytest.mark.parametrize("takes", [10**6, 0, 3, 500])
def test_it_is_a_file_whatever_the_disk_takes(tmp_path, monkeypatch, takes):
    """The same calls give the same bytes as one in memory does."""
    left, pwrite = [takes], os.pwrite

    def writes_so_many(fd, data, at):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = min(len(data), left[0])
        left[0] -= done
        return pwrite(fd, data[:done], at)

    monkeypatch.setattr(os, "pwrite", writes_so_many)
    (tmp_path / "a").touch()
    file, model, rng = UnrefusingFile(tmp_path / "a"), io.BytesIO(), random.Random(takes)
    for _ in range(200):
        assert file.seek(0, os.SEEK_END) == model.seek(0, os.SEEK_END)
        at = rng.randrange(300)
        assert file.seek(at) == model.seek(at) == file.tell()
        if rng.random() < 0.5:
            data = rng.randbytes(rng.randrange(40))
            assert file.write(memoryview(data)) == model.write(data)
        elif rng.random() < 0.8:
            size = rng.randrange(40)
            assert file.read(size) == model.read(size)
        else:
            size = model.seek(0, os.SEEK_END) + rng.randrange(9)
            file.truncate(size)
            model.write(bytes(size - model.tell()))
        file.flush()
    assert (file.refused is None) == (takes == 10**6)
    file.seek(0)
    assert file.read(1000) == model.getvalue()
    if file.refused is None:
        assert (tmp_path / "a").read_bytes() == model.getvalue()
        file.check()
    else:
        with pytest.raises(OSError, match="No space left"):
            file.check()
    file.close()
    file.seek(0)
    file.write(b"later")  # to no file that has the number of this one now
    assert file.refused is not None


def test_another_format_writes_as_it_does():
    storage = SimpleNamespace(FORMAT="parquet")
    with telling_nothing(storage) as check:
        check()
    assert vars(storage) == {"FORMAT": "parquet"}


ON_A_FULL_DISK = """
import os, sys
from pathlib import Path
import numpy as np
from gymnasium.spaces import Box, Discrete
import diskreplay
from diskreplay.convert import minari
from diskreplay.errors import DiskFullError
from tests import disks

minari.check_space = lambda *_arguments: None  # as where others fill the disk meanwhile
base, size, refused = Path(sys.argv[1]), 8, 0
with diskreplay.ReplayBuffer(
    None, observation_space=Box(0, 255, (40,), "uint8"), action_space=Discrete(2), capacity=300
) as buffer:
    for row in range(300):
        buffer.add(np.full(40, row % 256, np.uint8), row % 2, float(row), row % 20 == 19, False)
    while True:
        place = base / str(size)
        place.mkdir()
        disks.mount(place, f"size={size}k")
        os.environ["MINARI_DATASETS_PATH"] = str(place)
        try:
            assert len(minari.to_minari(buffer, "aa/few-v0")) == 15
            break
        except DiskFullError:
            refused += 1
        assert list(place.iterdir()) == []
        size = size * 5 // 4
print(refused)
"""


@pytest.mark.costly
@pytest.mark.skipif(not disks.can_mount(), reason="may not mount")
def test_on_a_full_disk_a_data_set_is_whole_or_not_there(tmp_path):
    pytest.importorskip("minari")
    pytest.importorskip("h5py")
    command, options = disks.alone("-c", ON_A_FULL_DISK, tmp_path)
    done = subprocess.run(command, capture_output=True, check=False, **options)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 10
