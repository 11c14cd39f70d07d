"""What is there after a kill, a power cut or a close, beside lists of rows."""

import json
import shutil
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.errors import CapacityError, CorruptSegmentError, FormatError
from diskreplay.store import commit_page, format, private

pytestmark = pytest.mark.usefixtures("no_upkeep")  # a test says when its work is done
ROWS = 8


def make(path, **options):
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 255, (64,), np.uint8), action_space=Discrete(4),
        extras={"state": ((256,), "int64", "mutable")},
        **{"capacity": None, "compressor": {"observation": "lz4"}, "segment_rows": ROWS,
           "num_envs": 2, **options},
    )  # fmt: skip


def add(buffer, rows, envs=(0, 1)):
    for _ in range(rows):
        numbers = buffer.bounds[:, 1]
        mask = np.isin(np.arange(2), envs)
        frames = np.repeat((numbers % 251).astype(np.uint8)[:, None], 64, axis=1)
        state = np.repeat(-numbers[:, None], 256, axis=1)
        no = np.zeros(2, bool)
        buffer.add(frames, numbers % 4, numbers.astype(float), no, no, mask=mask, state=state)


def check(buffer, counts, firsts=(0, 0)):
    assert buffer.bounds.tolist() == [[f, c] for f, c in zip(firsts, counts, strict=True)]
    for env, (first, count) in enumerate(zip(firsts, counts, strict=True)):
        rows = np.arange(first, count)
        ids = rows * 2 + env
        np.testing.assert_array_equal(buffer.take("observation", ids)[:, -1], rows % 251)
        np.testing.assert_array_equal(buffer.take("reward", ids), rows)
        np.testing.assert_array_equal(buffer.take("state", ids)[:, -1], -rows)


def killed(buffer, copy):
    """The store as a kill would leave it now."""
    with buffer._rows.store.maintenance.lock:
        return shutil.copytree(buffer.path, copy)


def another_boot(monkeypatch):
    monkeypatch.setattr(commit_page, "boot_id", lambda: "00000000-0000-4000-8000-000000000000")


@pytest.mark.costly(1)
@pytest.mark.parametrize("compressor", ["lz4", "raw"])
@pytest.mark.parametrize("upkeep", [False, True])
def test_after_a_kill_all_rows_are_there(tmp_path, compressor, upkeep):
    with make(tmp_path / "store", compressor={"observation": compressor}) as buffer:
        for number in range(40):
            add(buffer, 1, (0, 1) if number % 3 else (1,))
            if number in (3, 21, 33):
                counts = buffer.bounds[:, 1].tolist()
                if upkeep:
                    buffer._rows.store.maintenance.run(durable=number == 21)
                copy = killed(buffer, tmp_path / f"copy{number}")
                with make(copy, compressor={"observation": compressor}) as again:
                    check(again, counts)
                    add(again, 11)
                    check(again, [count + 11 for count in counts])
                assert verify(copy).findings == ()


def test_after_a_power_cut_the_rows_of_the_record_are_there(tmp_path, monkeypatch):
    with make(tmp_path / "store") as buffer:
        add(buffer, 21)
        buffer.flush()
        add(buffer, 10)
        buffer._rows.store.maintenance.run()
        copy = killed(buffer, tmp_path / "copy")
    another_boot(monkeypatch)
    with pytest.warns(RuntimeWarning, match=r"at least 20 rows, added after .* row \[21, 21\]"):
        again = make(copy)
    with again:
        check(again, [21, 21])
        add(again, 14)
        check(again, [35, 35])
    assert verify(copy).findings == ()
    with make(copy) as again:  # nothing is said any more
        check(again, [35, 35])


def test_numbers_that_come_again_are_another_generation(tmp_path, monkeypatch):
    with make(tmp_path / "store") as buffer:
        before = buffer.generation
        add(buffer, 5)
        copy = killed(buffer, tmp_path / "copy")
    another_boot(monkeypatch)
    with pytest.warns(RuntimeWarning, match="are dropped"):
        again = make(copy)
    with again:
        assert again.generation != before
    with make(tmp_path / "store") as buffer:
        assert buffer.generation == before


def test_a_store_that_was_closed_is_as_it_was_also_after_a_power_cut(tmp_path, monkeypatch):
    with make(tmp_path / "store") as buffer:
        add(buffer, 21)
    another_boot(monkeypatch)
    with make(tmp_path / "store") as buffer:
        assert buffer._rows.store.was_closed
        check(buffer, [21, 21])


def test_rows_without_a_page_that_knows_of_them_are_said_to_be_lost(tmp_path):
    with make(tmp_path / "store") as buffer:
        page = private.commit_page(tmp_path / "store").read_bytes()
        add(buffer, 20)
        buffer.flush()
        copy = killed(buffer, tmp_path / "copy")
    path = private.commit_page(copy)
    path.write_bytes(page)  # as it was before there were rows
    with pytest.warns(RuntimeWarning, match="damaged, or copied while rows came"):
        again = make(copy)
    with again:
        check(again, [20, 20])


@pytest.mark.parametrize(
    ("figure", "value", "message"),
    [("count", 1 << 62, "rows of an env are counted"), ("first", 99, "rows are kept from"),
     ("first", -1, "rows are kept from"), ("packed", -1, "rows in shards")],
)  # fmt: skip
def test_a_page_that_cannot_be_is_refused(tmp_path, figure, value, message):
    with make(tmp_path / "store") as buffer:
        add(buffer, 20)
        copy = killed(buffer, tmp_path / "copy")
    page = commit_page.CommitPage(private.commit_page(copy), 2, 1, writable=True)
    array = page.packed[0] if figure == "packed" else getattr(page, figure)
    array[1] = value
    del page, array
    with pytest.raises(FormatError, match=message):
        make(copy)


def test_rows_that_were_let_go_of_stay_away(tmp_path):
    with make(tmp_path / "store") as buffer:
        add(buffer, 40)
        buffer.evict([17, 9])
        copy = killed(buffer, tmp_path / "copy")
    with make(copy) as again:
        check(again, [40, 40], [17, 9])
    assert verify(copy).findings == ()


def test_a_capacity_that_does_not_hold_all_rows_changes_nothing(tmp_path):
    with make(tmp_path / "store") as buffer:
        add(buffer, 40)
        copy = killed(buffer, tmp_path / "copy")
    before = (copy / "zarr.json").read_bytes()
    with pytest.raises(CapacityError, match=r"oldest 20 of the 80 rows .* give 80 or more"):
        make(copy, capacity=60)
    assert (copy / "zarr.json").read_bytes() == before
    with make(copy, capacity=60, shrink=True) as again:
        check(again, [40, 40], [10, 10])
        add(again, 3)
        check(again, [43, 43], [13, 13])
    with make(copy, capacity=None) as again:
        check(again, [43, 43], [13, 13])


def test_files_that_no_row_needs_are_removed(tmp_path):
    with make(tmp_path / "store", capacity=48) as buffer:
        add(buffer, 60)
        copy = killed(buffer, tmp_path / "copy")
    (copy / "reward" / "c.0.0.tmp").touch()
    (copy / "reward" / "c.99.0").touch()
    with make(copy, capacity=48) as again:
        check(again, [60, 60], [36, 36])
        assert not (copy / "reward" / "c.0.0.tmp").exists()
        assert not (copy / "reward" / "c.99.0").exists()
    assert verify(copy).findings == ()


@pytest.mark.parametrize("cut", [False, True])
def test_values_that_were_written_again_outlive_a_kill_and_not_a_power_cut(
    tmp_path, monkeypatch, cut
):
    with make(tmp_path / "store") as buffer:
        add(buffer, 20)
        buffer.save(tmp_path / "ck", 1)  # which shares the files
        ids = np.arange(40)
        buffer.write("state", ids, np.full((40, 256), 7))
        copy = killed(buffer, tmp_path / "copy")
    if cut:
        another_boot(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if cut else "error", RuntimeWarning)  # of rows that went
        opened = make(copy)
    with opened as again:
        if cut:  # as the record has them, and the files that it counts on
            count = int(again.bounds[0, 1])
            assert 0 < count <= 20
            check(again, [count, count])
        else:
            assert (again.take("state", ids) == 7).all()
        add(again, 5)
    assert verify(copy).findings == ()


def test_directories_that_are_links_are_refused_before_anything_is_removed(tmp_path):
    with make(tmp_path / "store") as buffer:
        add(buffer, 20)
    reward = tmp_path / "store" / "reward"
    shutil.move(reward, tmp_path / "elsewhere")
    reward.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "store" / "left.tmp").touch()
    with pytest.raises(CorruptSegmentError, match="a link to another directory"):
        make(tmp_path / "store")
    assert (tmp_path / "store" / "left.tmp").exists()


def test_seals_that_make_no_sense_are_refused(tmp_path):
    with make(tmp_path / "store") as buffer:
        add(buffer, 20)
    path = tmp_path / "store" / "reward" / "zarr.json"
    document = format.read_document(path)
    document["attributes"]["diskreplay"]["seals"] = {"0/0": [-1, 2]}
    path.write_bytes(format.encode(document))
    with pytest.raises(FormatError, match="damaged attributes"):
        make(tmp_path / "store")


def test_a_shard_that_was_cut_off_is_refused_after_a_kill_and_made_anew_after_a_power_cut(
    tmp_path, monkeypatch
):
    with make(tmp_path / "store") as buffer:
        add(buffer, 20)
        buffer.flush()  # the rows are in shards in their places, too
        add(buffer, 300)  # more than a tail has room for
        (column,) = buffer._rows.store.packed_columns
        where = column.files.paths.open_segments.relative_to(buffer.path)
        copy = killed(buffer, tmp_path / "copy")
    begun = list((copy / where).iterdir())
    assert begun
    for path in begun:
        path.write_bytes(b"")
    with pytest.raises(CorruptSegmentError, match="0 bytes are too few for its index"):
        make(copy)
    another_boot(monkeypatch)
    with pytest.warns(RuntimeWarning, match="are dropped"):
        again = make(copy)
    with again:
        check(again, [20, 20])


@pytest.mark.parametrize("count", [1 << 28, 1 << 60])
def test_rows_that_a_damaged_record_counts_are_missed_at_the_first_file(tmp_path, count):
    """And memory for them is not asked for."""
    path = tmp_path / "store"
    with make(path) as buffer:
        add(buffer, 20)
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"]["diskreplay"] |= {"count": [20, count], "transitions": [20, count]}
    (path / "zarr.json").write_text(json.dumps(document))
    with pytest.warns(RuntimeWarning, match=r"\[20, 20\] rows are counted"):
        with pytest.raises(CorruptSegmentError, match=r"missing, and with it rows 20 to 23 of env"):
            make(path)
