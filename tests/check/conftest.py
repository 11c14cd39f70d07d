"""For tests of checks and repairs."""

import shutil

import numpy as np
import pytest

from tests.check.damaged import (
    STEPS,
    columns,
    make,
    transitions,
)


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """A closed store that has wrapped, a checkpoint of it on its own inodes, and its content."""
    root = tmp_path_factory.mktemp("original")
    with make(root / "store") as buffer:
        for start in range(0, STEPS, 500):
            buffer.extend(columns(start, start + 500, 13))
        buffer.update_priorities(buffer.sample(200).id, np.linspace(0.1, 9, 200))
        buffer.save(root / "saved", 5)
        recorded = transitions(buffer)
    shutil.copytree(root / "saved" / "replay_ckpt.5", root / "copy")
    return root, recorded


@pytest.fixture
def store(original, tmp_path):
    shutil.copytree(original[0] / "store", tmp_path / "store")
    return tmp_path / "store"
