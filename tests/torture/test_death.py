"""A short run of tools/torture/death; a long one is `tools/torture/run death --kills 2000`."""

import sys
from pathlib import Path

import pytest

from tests.effort import effort

TORTURE = Path(__file__).resolve().parent.parent.parent / "tools" / "torture"
sys.path.insert(0, str(TORTURE))

import death  # noqa: E402 - of the tools

KILLS = effort(4, 16)  # one life of each kind, or of a quarter of them


def born(tmp_path, envs=1, prioritized=False, **options):
    """A life that has its directories, and nothing in them."""
    life = death.Life(tmp_path, envs, "raw", 8, 300, prioritized, 0, **options)
    life.store.parent.mkdir(parents=True)
    life.checkpoints.mkdir()
    return life


def of_forty_rows(tmp_path, **options):
    """A life, its witness, who knows of 40 rows, and these rows, to be recorded."""
    life = born(tmp_path, **options)
    witness = death.Witness(life)
    witness.known.advance([40])
    columns = death.content.rows(0, 0, 40)
    columns["step"] = death.np.array(witness.known.steps[0], "int32")
    columns["latent"] = death.np.zeros((40, 64), "int64")
    return life, witness, columns


def test_killed_writers_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(death, "KILLS_OF_A_LIFE", 1)
    found = death.run(kills=KILLS, seed=3, workers=2)
    assert found["failures"] == []
    assert found["kills"] == KILLS <= len(death.KINDS)
    assert sum(found["killed_in"].values()) == KILLS
    assert found["acknowledged"] > 0
    assert found["verified"] >= 1


def test_what_was_lost_is_seen(tmp_path):
    """The witness believes what the writer said, so a row too few has to show."""
    life, witness, columns = of_forty_rows(tmp_path)
    with death.writer.open_buffer(life) as buffer:
        buffer.extend(columns)
    witness.check()
    witness.known.advance([41])
    with pytest.raises(death.Lost, match=r"rows \[40\], acknowledged \[41\]"):
        witness.check()


def test_what_was_changed_is_seen(tmp_path):
    life, witness, columns = of_forty_rows(tmp_path)
    with death.writer.open_buffer(life) as buffer:
        columns["observation"][17, 3, 3] ^= 1
        buffer.extend(columns)
    with pytest.raises(death.Lost, match=r"observation of env 0, rows \[17\]"):
        witness.check()


def test_a_write_that_was_lost_or_mixed_up_is_seen(tmp_path):
    life, witness, columns = of_forty_rows(tmp_path)
    with death.writer.open_buffer(life) as buffer:
        buffer.extend(columns)
        death.latents.write(buffer, 7, [40])
    begun = death.Message(death.BEGUN, death.writer.WRITE, 7, 0, (40,))
    kept = witness.known.copy()
    witness.check(begun)
    witness.known = kept
    with pytest.raises(death.Lost, match="latent of env 0, row 2: "):
        witness.check()
    kept.latents.written(7, [40])
    witness.check()
    with death.writer.open_buffer(life) as buffer:
        buffer.write("latent", [0, 3], death.np.arange(128).reshape(2, 64) % 2 * 9)
    with pytest.raises(death.Lost, match="2 latents are half written"):
        witness.check(begun._replace(suffix=9))


def test_a_checkpoint_of_rows_that_nobody_had_is_seen(tmp_path):
    """One thread saves while another one adds: what is saved is of a moment of the save."""
    life = born(tmp_path, 2, threads=True)
    begun, done, writer = death.BEGUN, death.DONE, death.writer

    def told(saved):
        witness = death.Witness(life)
        said = [
            (begun, writer.ADD, (1, 1)), (done, writer.ADD, (1, 1)), (begun, writer.SAVE, (0, 0)),
            (begun, writer.ADD, (2, 1)), (done, writer.ADD, (2, 1)), (begun, writer.ADD, (3, 2)),
            (done, writer.SAVE, saved),
        ]  # fmt: skip
        witness._follow([death.Message(*what, 1, 5, counts) for *what, counts in said])
        return witness.saved[1].counts

    for counts in ((1, 1), (2, 1), (3, 2)):
        assert told(counts) == list(counts)
    for counts in ((0, 0), (1, 2), (3, 1), (4, 2)):
        with pytest.raises(death.Lost, match="which nobody had"):
            told(counts)


def test_priorities_of_another_update_are_seen(tmp_path):
    life, witness, columns = of_forty_rows(tmp_path, prioritized=True)
    with death.writer.open_buffer(life) as buffer:
        buffer.extend(columns)
        view = death.writer.ranked(buffer)
        for what, ids in ((buffer, buffer.sampleable_ids()), (view, view.anchors())):
            what.update_priorities(ids, death.content.priorities(ids, 7))
    witness.known.ranks = 7, [40]
    witness.check()
    assert witness.totals["ranked"] > 40
    witness.known.ranks = 8, [40]
    with pytest.raises(death.Lost, match="priorities of the view are as no update"):
        witness.check()


def test_a_part_that_is_taken_for_another_episode_is_seen(tmp_path):
    life = born(tmp_path, prioritized=True)
    witness = death.Witness(life)
    columns = death.content.rows(0, 0, 8)
    columns["latent"] = death.np.zeros((8, 64), "int64")
    part = death.Message(death.BEGUN, death.writer.PART, 2 * 3 + 1, 0, (8,))
    with death.writer.open_buffer(life) as buffer:
        for stop in (3, 8):  # the second one goes on with step 3, behind an episode that was cut
            if stop == 8:
                witness.known.begin(part)
                buffer.end_episode()
            start = len(witness.known.steps[0])
            witness.known.advance([stop])
            columns["step"] = death.np.array(witness.known.steps[0] + [0] * (8 - stop), "int32")
            buffer.extend({name: values[start:stop] for name, values in columns.items()})
    assert witness.known.steps[0][:4] == [0, 1, 2, 3]
    assert witness.known.starts(0) == [0, 3, 5]
    witness.check()
    witness.known.begins[0][3] = False
    with pytest.raises(death.Lost, match=r"episodes of env 0 begin elsewhere: rows \[3\]"):
        witness.check()


def test_rows_that_evict_let_go_of_and_are_back_are_seen(tmp_path):
    life, witness, columns = of_forty_rows(tmp_path, prioritized=True)
    with death.writer.open_buffer(life) as buffer:
        buffer.extend(columns)
        buffer.evict([7])
    evict = death.Message(death.BEGUN, death.writer.EVICT, 7, 0, (40,))
    witness.known.first = witness.known.let_go(9)
    with pytest.raises(death.Lost, match=r"from .9. on expected"):
        witness.check()
    witness.known.first = [0]
    witness.check(evict)
    assert witness.known.first == [7]
