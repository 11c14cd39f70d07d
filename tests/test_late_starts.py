"""Parts of episodes that begin at any step: what `extend` takes is sound to `verify` as well."""

import json
import shutil
import signal
import textwrap
import types

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay.check.repair import repair
from diskreplay.check.verify import verify
from diskreplay.errors import DiskFullError, FormatError, InvalidInputError
from diskreplay.store import record
from tests import processes
from tests.effort import effort

NOTHING, TERMINATED, TRUNCATED, FINAL = range(4)


def make_buffer(path, **options):
    options = {"capacity": 400, "stack_size": 3, "num_envs": 1, "segment_rows": 16} | options
    return diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 255, (2,), "uint8"), action_space=Discrete(2), **options
    )


def columns(steps, marks=None):
    """Rows of these steps; the marks say how each ends, or that it is a final row."""
    steps = np.array(steps, np.int32)
    marks = np.zeros(len(steps), int) if marks is None else np.array(marks)
    return {
        "observation": steps[:, None].repeat(2, axis=1).astype(np.uint8),
        "action": np.zeros(len(steps), np.int64),
        "reward": (marks != FINAL).astype(np.float32),
        "terminated": marks == TERMINATED,
        "truncated": marks == TRUNCATED,
        "step": steps,
        "is_final": marks == FINAL,
    }


def play(buffer, steps, **ends):
    envs = buffer.num_envs
    for step in range(steps):
        frame = np.full((envs, 2) if envs > 1 else 2, step, np.uint8)
        flags = [bool(ends) and step == steps - 1, False]
        if envs > 1:
            buffer.add(frame, np.zeros(envs, int), np.ones(envs), *np.array(flags)[:, None].repeat(
                envs, axis=1))  # fmt: skip
        else:
            buffer.add(frame, 0, 1.0, *flags)


def after_end_episode(buffer):
    play(buffer, 5)
    buffer.end_episode()
    for env in range(buffer.num_envs):
        buffer.extend(columns(range(9, 14)), env)


def after_an_episode_that_is_open(buffer):
    play(buffer, 5)
    buffer.extend(columns(range(3, 6)))


def inside_the_columns(buffer):
    play(buffer, 2)
    buffer.extend(columns([2, 3, 9, 10, 11, 4, 5, 0, 1, 2]))


def behind_an_end_and_its_final_row(buffer):
    play(buffer, 2)
    buffer.extend(columns([2, 3, 4, 5, 6, 7, 8], [0, TERMINATED, FINAL, 0, TRUNCATED, 0, 0]))


def with_the_final_row_in_the_next_call(buffer):
    buffer.extend(columns([4, 5], [0, TRUNCATED]))
    buffer.extend(columns([6, 7, 8], [FINAL, 0, 0]))
    buffer.extend(columns([9, 3], [TERMINATED, FINAL]))
    buffer.extend(columns([4, 5]))


def of_many_envs_at_once(buffer):
    play(buffer, 3)
    envs = np.arange(buffer.num_envs)
    buffer.extend_many(columns([7, 8, 3, 4, 9, 6]), envs, np.full(2, 3), np.array([2, 4]))
    buffer.extend_many(columns([9, 1, 2, 4, 9, 6]), envs[::-1], np.array([7, 5]), np.array([3, 3]))


CASES = [after_end_episode, after_an_episode_that_is_open, inside_the_columns,
         behind_an_end_and_its_final_row, with_the_final_row_in_the_next_call]  # fmt: skip


def sound(path, rows):
    """Nothing is found in a store, and a repair changes nothing of it."""
    assert verify(path).findings == ()
    if not (path / "is_final" / "saved").exists():
        before = (path / "zarr.json").read_bytes()
        report = repair(path)
        assert (report.aside, report.losses) == (None, ())
        assert (path / "zarr.json").read_bytes() == before
    with diskreplay.open(path) as reader:
        assert reader.bounds.tolist() == rows


@pytest.mark.costly(2)
@pytest.mark.parametrize(
    ("case", "envs"),
    [*((case, 1) for case in CASES), (after_end_episode, 2), (of_many_envs_at_once, 2)],
)
def test_what_extend_takes_is_sound(tmp_path, case, envs):
    """While it is written, as a kill leaves it, saved, loaded, closed, and after a reopening."""
    path, copy = tmp_path / "replay", tmp_path / "copy"
    with make_buffer(path, num_envs=envs) as buffer:
        case(buffer)
        rows, found = buffer.bounds.tolist(), buffer.sampleable_ids().tolist()
        episodes = buffer.episodes()
        assert verify(path).findings == ()
        with buffer._rows.store.maintenance.lock:
            shutil.copytree(path, copy)
        sound(copy, rows)
        saved = buffer.save(tmp_path / "saved", 1)
        sound(saved, rows)
        play(buffer, 3)
        buffer.load(tmp_path / "saved", 1)
        assert buffer.sampleable_ids().tolist() == found
        assert verify(path).findings == ()
    sound(path, rows)
    with make_buffer(path, num_envs=envs) as buffer:  # a part behind a reopening
        assert buffer.sampleable_ids().tolist() == found
        for field in ("start_id", "rows", "first_step", "final_id", "cut"):
            got = getattr(buffer.episodes(), field)
            if field != "cut":
                assert got.tolist() == getattr(episodes, field).tolist()
        buffer.extend(columns(range(20, 25)))
    sound(path, [[0, rows[0][1] + 5], *rows[1:]])


def test_lengths_whose_sum_wraps_around_are_refused(tmp_path):
    with make_buffer(tmp_path / "replay", num_envs=3) as buffer:
        envs, first = np.arange(3), np.zeros(3, np.int64)
        lengths = np.array([2**63 - 1, 2**63 - 1, 7])  # 5, as NumPy adds them
        with pytest.raises(InvalidInputError, match="and 5 in the columns"):
            buffer.extend_many(columns([0, 1, 2, 3, 4]), envs, first, lengths)
        assert not buffer.bounds.any()


def test_a_kill_right_after_a_part_leaves_a_sound_store(tmp_path):
    path = tmp_path / "replay"
    code = f"""
        import os, signal
        from pathlib import Path
        from tests.test_late_starts import columns, make_buffer, play
        buffer = make_buffer(Path({str(path)!r}))
        play(buffer, 5)
        buffer.end_episode()
        buffer.extend(columns([7, 8, 3, 4]))
        buffer.extend(columns([9, 10]))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert processes.run(textwrap.dedent(code)).returncode == -signal.SIGKILL
    sound(path, [[0, 11]])
    with make_buffer(path) as buffer:
        play(buffer, 40)
    sound(path, [[0, 51]])


@pytest.mark.parametrize("first", [5, 9])
def test_rows_that_never_came_are_forgotten(tmp_path, first):
    """A kill comes between the note and the rows; others get their numbers."""
    path = tmp_path / "replay"
    code = f"""
        import os, signal
        from pathlib import Path
        from tests.test_late_starts import columns, make_buffer, play
        buffer = make_buffer(Path({str(path)!r}))
        play(buffer, 5)
        buffer.end_episode()
        buffer._rows.extend = lambda *rows: os.kill(os.getpid(), signal.SIGKILL)
        buffer.extend(columns([{first}, {first} + 1]))
    """
    assert processes.run(textwrap.dedent(code)).returncode == -signal.SIGKILL
    noted = json.loads((path / "zarr.json").read_text())["attributes"]["diskreplay"]
    assert noted["parts"] == [[0, 5, 9, 2]]
    assert noted.get("begins", []) == ([5] if first == 5 else [])
    with make_buffer(path) as buffer:
        # Row 5 goes on with the episode, as a store has it whose rows are copied.
        buffer.extend(columns(range(6)))
        shutil.copytree(path, tmp_path / "killed")
    for place in (path, tmp_path / "killed"):
        with make_buffer(place) as buffer:
            assert buffer.begins == ()
            assert buffer.episodes().start_id.tolist() == [0, 5]
            assert buffer.episodes().rows.tolist() == [5, 6]
        assert verify(place).findings == ()


@pytest.mark.parametrize("first", [5, 9])
def test_rows_that_were_refused_are_forgotten(tmp_path, monkeypatch, first):
    path = tmp_path / "replay"
    with make_buffer(path) as buffer:
        play(buffer, 5)
        buffer.end_episode()
        with monkeypatch.context() as patch:

            def full(*_arguments):
                raise DiskFullError(28, "no space left", str(path))

            patch.setattr(buffer._rows.store.writer, "extend", full)
            with pytest.raises(DiskFullError):
                buffer.extend(columns([first, first + 1]))
        assert buffer.begins == ()
        for _ in range(2):  # not an episode of step 5 in row 5
            play(buffer, 3)
            buffer.end_episode()
        assert buffer.episodes().start_id.tolist() == [0, 5, 8]
        with buffer._rows.store.maintenance.lock:
            shutil.copytree(path, tmp_path / "killed")
    with make_buffer(tmp_path / "killed") as buffer:
        assert buffer.begins == ()
        assert buffer.episodes().start_id.tolist() == [0, 5, 8]


def flip_step(path, row):
    with open(path / "step" / "c.0.0", "r+b") as file:
        file.seek(4 * row + 1)
        byte = file.read(1)[0]
        file.seek(4 * row + 1)
        file.write(bytes([byte ^ 0x40]))


def test_a_rotten_step_is_found_where_no_part_was_given(tmp_path):
    path, killed = tmp_path / "replay", tmp_path / "killed"
    with make_buffer(path) as buffer:
        play(buffer, 20)
        buffer.extend(columns([90, 91, 7, 8, 9, 10]))
        buffer.flush()  # which says where the part ends
        play(buffer, 1, terminated=True)
        play(buffer, 20)
        with buffer._rows.store.maintenance.lock:
            shutil.copytree(path, killed)
    assert verify(killed).findings == ()
    for row in (10, 35):
        damaged = tmp_path / f"damaged-{row}"
        shutil.copytree(killed, damaged)
        flip_step(damaged, row)
        (finding,) = verify(damaged).findings
        assert finding.kind == "rows"
        assert row in {r for _env, low, high in finding.rows for r in range(low, high)}


def test_many_parts_are_noted_in_few_writes(tmp_path):
    with make_buffer(tmp_path / "replay", capacity=None) as buffer:
        store, noted = buffer._rows.store, []
        amend = store.amend
        store.amend = lambda attributes: (noted.append(attributes["parts"]), amend(attributes))
        buffer.extend(columns([0, 1]))
        for part in range(1000):
            buffer.extend(columns([part % 7 + 5, part % 7 + 6]))
        assert len(noted) < 20
        assert noted[0] == [[0, 2, 6, 2]]
        buffer.flush()
        assert buffer.zarr().attrs["diskreplay"]["parts"] == [[0, 2, 2002, 1000]]
        buffer.extend(columns([3]))  # the record ends before it
        assert noted[-1] == [[0, 2, 2003 + 2001, 2002]]


def test_what_the_disk_refused_to_note_is_noted_the_next_time(tmp_path, monkeypatch):
    path = tmp_path / "replay"
    with make_buffer(path) as buffer:
        play(buffer, 3)
        buffer.extend(columns([9, 10, 11]))
        buffer.flush()
        play(buffer, 1)
        with monkeypatch.context() as patch:

            def full(*_arguments):
                raise DiskFullError(28, "no space left", str(path))

            patch.setattr(record, "write_group", full)
            with pytest.raises(DiskFullError):
                buffer.extend(columns([30, 31, 32]))
        assert buffer.bounds.tolist() == [[0, 7]]
        buffer.extend(columns([30, 31, 32]))
        with buffer._rows.store.maintenance.lock:
            shutil.copytree(path, tmp_path / "killed")
    assert verify(tmp_path / "killed").findings == ()


def test_ranges_and_begins_leave_without_a_flush(tmp_path):
    """Each part is noted, and the rows between them are added: no two ranges are one."""
    with make_buffer(tmp_path / "replay", capacity=48) as buffer:
        store, noted = buffer._rows.store, []
        amend = store.amend
        store.amend = lambda attributes: (noted.append(attributes), amend(attributes))
        for part in range(200):
            play(buffer, 4)
            buffer.end_episode()
            buffer.extend(columns([4, 5, 6] if part % 2 else [30, 31, 32]))
            if part % 20 == 0:
                store.maintenance.run(durable=True)
        assert len(noted) == 200
        assert max(len(each["parts"]) for each in noted) < 40
        assert max(len(each.get("begins", ())) for each in noted) < 40
        assert len(buffer.begins) < 40


def test_a_part_where_a_power_cut_has_left_no_row(tmp_path):
    """What is retained was not durable: an env has rows that have left, and no other ones."""
    path = tmp_path / "replay"
    with make_buffer(path) as buffer:
        play(buffer, 20)
        buffer.flush()
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"]["diskreplay"]["first"] = [20]
    (path / "zarr.json").write_text(json.dumps(document))
    with make_buffer(path) as buffer:
        assert buffer.bounds.tolist() == [[20, 20]]
        buffer.extend(columns([20, 21, 22]))
        buffer.extend(columns([7, 8, 9]))
        assert buffer.episodes().rows.tolist() == [3, 3]
    assert verify(path).findings == ()


def test_ranges_leave_with_their_rows(tmp_path):
    path = tmp_path / "replay"
    with make_buffer(path, capacity=48) as buffer:
        buffer.extend(columns([3, 4]))
        buffer.extend(columns([9, 10]))
        play(buffer, 20)
        buffer.extend(columns([5, 6]))
        buffer.flush()
        assert buffer.zarr().attrs["diskreplay"]["parts"] == [[0, 2, 4, 1], [0, 24, 26, 1]]
        play(buffer, 40)
        buffer.flush()
        buffer.flush()
        assert buffer.zarr().attrs["diskreplay"]["parts"] == [[0, 24, 26, 1]]
        play(buffer, 10)
        buffer.flush()
        buffer.flush()
        assert buffer.zarr().attrs["diskreplay"]["parts"] == []
        assert verify(path).findings == ()


def test_a_store_without_parts_has_no_such_key(tmp_path):
    with make_buffer(tmp_path / "replay") as buffer:
        buffer.extend(columns([4, 5, 6], [0, 0, TRUNCATED]))  # the first rows of all
        buffer.extend(columns([7], [FINAL]))
        buffer.extend(columns([0, 1, 2]))
        buffer.extend(columns([3, 4]))
        play(buffer, 4)
        buffer.flush()
        assert not {"parts", "begins"} & set(buffer.zarr().attrs["diskreplay"])
    assert verify(tmp_path / "replay").findings == ()


@pytest.mark.parametrize(
    "found", [{"1": 2}, [1], [[0, 1]], [[1, 0, 4]], [[0, 4, 4]], [[0, -1, 4]], [[0, "1", 4]]]
)
@pytest.mark.costly(2)
def test_damaged_ranges_are_refused_and_cost_no_rows(tmp_path, found):
    path = tmp_path / "replay"
    with make_buffer(path) as buffer:
        inside_the_columns(buffer)
        rows = buffer.bounds.tolist()
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"]["diskreplay"]["parts"] = found
    (path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match="parts"):
        diskreplay.open(path)
    assert [finding.kind for finding in verify(path).findings] == ["metadata"]
    report = repair(path)
    assert report.aside is not None
    assert report.losses == ()
    sound(path, rows)
    with make_buffer(path) as buffer:
        assert buffer.episodes().rows.tolist() == [4, 3, 2, 3]


@pytest.mark.parametrize("field", ["reward", "terminated", "truncated"])
def test_a_final_row_with_more_than_an_observation_is_sound(tmp_path, field):
    path = tmp_path / "replay"
    with make_buffer(path) as buffer:
        rows = columns([0, 1, 2, 0, 1], [0, 0, FINAL, 0, TRUNCATED])
        rows[field][2] = 1
        buffer.extend(rows)
        last = columns([2], [FINAL])
        last[field][0] = 1
        buffer.extend(last)
        assert buffer.sampleable_ids().tolist() == [0, 1, 3, 4]
        with buffer._rows.store.maintenance.lock:
            shutil.copytree(path, tmp_path / "killed")
    sound(path, [[0, 6]])
    sound(tmp_path / "killed", [[0, 6]])


# -- beside a naive list of episodes


class Naive:
    """Each env's rows, one object each, that know their episode."""

    def __init__(self, envs, kept):
        self.rows = [[] for _ in range(envs)]
        self.over = [True] * envs  # what comes next goes on with nothing
        self.ended_here = [False] * envs  # but the final row of what has just ended
        self.kept = kept

    def give(self, env, step, mark):
        rows = self.rows[env]
        row = types.SimpleNamespace(id=len(rows) * len(self.rows) + env, step=step, mark=mark)
        goes_on = bool(rows) and step == rows[-1].step + 1
        if goes_on and (not self.over[env] or (mark == FINAL and self.ended_here[env])):
            row.episode = rows[-1].episode
        else:
            row.episode = row.id
        closes = self.over[env] and row.episode != row.id
        rows.append(row)
        self.ended_here[env] = mark in (TERMINATED, TRUNCATED)
        self.over[env] = self.ended_here[env] or closes

    def cut(self, env):
        self.over[env], self.ended_here[env] = True, False

    def cut_frame(self, env):
        """The call ended with a final row: nobody goes on with its episode."""
        if self.rows[env] and self.rows[env][-1].mark == FINAL:
            self.cut(env)

    def episodes(self):
        """Where each episode begins, as far as it is kept, and how many transitions it has."""
        found = {}
        for rows in self.rows:
            kept = rows[max(len(rows) - self.kept, 0) :]
            for row in kept:
                start = max(row.episode, kept[0].id)
                found[start] = found.get(start, 0) + (row.mark != FINAL)
        return sorted((start, rows) for start, rows in found.items() if rows)


step_and_mark = st.tuples(
    st.sampled_from([0, 0, 1, 1, 2, 3, 4]),
    st.sampled_from([NOTHING] * 6 + [TERMINATED, TRUNCATED, FINAL, FINAL]),
)
calls = st.one_of(
    st.tuples(st.just("extend"), st.integers(0, 1), st.lists(step_and_mark, max_size=9)),
    st.tuples(
        st.just("count on"),
        st.integers(0, 1),
        st.lists(st.sampled_from([NOTHING, NOTHING, TERMINATED, FINAL]), min_size=1, max_size=6),
    ),
    st.sampled_from([("end",), ("open",), ("load",), ("flush",), ("add",), ("kill",)]),
)


@pytest.mark.costly
@settings(max_examples=effort(20, 60), deadline=None)
@given(st.lists(calls, max_size=14))
def test_beside_a_naive_list_of_episodes(tmp_path_factory, script):
    room = tmp_path_factory.mktemp("naive")
    path, kept = room / "replay", 24
    options = {"num_envs": 2, "capacity": 2 * kept}
    buffer, naive = make_buffer(path, **options), Naive(2, kept)
    for number, (call, *given_) in enumerate(script):
        if call == "extend":
            env, rows = given_
            if rows:
                buffer.extend(columns(*zip(*rows, strict=True)), env)
            for step, mark in rows:
                naive.give(env, step, mark)
            naive.cut_frame(env)
        elif call == "count on":  # as a part would by chance, or as the next piece of an episode
            env, marks = given_
            step = naive.rows[env][-1].step + 1 if naive.rows[env] else 0
            buffer.extend(columns(range(step, step + len(marks)), marks), env)
            for at, mark in enumerate(marks):
                naive.give(env, step + at, mark)
            naive.cut_frame(env)
        elif call == "add":
            steps = buffer._rows.next_step.tolist()
            buffer.add(np.zeros((2, 2), np.uint8), [0, 0], [1, 1], [False] * 2, [False] * 2)
            for env, step in enumerate(steps):
                naive.give(env, step, NOTHING)
        elif call == "flush":
            buffer.flush()
        elif call == "end":
            buffer.end_episode()
        elif call == "load":
            buffer.save(room / "saved", number)
            buffer.load(room / "saved", number)
        elif call == "open":
            buffer.close()
            buffer = make_buffer(path, **options)
        else:
            with buffer._rows.store.maintenance.lock:
                shutil.copytree(path, room / f"killed-{number}")
            buffer.close()
            path = room / f"killed-{number}"
            buffer = make_buffer(path, **options)
        if call in ("end", "load", "open", "kill"):
            for env in range(2):
                naive.cut(env)
        episodes = buffer.episodes()
        found = zip(episodes.start_id.tolist(), episodes.rows.tolist(), strict=True)
        assert list(found) == naive.episodes()
        with diskreplay.open(path) as reader:  # by the columns, where the writer was told of rows
            assert reader.sampleable_ids().tolist() == buffer.sampleable_ids().tolist()
        assert verify(path).findings == ()
    buffer.close()
    sound(path, [[max(len(rows) - kept, 0), len(rows)] for rows in naive.rows])
    shutil.rmtree(room)


def with_record(path, to, **attributes):
    """A copy of a store whose record says something else."""
    shutil.copytree(path, to)
    document = json.loads((to / "zarr.json").read_text())
    document["attributes"]["diskreplay"] |= attributes
    (to / "zarr.json").write_text(json.dumps(document))
    return to


def rows_of(findings):
    spans = [span for finding in findings for span in finding.rows]
    return {row for _env, low, high in spans for row in range(low, high)}


@pytest.fixture
def killed(tmp_path):
    """Rows 0 to 19 are an episode; then three parts of six rows each, and 20 rows of another one.
    It was not closed: nothing but the rules tells that a row is rotten."""
    with make_buffer(tmp_path / "replay") as buffer:
        play(buffer, 20)
        for first in (90, 30, 70):
            buffer.end_episode()
            buffer.extend(columns(range(first, first + 6)))
        buffer.end_episode()
        play(buffer, 20)
        buffer.flush()
        with buffer._rows.store.maintenance.lock:
            shutil.copytree(tmp_path / "replay", tmp_path / "killed")
    assert verify(tmp_path / "killed").findings == ()
    return tmp_path / "killed"


@pytest.mark.parametrize("row", [10, 22, 28, 34, 50])
@pytest.mark.parametrize("parts", [[[0, 20, 38, 3]], [[0, 0, 2**40, 3]], [[0, 3, 57, 3]]])
@pytest.mark.costly(4)
def test_a_range_excuses_no_more_rows_than_it_names(tmp_path, killed, row, parts):
    """Also one that a damaged record makes far too wide."""
    wide = with_record(killed, tmp_path / "wide", parts=parts)
    assert verify(wide).findings == ()
    flip_step(wide, row)
    assert rows_of(verify(wide).findings) == {row - 1, row, row + 1}
    report = repair(wide)
    aside = set(range(row - 1, row + 4))  # two of them are the frames of a stack
    assert rows_of(report.losses) == aside
    assert verify(wide).findings == ()
    with diskreplay.open(wide) as reader:
        rewards = reader.take("reward", np.arange(58))
        assert np.flatnonzero(rewards == 0).tolist() == sorted(aside)


def test_rot_that_could_be_a_part_leaves_no_excuse(tmp_path, killed):
    """The rows behind the rotten one go on from it, as far as steps can tell."""
    flip_step(killed, 31)
    flip_step(killed, 30)
    found = rows_of(verify(killed).findings)
    assert {30, 31} <= found
    assert found <= set(range(19, 39))
    assert repair(killed).losses
    assert verify(killed).findings == ()


def test_a_final_row_that_has_a_reward_is_counted_too(tmp_path):
    path, killed = tmp_path / "replay", tmp_path / "killed"
    with make_buffer(path) as buffer:
        buffer.extend({**columns([5, 6, 7], [0, TRUNCATED, FINAL]), "reward": np.ones(3, "f4")})
        buffer.extend(columns([3, 4, 5], [0, 0, TERMINATED]))
        buffer.extend(columns(range(8), [0] * 6 + [TRUNCATED, FINAL]))
        buffer.flush()
        assert buffer.zarr().attrs["diskreplay"]["parts"] == [[0, 2, 14, 2]]
        with buffer._rows.store.maintenance.lock:
            shutil.copytree(path, killed)
    assert verify(killed).findings == ()
    with open(killed / "reward" / "c.0.0", "r+b") as file:
        file.seek(4 * 13)
        file.write(np.float32(7).tobytes())
    assert 13 in rows_of(verify(killed).findings)


def test_what_leaves_excuses_nothing_any_more(tmp_path):
    path, killed = tmp_path / "replay", tmp_path / "killed"
    with make_buffer(path, capacity=48) as buffer:
        for first in range(40):
            buffer.extend(columns(range(first + 5, first + 9)))
        for _ in range(2):  # the first one has the rows leave durably
            buffer.flush()
        ((_env, first, stop, most),) = buffer.zarr().attrs["diskreplay"]["parts"]
        assert (first, stop) == (4, 160)  # before the first part is nothing
        assert most <= 12  # of 48 rows
        with buffer._rows.store.maintenance.lock:
            shutil.copytree(path, killed)
    assert verify(killed).findings == ()
    with make_buffer(path, capacity=48) as buffer:  # which of them are odd it does not know
        buffer.extend(columns([60, 61]))
        play(buffer, 60)
        buffer.flush()
        buffer.extend(columns([70, 71]))
        buffer.flush()
        assert buffer.zarr().attrs["diskreplay"]["parts"][-1][3] == 1
    assert verify(path).findings == ()


def test_a_kill_does_not_let_the_number_grow(tmp_path):
    """The record names twice as many rows as there are, each time that it is ahead of them."""
    path = tmp_path / "replay"
    code = f"""
        import os, signal
        from pathlib import Path
        from tests.test_late_starts import columns, make_buffer
        buffer = make_buffer(Path({str(path)!r}))
        for first in range(9):
            buffer.extend(columns([first + 5, first + 6, first + 7]))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    for killed in range(1, 4):
        assert processes.run(textwrap.dedent(code)).returncode == -signal.SIGKILL
        assert verify(path).findings == ()
        noted = json.loads((path / "zarr.json").read_text())["attributes"]["diskreplay"]["parts"]
        odd = 9 * killed - 1  # before the first one is nothing
        assert odd <= sum(most for _env, _first, _stop, most in noted) <= 2 * odd
    with make_buffer(path) as buffer:
        buffer.flush()
        assert buffer.zarr().attrs["diskreplay"]["parts"] == [[0, 3, 81, 26]]


def test_ranges_within_what_was_named_ahead_are_counted_together(tmp_path):
    """The record names the first one twice as long, and the second one lies in that."""
    path = tmp_path / "replay"
    with make_buffer(path) as buffer:
        buffer.extend(columns([0, *range(9, 18)]))
        buffer.end_episode()
        play(buffer, 2)
        buffer.end_episode()
        buffer.extend(columns([30, 31, 50, 51, 52]))
        with buffer._rows.store.maintenance.lock:  # as a kill would leave it
            shutil.copytree(path, tmp_path / "copy")
        sound(tmp_path / "copy", [[0, 17]])
    with make_buffer(tmp_path / "copy"):
        pass
    sound(tmp_path / "copy", [[0, 17]])


@pytest.mark.costly
@settings(max_examples=effort(20, 60), deadline=None)
@given(script=st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 20), max_size=9))))
def test_parts_between_rows_of_one_step_each(tmp_path_factory, script):
    path = tmp_path_factory.mktemp("parts") / "replay"
    with make_buffer(path) as buffer:
        for alone, steps in script:
            if steps:
                buffer.extend(columns(steps))
                buffer.end_episode()
            if alone:
                play(buffer, alone)
                buffer.end_episode()
            assert verify(path).findings == ()
    assert verify(path).findings == ()


def test_the_first_rows_of_a_range_are_judged_by_those_before(tmp_path):
    path = tmp_path / "replay"
    code = f"""
        import os, signal
        from pathlib import Path
        from tests.test_late_starts import FINAL, TRUNCATED, columns, make_buffer, play
        buffer = make_buffer(Path({str(path)!r}))
        buffer.extend(columns([0, 1], [0, TRUNCATED]))
        rows = columns([2, 3, 4], [FINAL, 0, 0])
        rows["reward"][0] = 1
        buffer.extend(rows)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert processes.run(textwrap.dedent(code)).returncode == -signal.SIGKILL
    for _ in range(2):
        with make_buffer(path):
            pass
        assert verify(path).findings == ()


def test_a_range_of_before_there_were_numbers_excuses_all(tmp_path, killed):
    old = with_record(killed, tmp_path / "old", parts=[[0, 20, 38]])
    flip_step(old, 28)
    assert verify(old).findings == ()
    with make_buffer(old) as buffer:
        buffer.extend(columns([60, 61]))
    assert verify(old).findings == ()
    with diskreplay.open(old) as reader:
        noted = reader.zarr().attrs["diskreplay"]["parts"]
    assert noted == [[0, 20, 38], [0, 58, 60, 1]]


@pytest.mark.parametrize("most", [-1, "3", 2.0, None, 2**70])
def test_a_damaged_number_is_refused(tmp_path, killed, most):
    damaged = with_record(killed, tmp_path / "damaged", parts=[[0, 20, 38, most]])
    with pytest.raises(FormatError, match="parts"):
        make_buffer(damaged)
    assert "parts" in str(verify(damaged).findings)


def test_begins_that_have_left_take_no_memory(tmp_path):
    with make_buffer(tmp_path / "replay", capacity=48) as buffer:
        for number in range(600):
            play(buffer, 2)
            buffer.end_episode()
            buffer.extend(columns([2, 3]))
            buffer.end_episode()
            if number % 50 == 0:
                buffer._rows.store.maintenance.run(durable=True)
        assert len(buffer._rows.episodes.begins) < 300
        assert len(buffer.begins) == 12
        assert buffer.episodes().rows.tolist() == [2] * 24


@pytest.mark.parametrize("calls", [1, 2])
def test_a_part_behind_a_final_row_is_an_episode_of_its_own_after_an_eviction(tmp_path, calls):
    """That the final row closes its episode is said by the row before it, which leaves first."""
    steps, marks = [0, 1, 2, 3, 4, 5], [NOTHING, TERMINATED, FINAL, NOTHING, NOTHING, NOTHING]
    with make_buffer(tmp_path / "store", stack_size=2) as buffer:
        given_ = columns(steps, marks)
        cut = 6 if calls == 1 else 1  # the ended row comes with the one before, or without
        for part in (slice(0, cut), slice(cut, 6)):
            if part.start < 6:
                buffer.extend({name: values[part] for name, values in given_.items()})
        assert buffer.sampleable_ids().tolist() == [0, 1, 4]
        buffer.evict([2])
        assert buffer.sampleable_ids().tolist() == [4]
        with diskreplay.open(tmp_path / "store") as reader:
            assert reader.sampleable_ids().tolist() == [4]
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    for name in ("store", "killed"):
        with make_buffer(tmp_path / name, stack_size=2) as buffer:
            assert buffer.sampleable_ids().tolist() == [4]
            assert verify(tmp_path / name).clean


@pytest.mark.parametrize("num_envs", [1, 2])
def test_an_end_that_is_refused_cuts_nothing(tmp_path, num_envs):
    seen = np.zeros((num_envs, 2), np.uint8)
    with make_buffer(tmp_path / "store", num_envs=num_envs, stack_size=1) as buffer:
        flags = [True] * num_envs
        given_ = (seen, [0] * num_envs, [1.0] * num_envs, [False] * num_envs, flags)
        buffer.add(*((each[0] for each in given_) if num_envs == 1 else given_))
        for wrong in (np.zeros((num_envs, 7), np.uint8), np.array(["x"] * 2 * num_envs)):
            if num_envs > 1:  # of one env nothing is looked at where no episode is under way
                with pytest.raises(diskreplay.DiskReplayError):
                    buffer.end_episode(next_observation=wrong)
        last = num_envs - 1
        buffer.extend(columns([1], [FINAL]), last)  # what the last env's step has led to
        assert buffer.sampleable_ids().tolist() == [last]
