"""HER buffers that are written to while the goals of a sample are relabelled."""

import numpy as np
import pytest

pytest.importorskip("tianshou")

from tianshou.data import Batch

from tests.integrations.tianshou_twins import KINDS, alike, drawn, make, player


def relabelled(kind, tmp_path, least, seed=0):
    """Ours and Tianshou's own, full of the same transitions, after a sample of each."""
    name, options = KINDS[kind]
    disk = make(name, {"path": tmp_path / "replay", "min_bytes": least}, **options)
    plain, plays = make(name, **options), player(kind, seed)
    for _ in range(40):
        plays.step(disk, plain)
    for buffer in (disk, plain):
        drawn(buffer, 16, seed)
        assert any(part._altered_indices.size for part in getattr(buffer, "buffers", [buffer]))
    alike(disk._meta[np.arange(disk.maxsize)], plain._meta[np.arange(disk.maxsize)])
    return disk, plain


def others(kind, count):
    """Rows that no episode has, in a batch as `set_batch` takes it."""
    plays = player(kind, 7)
    seen = [Batch.stack([Batch(plays.observation()) for _ in range(count)]) for _ in range(2)]
    flags = np.zeros(count, np.bool_)
    made = Batch(
        obs=seen[0], act=np.full(count, 9), rew=np.arange(count) + 500.0, terminated=flags,
        truncated=flags.copy(), done=flags.copy(), info=Batch(time=np.arange(count) / 4),
    )  # fmt: skip
    if not KINDS[kind][1].get("ignore_obs_next"):
        made.obs_next = seen[1]
    return made


def check(disk, plain, kind, tmp_path, least):
    """All rows: as they are shown, after what was relabelled is taken back, and from the disk."""
    rows = np.arange(disk.maxsize)
    alike(disk._meta[rows], plain._meta[rows])
    for buffer in (disk, plain):
        buffer._restore_cache()
    alike(disk._meta[rows], plain._meta[rows])
    disk.close()
    name, options = KINDS[kind]
    again = make(name, {"path": tmp_path / "replay", "min_bytes": least}, **options)
    found, wanted = again._meta[rows], plain._meta[rows]
    for each in (found, wanted):  # what was under way is over when it is opened again
        each.pop("truncated")
        each.pop("done")
    alike(found, wanted)
    again.close()


KINDS_OF_GOALS = pytest.mark.parametrize("kind", ["goals", "vector of goals"])
LEAST = pytest.mark.parametrize("least", [16, 1024])


@LEAST
@KINDS_OF_GOALS
def test_a_batch_that_is_set_after_a_sample(tmp_path, kind, least):
    disk, plain = relabelled(kind, tmp_path, least)
    batch = others(kind, disk.maxsize)
    disk.set_batch(batch)
    plain.set_batch(batch)
    check(disk, plain, kind, tmp_path, least)


@LEAST
@KINDS_OF_GOALS
@pytest.mark.parametrize("way", ["rows", "one key"])
def test_rows_that_are_set_after_a_sample_stay(tmp_path, kind, least, way):
    """Tianshou's own would set old values over them, unless it takes back the goals before."""
    disk, plain = relabelled(kind, tmp_path, least)
    plain._restore_cache()
    at = np.arange(disk.maxsize)[1::2]
    for buffer in (disk, plain):
        if way == "rows":
            buffer._meta[at] = others(kind, disk.maxsize)[at]
        else:
            buffer.set_array_at_key(at + 700.0, "rew", at)
    check(disk, plain, kind, tmp_path, least)


@LEAST
@KINDS_OF_GOALS
def test_what_was_relabelled_is_not_on_the_disk(tmp_path, kind, least):
    disk, plain = relabelled(kind, tmp_path, least)
    disk.flush()
    check(disk, plain, kind, tmp_path, least)
