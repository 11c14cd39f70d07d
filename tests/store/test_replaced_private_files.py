"""A private file of a killed store that is something else now: no opening does with fewer rows."""

import os
import re
import shutil

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.errors import DiskReplayError, StoreError

RECORDED, ROWS = 20, 27
LIVE = "is_final/live"


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A store as a kill leaves it, with rows that its record does not name, of which some are in an
    open shard and some in the tail."""
    place = tmp_path_factory.mktemp("killed")
    with diskreplay.ReplayBuffer(
        place / "live", observation_space=Box(0, 255, (4,), "uint8"), action_space=Discrete(3),
        capacity=100, segment_rows=16, compressor="lz4",
        extras={"note": ((1024,), "int64", "mutable")},
    ) as buffer:  # fmt: skip

        def add(rows):
            for row in range(rows):
                frame = np.full(4, buffer.add_count, np.uint8)
                buffer.add(frame, row % 3, 1.0, False, False, note=np.full(1024, 7))

        add(RECORDED)
        buffer.save(place / "saved", 1)  # seals what may be replaced, and shares it
        buffer.flush()
        maintenance = buffer._rows.store.maintenance
        with maintenance.lock:
            maintenance._record_due += 600  # nothing is recorded, however slow the machine is
            add(ROWS - RECORDED)
            buffer.write("note", np.arange(3), np.full((3, 1024), 100))
            maintenance.run()
            shutil.copytree(place / "live", place / "killed")
    return place / "killed"


def private_files(store):
    """Without spares: they have no rows, and whether the maintenance thread had one ready when the
    store was copied depends on how busy the machine was."""
    return sorted(p.relative_to(store).as_posix() for p in (store / LIVE).rglob("*")
                  if p.is_file() and not p.name.startswith("spare."))  # fmt: skip


def written_copy(store):
    """The copy of a segment that has the values which were written to it last."""
    (found,) = (n for n in private_files(store) if "/open." in n and "/open.0/" not in n)
    return found


def put_link(path, aside):
    path.symlink_to(aside)


def put_link_to_nowhere(path, aside):
    path.symlink_to(aside.with_name("nowhere"))


def put_link_to_itself(path, aside):
    path.symlink_to(path)


def put_fifo(path, aside):
    os.mkfifo(path)


def put_directory(path, aside):
    path.mkdir()


def put_empty_file(path, aside):
    path.touch()


def put_nothing(path, aside):
    pass


INSTEAD = [
    put_nothing,
    put_empty_file,
    put_link,
    put_link_to_nowhere,
    put_link_to_itself,
    put_fifo,
    put_directory,
]


def rows_of(store, mode):
    with diskreplay.open(store, mode=mode) as buffer:
        assert buffer.bounds.tolist() == [[0, ROWS]]
        assert buffer.take("observation", np.arange(ROWS))[:, 0].tolist() == list(range(ROWS))
        assert buffer.take("note", np.arange(4))[:, 9].tolist() == [100, 100, 100, 7]


def test_the_store_has_every_kind_of_private_file(killed):
    """What is tried below is what there is."""
    names = private_files(killed)
    assert {f"{LIVE}/lock", f"{LIVE}/state", f"{LIVE}/tail.0"} <= set(names)
    assert sum("/open." in name for name in names) >= 2  # a shard, and a copy to write values to


@pytest.mark.costly(2)
@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("instead", INSTEAD)
def test_an_opening_has_all_rows_or_names_the_file(tmp_path, killed, instead, mode):
    for name in private_files(killed):
        if instead is put_nothing and name == written_copy(killed):
            continue  # nothing says that values were written
        store, aside = tmp_path / "store", tmp_path / "aside"
        shutil.copytree(killed, store)
        (store / name).rename(aside)
        instead(store / name, aside)
        # The lock is a writer's alone, and has nothing in it.
        harmless = instead in (put_empty_file, put_nothing)
        if name == f"{LIVE}/lock" and (mode == "r" or harmless):
            rows_of(store, mode)
        else:
            with pytest.raises(DiskReplayError, match=re.escape(name)):
                rows_of(store, mode)
        verify(store)  # whatever it finds
        if instead is put_directory:
            (store / name).rmdir()
        else:
            (store / name).unlink(missing_ok=True)
        aside.rename(store / name)
        rows_of(store, mode)  # nothing is lost
        shutil.rmtree(store)


@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("instead", INSTEAD)
def test_an_opening_needs_no_spare(tmp_path, killed, instead, mode):
    """Only a directory is refused, by a writer, which has to remove it."""
    store, aside = tmp_path / "store", tmp_path / "aside"
    shutil.copytree(killed, store)
    aside.write_bytes(b"somebody else's")
    instead(store / LIVE / "spare.7.99", aside)
    if instead is put_directory and mode == "a":
        with pytest.raises(DiskReplayError, match=r"spare\.7\.99"):
            rows_of(store, mode)
        (store / LIVE / "spare.7.99").rmdir()
    rows_of(store, mode)
    verify(store)
    assert aside.read_bytes() == b"somebody else's"


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_linked_directory_is_refused_by_name(tmp_path, killed, mode):
    store = tmp_path / "store"
    shutil.copytree(killed, store)
    (store / LIVE).rename(tmp_path / "aside")
    (store / LIVE).symlink_to(tmp_path / "aside")
    with pytest.raises(StoreError, match=LIVE):
        rows_of(store, mode)
    (store / LIVE).unlink()
    (tmp_path / "aside").rename(store / LIVE)
    rows_of(store, mode)


def test_verify_names_a_segment_that_is_a_link_to_itself(tmp_path, killed):
    store = tmp_path / "store"
    shutil.copytree(killed, store)
    segment = store / "reward" / "c.0.0"
    segment.unlink()
    segment.symlink_to(segment)
    assert segment in {finding.path for finding in verify(store).findings}
