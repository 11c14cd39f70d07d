"""A short run of tools/torture/crowd; a long one is `tools/torture/run crowd --seconds 300`."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

TORTURE = Path(__file__).resolve().parent.parent.parent / "tools" / "torture"
sys.path.insert(0, str(TORTURE))

import crowd  # noqa: E402 - of the tools


@pytest.mark.costly(1)
@pytest.mark.parametrize("compressor", ["lz4", "raw"])
def test_threads(tmp_path, compressor):
    found = crowd.threads(tmp_path / "store", compressor, 0.7)
    assert found["frames"] > 100
    assert found["saved"] >= 1
    assert found["written back"] >= 10


@pytest.mark.costly
def test_processes(tmp_path):
    found = crowd.processes(tmp_path / "store", "lz4", 0.5)
    assert found["readers"] == crowd.READERS
    assert found["wraps"] >= 3
    assert found["frames"] > 100


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_forked_data_loaders(tmp_path):
    found = crowd.loaders(tmp_path / "store", "lz4", 0.1, methods=("fork",))
    assert found["fork"] >= 1
    assert found["batches"] >= 40


def test_a_wrong_frame_is_seen(tmp_path):
    with crowd.make(tmp_path / "store", "raw") as buffer:
        crowd.Adder(buffer)(60)
        batch = buffer.sample(16)
        assert crowd.check(batch) > 16
        batch.observation[3, 0] ^= 1
        with pytest.raises(crowd.Failed, match="the frame at -3"):
            crowd.check(batch)


def test_a_latent_of_another_row_and_half_of_one_are_seen(tmp_path):
    with crowd.make(tmp_path / "store", "raw") as buffer:
        crowd.Adder(buffer)(60)
        assert crowd.write_back(buffer, buffer.sampleable_ids(), 3) > 10
        batch = buffer.sample(16)
        batch.latent[3, 7] += 1
        with pytest.raises(crowd.Failed, match="half written"):
            crowd.check(batch)
        assert crowd.check(batch, is_whole=False) > 16
        batch.latent[3] += crowd.VERSIONS
        with pytest.raises(crowd.Failed, match="the latents of"):
            crowd.check(batch, is_whole=False)


def test_leaks_are_seen(tmp_path):
    before = crowd.resources()
    (tmp_path / "file").write_bytes(bytes(4096))
    held = [np.memmap(tmp_path / "file", mode="r") for _ in range(60)]
    files = [open(tmp_path / "file") for _ in range(3)]  # noqa: SIM115 - they are to leak
    found = crowd.grown(before, crowd.resources())
    assert [line.partition(":")[0] for line in found] == ["open files", "mapped files", "mappings"]
    assert "file" in found[1]
    several = [before] * 5, [crowd.resources()] * 5
    assert len(crowd.grown(*crowd._first_and_last([*several[0], *several[1]]))) == 3
    up_and_down = [before, several[1][0], before, before, before]
    assert crowd.grown(*crowd._first_and_last([*up_and_down, *several[1]])) == []
    assert crowd.grown(*crowd._first_and_last([*several[0], *up_and_down])) == []
    del held
    for file in files:
        file.close()
    assert crowd.grown(before, crowd.resources()) == []
