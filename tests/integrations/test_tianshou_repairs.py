"""Tianshou's buffers on disk after a repair: nothing is drawn, or led to, that was not recorded."""

import shutil
import warnings

import numpy as np
import pytest

pytest.importorskip("tianshou")

from diskreplay.check.repair import repair
from diskreplay.check.verify import verify
from tests.check.damaged import flip, segments
from tests.integrations.tianshou_twins import KINDS, make, player


def rows_of(buffer):
    """All transitions, by what was seen: the other values, and what came next."""
    indices = buffer.sample_indices(0)
    buffer._restore_originals()  # rewards that were relabelled
    found, names = {}, ["act", "rew", "terminated", "truncated", "done"]
    for at, after in zip(indices.tolist(), buffer.next(indices).tolist(), strict=True):
        row = {name: np.array(buffer._meta[name][at]) for name in names}
        if "obs_next" in buffer._meta.get_keys():
            row["obs_next"] = seen(buffer, at, "obs_next")
        came = None if after == at else seen(buffer, after)
        found[seen(buffer, at)] = row, came
    assert len(found) == len(indices)  # each one once
    return found


def seen(buffer, at, key="obs"):
    value = buffer._meta[key]
    value = value["observation"] if hasattr(value, "get_keys") else value
    return np.array(value[at]).tobytes()


HARM = [("frames", 0.5), ("frames", 0.99), ("sequence_number", 0.9), ("slot", 0.1)]


@pytest.mark.costly(37)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [17, 90])
@pytest.mark.parametrize(("name", "where"), HARM)
def test_what_is_set_aside_is_not_there(tmp_path, kind, steps, name, where):
    named, options = KINDS[kind]
    disk = {"path": tmp_path / "store", "min_bytes": 1024}
    if "slides" in kind:
        disk |= {"next_of": True, "stack": 3}
    buffer, game = make(named, disk, **options), player(kind)
    for _ in range(steps):
        game.step(buffer)
    recorded, count = rows_of(buffer), len(buffer)
    if hasattr(buffer, "update_weight"):
        buffer.update_weight(buffer.sample_indices(0), np.arange(1.0, len(recorded) + 1))
    buffer.close()
    store = tmp_path / "store"
    if name == "frames":
        fields = [each.parent.name for each in store.glob("*/c.*")] + [
            f"observation/{each.parent.name}" for each in store.glob("observation/*/c.*")
        ]
        name = next(each for each in sorted(fields) if each.startswith(("obs", "observation")))
    path = segments(store, name)[0]
    flip(path, int(path.stat().st_size * where))
    shutil.copytree(store, tmp_path / "damaged")
    assert repair(store).aside is not None or verify(store).clean
    before = store.stat().st_ino
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = make(named, disk, **options)
    moved = store.stat().st_ino != before
    assert [str(each.message).split(",")[0] for each in said] == [
        f"{store}: transitions are missing"
    ] * moved
    assert all(f"The {len(made)} that are left" in str(each.message) for each in said)
    check(made, recorded, count)
    made.close()
    assert verify(store).clean
    for _ in range(2):  # opened again, and filled again
        made = make(named, disk, **options)
        check(made, recorded, count)
        made.close()
    made = make(named, disk, **options)
    for _ in range(100):
        game.step(made)
    full, there = rows_of(made), made._there
    assert len(full) == len(made.sample_indices(0))
    assert all(there.course(lane).is_whole for lane in range(len(made._parts())))
    made.close()


def check(made, recorded, count):
    assert len(made) <= count
    indices = made.sample_indices(0)
    assert made._there.slots.used[indices].all()
    drawn = made.sample_indices(200) if len(indices) else indices
    assert np.isin(drawn, indices).all()
    for key, (row, came) in rows_of(made).items():
        wanted, after = recorded[key]
        cut = bool(row["truncated"]) and not wanted["truncated"]
        for name, value in wanted.items():
            assert np.array_equal(row[name], value) or (cut and name in ("truncated", "done")), name
        assert came is None or came == after
        # Nothing is cut but where what came next is not there.
        assert not cut or after is None or after not in recorded or came is None
