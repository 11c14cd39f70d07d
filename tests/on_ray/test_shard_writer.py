"""Rows that a writer sends to shards whose answers are lost, beside lists; without a cluster."""

import contextlib
import pickle
import signal
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.errors import (
    ClosedError,
    DisconnectedError,
    InvalidInputError,
    RateLimiterTimeout,
    RowsMissingError,
    ShardsLostError,
    UsageError,
)
from diskreplay.ray import shard_writer
from diskreplay.ray.messages import Chunk, Lease
from diskreplay.ray.shard_writer import ShardWriter
from tests.effort import effort
from tests.on_ray.without_ray import BUFFER, LocalActor, frames, local_shard, use_local_actors

ENVS = 2
OPTIONS = {
    "name": "r", "num_shards": 2, "timeout": 5.0, "shard_timeout": 5.0, "lease_seconds": 600.0,
    "failover_after": None, "buffer": BUFFER,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _local(monkeypatch):
    use_local_actors(monkeypatch)
    monkeypatch.setattr(shard_writer.time, "sleep", lambda seconds: None)


def writer_of(actor, shard=0, *, chunk_rows=6, limited=False, **options):
    lease = actor.made.lease(ENVS, 600.0)
    return ShardWriter(
        None, actor, shard, lease, OPTIONS | options, chunk_rows=chunk_rows, limited=limited
    )


def step(writer, number, *, ended=False):
    numbers = 1000 * np.arange(ENVS) + number
    no = np.zeros(ENVS, bool)
    writer.add(
        frames(numbers), numbers % 5, numbers % 7, np.full(ENVS, ended), no, frames(-numbers),
        number=numbers,
    )  # fmt: skip


def added(writer, number, *, ended=False):
    """A step that is recorded, whatever can be sent: some wait, and else it is added again."""
    while True:
        try:
            return step(writer, number, ended=ended)
        except ShardsLostError as error:
            says = str(error)
            if error.is_recorded == ("not recorded" in says):
                pytest.fail(f"{error.is_recorded}: {says}")
            if error.is_recorded:
                return None


def recorded(writer):
    """How many rows of the first env are recorded: those that have numbers, and the others."""
    unsent = sum(int(each.chunk.lengths[0]) for each in writer._unsent)
    return int(writer._next[0]) + unsent + int(writer._builder.filled[0])


def stored(actor, env):
    """The numbers of the transitions of an env; of a final row -1."""
    buffer = actor.made._checked()
    first, count = buffer.bounds[env].tolist()
    ids = np.arange(first, count) * buffer.num_envs + env
    return np.where(buffer.take("is_final", ids), -1, buffer.take("number", ids)).tolist()


def listed(steps, env, ends):
    """What `stored` has to be after steps of which some end episodes."""
    found = []
    for number in steps:
        found += [1000 * env + number, *([-1] if number in ends else [])]
    return found


class ListShard:
    """What a shard promises, with a list of rows for each env."""

    def __init__(self):
        self.rows, self.is_leased = [[] for _ in range(ENVS)], True

    def lease(self, size, seconds):
        return Lease("token", list(range(size)), [0] * size, 1)

    def renew(self, token, envs, hand_on):
        assert not hand_on
        return Lease(token, envs, [len(self.rows[env]) for env in envs], 1)

    def release(self, token):
        self.is_leased = False

    def append(self, token, generation, chunk, seconds):
        assert self.is_leased
        has, at = [len(rows) for rows in self.rows], 0
        if (chunk.first_rows > has).any():
            raise RowsMissingError("rows before these are not there")
        for env, (first, length) in enumerate(zip(chunk.first_rows, chunk.lengths, strict=True)):
            number = np.where(chunk.columns["is_final"], -1, chunk.columns["number"])
            rows = number[at : at + length].tolist()
            self.rows[env] += rows[has[env] - first :]
            at += length
        return [len(rows) for rows in self.rows], None


@settings(max_examples=effort(30, 80, 400))
@given(
    st.lists(st.sampled_from([None, None, "before", "after"]), max_size=14),
    st.sets(st.integers(0, 29), max_size=6), st.integers(1, 9),
)  # fmt: skip
def test_each_row_comes_once_whatever_answers_are_lost(faults, ends, chunk_rows):
    actor = LocalActor(ListShard())
    writer = writer_of(actor, chunk_rows=chunk_rows)
    actor.faults = list(faults)
    for number in range(30):
        added(writer, number, ended=number in ends)
    while True:
        with contextlib.suppress(ShardsLostError):
            writer.flush()
            break
    for env in range(ENVS):
        assert actor.made.rows[env] == listed(range(30), env, ends)
        assert writer.acknowledged[env] == len(actor.made.rows[env])
    actor.faults = []  # a local actor is not asked again
    writer.close()
    writer.close()
    assert actor.asked.count("release") == 1
    with pytest.raises(ClosedError):
        step(writer, 30)


def test_at_most_two_chunks_are_on_their_way(tmp_path):
    actor = local_shard(tmp_path)
    writer = writer_of(actor, chunk_rows=4)
    for number in range(4):
        step(writer, number)
    assert actor.asked.count("append") == 1
    assert writer.acknowledged.tolist() == [0, 0]  # asked for only when there are two of them
    for number in range(4, 12):
        step(writer, number)
    assert actor.asked.count("append") == 3
    assert writer.acknowledged.tolist() == [4, 4]
    assert len(writer._sent) == 2
    writer.flush()
    assert writer.acknowledged.tolist() == [12, 12]
    asked = len(actor.asked)
    writer.flush()
    assert len(actor.asked) == asked
    actor.made.close()


def test_the_limiter_is_asked_for_each_transition_once_and_before_they_are_sent(
    tmp_path, monkeypatch
):
    actor, passed = local_shard(tmp_path), []

    def let_pass(coordinator, what, count, timeout):
        passed.append((what, count, timeout, actor.asked.count("append")))

    monkeypatch.setattr(shard_writer, "let_pass", let_pass)
    writer = writer_of(actor, limited=True)
    for number in range(14):
        step(writer, number, ended=number == 2)
    writer.close()
    assert [each[0] for each in passed] == ["acquire_insert"] * len(passed)
    assert sum(each[1] for each in passed) == 14 * ENVS  # final rows are none
    assert [each[3] for each in passed] == list(range(len(passed)))
    assert {each[2] for each in passed} == {5.0}
    actor.made.close()


def test_while_nothing_can_be_sent_few_steps_are_taken(tmp_path, monkeypatch):
    """Each step that was recorded comes once, and each that was not can be added again."""
    actor, open_ = local_shard(tmp_path), []

    def let_pass(coordinator, what, count, timeout):
        if not open_:
            raise RateLimiterTimeout("waited 0 s to insert")

    monkeypatch.setattr(shard_writer, "let_pass", let_pass)
    writer, kept, taken = writer_of(actor, chunk_rows=4, limited=True), [], 0
    for number in range(50):
        try:
            step(writer, number)
        except RateLimiterTimeout as error:
            if not error.is_recorded and "since 2 chunks of 4 steps wait" in str(error):
                continue
        kept.append(number)
        taken = len(kept)
        assert recorded(writer) == taken
    assert kept == list(range(8))
    open_.append(True)
    for number in range(8, 20):
        step(writer, number)
    writer.close()
    for env in range(ENVS):
        assert stored(actor, env) == listed(range(20), env, ())
    actor.made.close()


def interrupted(number):
    """What raises Ctrl-C before line `number` of those of a writer that run; None once it has."""
    left = [number]

    def trace(frame, event, _argument):
        if not frame.f_code.co_filename.endswith(("shard_writer.py", "trajectory_builder.py")):
            return None
        if event == "line" and "tests" not in frame.f_code.co_filename:
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    return trace, left


@pytest.mark.parametrize("limited", [False, True])
def test_ctrl_c_before_any_line_loses_no_row_and_makes_none_twice(monkeypatch, limited):
    monkeypatch.setattr(shard_writer, "let_pass", lambda *_what: None)
    tracing, ends = sys.gettrace(), {2, 6}
    at, left = 1, [0]
    while left[0] <= 0:
        actor = LocalActor(ListShard())
        writer = writer_of(actor, chunk_rows=3, limited=limited)
        actor.faults = ["after", None, None, "before"]
        trace, left = interrupted(at)
        for number in range(11):
            before = recorded(writer)
            sys.settrace(trace)
            try:
                added(writer, number, ended=number in ends)
            except KeyboardInterrupt:
                sys.settrace(tracing)
                rows = recorded(writer) - before
                assert rows in (0, 2 if number in ends else 1)  # all of a step, or nothing
                if not rows:
                    added(writer, number, ended=number in ends)
            finally:
                sys.settrace(tracing)
        sys.settrace(trace)
        for _ in range(3):
            with contextlib.suppress(KeyboardInterrupt, ShardsLostError):
                writer.flush()
            sys.settrace(tracing)
        for env in range(ENVS):
            assert actor.made.rows[env] == listed(range(11), env, ends), at
            assert writer.acknowledged[env] == len(actor.made.rows[env])
        at += effort(7, 3, 1)


def test_after_a_load_the_next_episodes_follow_the_rows_of_the_checkpoint(tmp_path):
    actor = local_shard(tmp_path)
    writer = writer_of(actor, chunk_rows=4)
    for number in range(8):
        step(writer, number, ended=number == 5)
    writer.flush()
    buffer = actor.made._checked()
    path = buffer.save(tmp_path / "ck", 1)
    for number in range(8, 20):
        step(writer, number, ended=number == 17)
    writer.flush()
    buffer.load(tmp_path / "ck", 1)
    for number in range(20, 24):
        step(writer, number, ended=number == 21)
    with pytest.warns(RuntimeWarning, match=r"have \[9, 9\] now, after a power cut"):
        writer.flush()
    step(writer, 24, ended=True)
    writer.close()
    assert path.exists()
    for env in range(ENVS):  # 18 to 21 are the rest of an episode whose beginning is gone
        assert stored(actor, env) == listed([*range(8), 22, 23, 24], env, {5, 24})
        assert writer.acknowledged[env] == 9 + 3 + 1
    ids = np.arange(*buffer.bounds[0]) * ENVS
    assert buffer.take("step", ids).tolist() == [*range(7), 0, 1, 0, 1, 2, 3]
    actor.made.close()


def two_shards(directory, monkeypatch, free):
    """Two, of which the second has so many free envs; and a writer of the first."""
    actors = [local_shard(directory, number, 2) for number in range(2)]
    describe = {"free_envs": free, "transitions": 0}
    monkeypatch.setattr(actors[1].made, "describe", lambda: describe)
    actors[1].made.lease(2 - free, 600.0) if free < 2 else None
    monkeypatch.setattr(shard_writer, "shards_of", lambda name, count: actors)
    writer = writer_of(actors[0], chunk_rows=4, failover_after=0.0)
    for number in range(6):
        step(writer, number)
    writer.flush()
    actors[0].is_away = True
    for number in range(6, 11):
        step(writer, number, ended=number == 10)
    return actors, writer


def test_a_writer_of_a_shard_that_is_gone_goes_on_in_another_one(tmp_path, monkeypatch):
    actors, writer = two_shards(tmp_path, monkeypatch, 2)
    with pytest.warns(RuntimeWarning, match=r"goes on in shard 1. 12 rows that were not"):
        writer.flush()
    assert writer.shard == 1
    assert writer.acknowledged.tolist() == [0, 0]
    for number in range(11, 15):
        step(writer, number)
    writer.flush()
    for env in range(ENVS):
        assert stored(actors[0], env) == listed(range(6), env, ())
        assert stored(actors[1], env) == listed(range(11, 15), env, ())
    for actor in actors:
        actor.made.close()


@pytest.mark.parametrize("ended", [True, False])
def test_steps_that_are_in_no_chunk_yet_go_to_the_other_shard(tmp_path, monkeypatch, ended):
    """But for the rest of an episode whose beginning is in the shard that is lost."""
    actors = [local_shard(tmp_path, number, 2) for number in range(2)]
    describe = {"free_envs": 2, "transitions": 0}
    monkeypatch.setattr(actors[1].made, "describe", lambda: describe)
    monkeypatch.setattr(shard_writer, "shards_of", lambda name, count: actors)
    writer = writer_of(actors[0], chunk_rows=4, failover_after=0.0)
    for number in range(6):
        step(writer, number)
    actors[0].is_away = True
    for number in range(6, 10):
        step(writer, number, ended=ended and number == 8)
    with pytest.warns(RuntimeWarning, match="goes on in shard 1"):
        writer._begin_again()
    for number in range(10, 15):
        step(writer, number, ended=number == 12)
    writer.flush()
    kept = listed(range(9, 15) if ended else [13, 14], 0, {12} if ended else ())
    assert stored(actors[1], 0) == kept
    assert writer.acknowledged.tolist() == [len(kept)] * ENVS
    for actor in actors:
        actor.made.close()


def test_a_writer_that_no_shard_has_room_for_waits_for_its_own(tmp_path, monkeypatch):
    actors, writer = two_shards(tmp_path, monkeypatch, 1)
    with pytest.raises(ShardsLostError, match=r"no other one has 2 envs.*; 12 rows wait in it"):
        writer.flush()
    actors[0].is_away = False
    writer.flush()
    assert writer.shard == 0
    for env in range(ENVS):
        assert stored(actors[0], env) == listed(range(11), env, {10})
    for actor in actors:
        actor.made.close()


def test_what_is_not_acknowledged_when_ray_ends_is_said(tmp_path, monkeypatch):
    actor = local_shard(tmp_path)
    writer = writer_of(actor, chunk_rows=4)
    for number in range(6):
        step(writer, number)

    def answer(call, timeout):
        raise DisconnectedError("Ray is not connected")

    monkeypatch.setattr(shard_writer, "answer", answer)
    with pytest.raises(DisconnectedError):
        writer.flush()
    with pytest.warns(RuntimeWarning, match=f"before {6 * ENVS} rows of this writer"):
        writer.close()
    writer.close()
    actor.made.close()


def test_a_writer_whose_rows_are_all_there_is_closed_though_its_shard_is_gone():
    actor = LocalActor(ListShard())
    writer = writer_of(actor, chunk_rows=2)
    for number in range(4):
        step(writer, number)
    writer.flush()
    actor.is_away = True
    writer.close()
    with pytest.raises(ClosedError):
        step(writer, 4)
    assert actor.made.is_leased  # until it ends by itself


def test_a_writer_is_sent_when_no_rows_wait_in_it(tmp_path, monkeypatch):
    actor = local_shard(tmp_path)
    monkeypatch.setattr(LocalActor, "__reduce__", lambda self: (_the, (id(self),)), raising=False)
    _ACTORS[id(actor)] = actor
    writer = writer_of(actor, chunk_rows=4)
    step(writer, 0)
    with pytest.raises(InvalidInputError, match="only when no rows wait"):
        pickle.dumps(writer)
    for number in range(1, 4):
        step(writer, number)
    with pytest.raises(InvalidInputError, match="only when no rows wait"):
        pickle.dumps(writer)
    writer.flush()
    again = pickle.loads(pickle.dumps(writer))
    with again:
        for number in range(4, 9):
            step(again, number)
    for env in range(ENVS):
        assert stored(actor, env) == listed(range(9), env, ())
    actor.made.close()


_ACTORS = {}


def _the(key):
    return _ACTORS[key]


@settings(max_examples=effort(30, 80, 300))
@given(st.lists(st.lists(st.booleans(), max_size=5), min_size=1, max_size=4), st.data())
def test_the_rest_of_an_episode_is_left_out_of_a_chunk(begins, data):
    """Of each env a list of whether its rows begin an episode; some envs wait for one."""
    waiting = np.array(data.draw(st.lists(st.booleans(), min_size=len(begins),
                                          max_size=len(begins))))  # fmt: skip
    step_ = np.array([0 if begin else 3 for env in begins for begin in env], np.int32)
    number = np.arange(len(step_))
    lengths = np.array([len(env) for env in begins])
    chunk = Chunk(
        {"step": step_, "number": number}, np.arange(len(begins)), lengths * 0, lengths,
        number / 2,
    )  # fmt: skip
    kept, still, at = [], [], 0
    for env, its in enumerate(begins):
        rows = list(range(at, at + len(its)))
        at += len(its)
        first = next((i for i, begin in enumerate(its) if begin), len(its)) if waiting[env] else 0
        kept.append(rows[first:])
        still.append(bool(waiting[env]) and not any(its))
    waits = waiting.copy()
    found = shard_writer._without_rests(chunk, waits)
    rows = [row for its in kept for row in its]
    assert found.columns["number"].tolist() == rows
    assert found.priority.tolist() == [row / 2 for row in rows]
    assert found.lengths.tolist() == [len(rows) for rows in kept]
    assert waits.tolist() == still
    assert chunk.lengths.tolist() == lengths.tolist()


def copied(writer):
    """What another process has of a writer that was sent there."""
    made, arguments = writer.__reduce__()
    return made(*arguments)


def late_steps(writer):
    for number in range(4):
        step(writer, number)
    writer.flush()


def test_a_task_that_runs_again_goes_on_behind_the_rows_of_the_first_time(tmp_path):
    """Ray gives it the same writer: rows with the numbers of before would be left out."""
    actor = local_shard(tmp_path)
    sent = writer_of(actor, chunk_rows=4)
    first, again = copied(sent), copied(sent)
    for number in range(10):
        step(first, number)
    first.flush()
    for number in range(500, 515):
        step(again, number)
    again.flush()
    assert again.acknowledged.tolist() == [25, 25]
    numbers = [*range(10), *range(500, 515)]
    for env in range(ENVS):
        assert stored(actor, env) == listed(numbers, env, ())
    assert actor.made._buffer.take("step", [10 * ENVS]) == 0  # another episode
    for late in (first, sent):
        with pytest.raises(UsageError, match="a copy in another process that adds now"):
            late_steps(late)
    for number in range(515, 520):
        step(again, number)
    again.close()
    assert stored(actor, 0) == listed([*numbers, *range(515, 520)], 0, ())
    assert actor.made.lease(ENVS, 600.0) is not None  # its envs are free
    actor.made.close()


def test_a_copy_that_adds_nothing_takes_nothing(tmp_path):
    actor = local_shard(tmp_path)
    writer = writer_of(actor, chunk_rows=4)
    copied(writer).flush()
    for number in range(10):
        step(writer, number)
    writer.flush()
    assert writer.acknowledged.tolist() == [10, 10]
    actor.made.close()


def test_a_copy_goes_on_elsewhere_where_its_shard_is_lost_before_its_first_rows(
    tmp_path, monkeypatch
):
    actors = [local_shard(tmp_path, number, 2) for number in range(2)]
    described = {"free_envs": ENVS, "transitions": 0}
    monkeypatch.setattr(actors[1].made, "describe", lambda: described)
    monkeypatch.setattr(shard_writer, "shards_of", lambda name, count: actors)
    copy = copied(writer_of(actors[0], chunk_rows=4, failover_after=0.0))
    actors[0].is_away = True
    for number in range(3):
        step(copy, number)
    with pytest.warns(RuntimeWarning, match="goes on in shard 1"):
        step(copy, 3)
    for number in range(4, 10):
        step(copy, number)
    copy.flush()
    assert copy.shard == 1
    assert stored(actors[1], 0) == listed(range(10), 0, ())
    for actor in actors:
        actor.made.close()
