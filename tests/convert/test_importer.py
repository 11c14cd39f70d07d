"""Rows on their way into a new buffer, beside lists of what may be kept."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay.convert import gz_checkpoint, npz, parquet, table
from diskreplay.convert.importer import Importer
from diskreplay.convert.npz import from_npz, to_npz
from diskreplay.convert.parquet import from_parquet, to_parquet
from diskreplay.convert.table import from_csv, to_csv
from diskreplay.errors import FormatError, InvalidInputError, StorageError
from tests.convert.recorded import few_open_files
from tests.effort import effort

SPACES = {"observation_space": Box(0, 255, (1,), np.uint8), "action_space": Discrete(4)}


def buffer_of(kind=diskreplay.ReplayBuffer, envs=1, **options):
    return kind(None, **{"capacity": None, "num_envs": envs, **SPACES, **options})


def columns(steps, numbers, final=None):
    count = len(steps)
    no = np.zeros(count, bool)
    numbers = np.asarray(numbers, np.int64)
    return {
        "observation": (numbers % 251).astype(np.uint8)[:, None], "action": numbers % 4,
        "reward": numbers.astype(np.float32), "terminated": no, "truncated": no,
        "step": np.asarray(steps, np.int32), "is_final": no if final is None else np.array(final),
    }  # fmt: skip


def kept(buffer, env=0):
    first, count = buffer.bounds[env].tolist()
    return buffer.take("reward", np.arange(first, count) * buffer.num_envs + env).tolist()


def add(importer, rows, given_, priorities=None, env=0):
    """Rows of which none begins a part of an episode."""
    return importer.add(env, rows, given_, priorities, np.zeros(len(rows), bool))


@settings(max_examples=effort(25, 60, 300))
@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(0, 9),
                  st.integers(1, 5)),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_rows_whose_beginning_is_missing_are_left_out(sources):
    """Of each source: the lengths of its episodes, how many of its first rows are missing, and how
    many come at once. What comes first of all is taken as it is."""
    with buffer_of() as buffer:
        importer, expected, number, ids, came, left_out = Importer(buffer), [], 0, [], 0, 0
        for source, (lengths, missing, at_once) in enumerate(sources):
            if source:
                importer.next_source()
            steps = np.array([step for length in lengths for step in range(length)])
            rows = np.arange(len(steps))[missing:]
            begun = not came
            for row in rows.tolist():
                begun = begun or steps[row] == 0
                if begun:
                    expected.append(float(number + row))
                else:
                    left_out += 1
            for start in range(0, len(rows), at_once):
                some = rows[start : start + at_once]
                ids += add(importer, some, columns(steps[some], number + some)).tolist()
            came += len(rows)
            number += len(steps)
        assert kept(buffer) == expected
        assert importer.left_out == left_out
        assert [each for each in ids if each >= 0] == list(range(len(expected)))


def test_a_source_without_rows_lets_none_follow_those_before():
    with buffer_of() as buffer:
        importer = Importer(buffer)
        add(importer, np.array([0]), columns([0], [0]))
        importer.next_source()
        importer.next_source()
        assert add(importer, np.array([1, 2]), columns([1, 0], [1, 2])).tolist() == [-1, 1]
        assert kept(buffer) == [0.0, 2.0]


def test_rows_that_left_amid_an_episode_cost_its_rest():
    with buffer_of() as buffer:
        importer = Importer(buffer)
        add(importer, np.array([0, 1, 2]), columns([0, 1, 2], [0, 1, 2]))
        ids = add(importer, np.array([5, 6, 7]), columns([5, 6, 0], [5, 6, 7]))
        assert ids.tolist() == [-1, -1, 3]
        assert add(importer, np.array([], int), columns([], [])).tolist() == []
        assert kept(buffer) == [0, 1, 2, 7]
        with pytest.warns(RuntimeWarning, match=r"here: 2 row\(s\) left out"):
            importer.warn_of_left_out("here")
        importer.warn_of_left_out("there")  # of which none were
        for env in (-1, 1):
            with pytest.raises(InvalidInputError, match=f"0 to 0 expected, found {env}"):
                add(importer, np.array([8]), columns([1], [8]), env=env)


def test_parts_of_episodes_begin_where_it_is_said():
    with buffer_of() as buffer:
        importer = Importer(buffer)
        begins = np.array([False, False, True, False, False])
        importer.add(0, np.arange(5), columns(range(5), range(5)), None, begins)
        assert kept(buffer) == [0, 1, 2, 3, 4]
        assert len(buffer.episodes()) == 2


def exported(kind, buffer, room):
    """A store made of what was exported of a buffer."""
    out, back = room / "out", room / "back"
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        return from_parquet(to_parquet(buffer, out), back)
    if kind == "files of episodes":
        pytest.importorskip("pyarrow")
        to_parquet(buffer, out, partition="episodes", episodes_per_file=1)
        return from_parquet(out, back)
    if kind == "csv":
        pytest.importorskip("pandas")
        return from_csv(to_csv(buffer, out), back)
    if kind == "npz":
        return from_npz(to_npz(buffer, out), back)
    gz_checkpoint.write(buffer, out, 1, flavour=kind)
    return diskreplay.open(
        gz_checkpoint.read(out, 1, back, stack_size=1, update_horizon=1), mode="a"
    )


KINDS = ["parquet", "files of episodes", "csv", "npz"]


@pytest.mark.parametrize("kind", [*KINDS, "reagent", "dopamine"])
@pytest.mark.parametrize("pieces", [((3, 0), (3, 3), (2, 6)), ((3, 2), (4, 5), (2, 0))])
def test_a_part_behind_a_cut_episode_is_not_what_it_led_to(tmp_path, kind, pieces):
    made, number = buffer_of(), 1
    with made as buffer:
        for count, start in pieces:  # the steps count on over each cut
            numbers = np.arange(number, number + count)
            buffer.extend(columns(range(start, start + count), numbers))
            buffer.end_episode()
            number += count
        drawn = buffer.gather(buffer.sampleable_ids())
        expected = np.c_[drawn.observation, drawn.next_observation].tolist()
        with exported(kind, buffer, tmp_path) as back:
            drawn = back.gather(back.sampleable_ids())
            found = np.c_[drawn.observation, drawn.next_observation][~drawn.terminated].tolist()
            if kind in KINDS:
                assert found == expected
                assert back.begins == buffer.begins
            else:  # what a cut episode's last row led to is not known there either
                assert {*map(tuple, found)} == {*map(tuple, expected)}
    assert len(expected) == sum(count - 1 for count, _start in pieces)


@pytest.mark.costly(1)
@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_several_envs_in_many_pieces(tmp_path, kind, monkeypatch):
    for module, name in ((parquet, "_GROUP_ROWS"), (table, "_CSV_ROWS"), (npz, "_PIECE_BYTES")):
        monkeypatch.setattr(module, name, 3)
    with buffer_of(envs=3) as buffer:
        for piece in range(6):
            for env in range(3):
                steps = np.arange(piece * 4, piece * 4 + 4) if env else np.arange(4)
                buffer.extend(columns(steps, steps + 50 * env), env=env)
            buffer.end_episode(np.array([piece % 2 == 0, piece % 3 == 0, True]))
        assert buffer.begins
        with exported(kind, buffer, tmp_path) as back:
            assert back.begins == buffer.begins
            assert back.sampleable_ids().tolist() == buffer.sampleable_ids().tolist()
            for env in range(3):
                assert kept(back, env) == kept(buffer, env)


@pytest.mark.parametrize("name", ["env", "row", "episode"])
def test_numbers_of_rows_that_are_none(name):
    given_ = {"env": np.zeros(2, int), "row": np.arange(2), "episode": np.zeros(2, int)}
    given_[name] = np.array(["0", "1"], object)
    none = np.zeros(2, bool)
    with buffer_of() as buffer, pytest.raises(FormatError, match=f"^{name}: whole numbers"):
        Importer(buffer).add_mixed(
            given_["env"], given_["row"], columns(range(2), range(2)), none, {},
            None, given_["episode"],
        )  # fmt: skip


def test_final_rows_are_woven_in_behind_theirs():
    with buffer_of(envs=2) as buffer:
        importer = Importer(buffer)
        env = np.array([0, 1, 0, 1, 0])
        rows = np.array([0, 0, 1, 1, 3])
        given_ = columns([0, 0, 1, 1, 0], [1, 2, 3, 4, 5])
        finals = {"observation": np.array([[99]], np.uint8)}
        has_final = np.array([False, False, True, False, False])
        importer.add_mixed(env, rows, given_, has_final, finals, None, np.zeros(5, int))
        assert buffer.bounds[:, 1].tolist() == [4, 2]
        assert buffer.take("is_final", np.arange(4) * 2).tolist() == [False, False, True, False]
        assert buffer.take("observation", np.arange(4) * 2).ravel().tolist() == [1, 3, 99, 5]
        assert buffer.take("step", np.arange(4) * 2).tolist() == [0, 1, 2, 0]
        assert kept(buffer, 1) == [2, 4]


def test_priorities_are_set_at_the_end_and_the_largest_is_remembered():
    with buffer_of(diskreplay.PrioritizedReplayBuffer, alpha=1.0) as buffer:
        importer = Importer(buffer)
        rows = np.arange(6)
        add(importer, rows, columns(rows, rows), np.array([2.0, np.nan, 3.0, 4.0, 5.0, 6.0]))
        importer.set_priorities(50.0)
        assert buffer.tree.get(rows).tolist() == [2.0, 50.0, 3.0, 4.0, 5.0, 0.0] or (
            buffer.tree.get(rows)[[0, 2, 3, 4]].tolist() == [2.0, 3.0, 4.0, 5.0]
        )
        assert buffer.statistics().priorities.largest_seen == 50.0
    with buffer_of() as uniform:
        importer = Importer(uniform)
        add(importer, rows, columns(rows, rows), np.ones(6))
        importer.set_priorities(50.0)


def test_priorities_of_rows_with_their_final_rows_beside_them():
    with buffer_of(diskreplay.PrioritizedReplayBuffer, alpha=1.0) as buffer:
        importer = Importer(buffer)
        rows, none = np.arange(4), np.zeros(4, bool)
        given_ = columns(rows, rows)
        priorities, zeros = np.array([2.0, 3.0, 4.0, 5.0]), np.zeros(4, int)
        importer.add_mixed(zeros, rows, given_, none, {}, priorities, zeros)
        importer.set_priorities(None)
        assert buffer.tree.get(rows).tolist() == [2.0, 3.0, 4.0, 0.0]


def test_the_largest_priority_is_remembered_though_its_row_left():
    with buffer_of(diskreplay.PrioritizedReplayBuffer, alpha=1.0, capacity=12) as buffer:
        importer = Importer(buffer)
        for start in range(0, 30, 10):
            rows = np.arange(start, start + 10)
            add(importer, rows, columns(rows, rows), np.full(10, 2.0))
        importer.set_priorities(50.0)
        assert buffer.statistics().priorities.largest_seen == 50.0


@pytest.mark.parametrize(
    ("write", "read", "name"), [(to_npz, from_npz, "t.npz"), (to_csv, from_csv, "t.csv")]
)
def test_what_the_system_refuses_is_not_taken_for_damage(tmp_path, write, read, name):
    with buffer_of() as buffer:
        write(buffer, tmp_path / name)
    with few_open_files(0), pytest.raises(StorageError, match=f"{name}.*: cannot read it"):
        read(tmp_path / name, tmp_path / "back")
    assert not (tmp_path / "back").exists()
