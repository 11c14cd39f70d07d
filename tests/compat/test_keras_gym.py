"""keras-gym's buffer beside a model of it: lists, and one row after the other."""

import json
import signal
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import diskreplay
from diskreplay.compat.keras_gym import (
    ExperienceReplayBuffer,
    InsufficientCacheError,
    NumpyArrayCheckError,
)
from diskreplay.errors import InvalidInputError, LockedError, ShapeError
from tests import processes
from tests.effort import effort

ROOT = Path(__file__).resolve().parents[2]


class Env:
    def __init__(self, num_frames=None, action_space=None):
        self.action_space = action_space or Discrete(3)
        if num_frames is not None:
            self.num_frames = num_frames


class Model:
    """What the buffer should do, slowly."""

    def __init__(self, num_frames, capacity, batch_size, n, gamma, seed):
        self.num_frames, self.batch_size, self.n, self.gamma = num_frames, batch_size, n, gamma
        self.slots = capacity + n
        self.seed(seed)
        self.clear()

    def seed(self, seed):
        self.random = np.random.RandomState(seed)

    def clear(self):
        self.rows = []  # all that were ever added
        self.break_off()

    def break_off(self):
        self.last_id = None

    def add(self, frame, action, r, done, episode_id):
        new = self.last_id is None or episode_id != self.last_id
        episode = (self.rows[-1]["episode"] if self.rows else 0) + new
        self.rows.append(
            {"s": frame, "a": action, "r": r, "done": done, "id": episode_id, "episode": episode}
        )
        self.last_id = None if done else episode_id

    @property
    def oldest(self):
        return max(0, len(self.rows) - self.slots)

    def __len__(self):
        return max(0, len(self.rows) - self.oldest - self.n)

    def in_slot(self, slot):
        """The number of the row in a slot, or None."""
        numbers = [g for g in range(self.oldest, len(self.rows)) if g % self.slots == slot]
        return numbers[0] if numbers else None

    def stack(self, g):
        episode = self.rows[g]["episode"]
        frames = []
        for k in reversed(range(self.num_frames)):
            at = g
            for _ in range(k):
                if at > 0 and self.rows[at - 1]["episode"] == episode:
                    at -= 1
            frames.append(self.rows[at]["s"])
        return frames

    def raw_stack(self, g):
        """After an end: whatever is in the slots, older episodes replaced by what follows them."""
        episode = self.rows[g]["episode"]
        frames = []
        for k in range(self.num_frames):  # newest first
            h = self.in_slot((g + self.n - k) % self.slots)
            older = h is None or self.rows[h]["episode"] < episode
            if k and older:
                frames.append(frames[-1])
            else:
                frames.append(np.zeros_like(self.rows[0]["s"]) if h is None else self.rows[h]["s"])
        return frames[::-1]

    def transition(self, g):
        row = self.rows[g]
        if g - self.num_frames + 1 < len(self.rows) - self.slots:
            return None  # round the ring, its stack would meet the newest rows
        total, discount = 0.0, np.power([self.gamma], self.n)[0]  # as the original's array
        for k in range(self.n):
            if g + k >= len(self.rows) or self.rows[g + k]["episode"] != row["episode"]:
                return None
            total += self.gamma**k * self.rows[g + k]["r"]
            if self.rows[g + k]["done"]:
                discount = 0.0
                break
        if discount:
            if g + self.n >= len(self.rows):
                return None
            if self.rows[g + self.n]["episode"] != row["episode"]:
                return None
            next_stack = self.stack(g + self.n)
        else:
            next_stack = self.raw_stack(g)
        h = self.in_slot((g + self.n) % self.slots)
        next_action = np.zeros_like(row["a"]) if h is None else self.rows[h]["a"]
        return self.stack(g), row["a"], total, discount, next_stack, next_action

    def sample(self):
        if len(self) < self.batch_size:
            raise InsufficientCacheError
        batch = []
        for _ in range(10 * self.batch_size):
            drawn = self.random.randint(min(len(self.rows), self.slots))
            transition = self.transition(self.in_slot(drawn))
            if transition is not None:
                batch.append(transition)
            if len(batch) == self.batch_size:
                columns = [np.array(column) for column in zip(*batch, strict=True)]
                for i in (0, 4):
                    columns[i] = np.moveaxis(columns[i], 1, -1)
                    if self.num_frames == 1:
                        columns[i] = columns[i][..., 0]
                return columns
        raise RuntimeError


def outcome(buffer):
    """The batch, or the kind of the error."""
    try:
        return buffer.sample()
    except (InsufficientCacheError, RuntimeError) as error:
        return type(error)


def assert_same_batch(found, expected):
    if isinstance(expected, type):
        assert found is expected
        return
    for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours.dtype == theirs.dtype
        assert_array_equal(ours, theirs, err_msg=f"column {i}")


steps = st.lists(
    st.tuples(
        st.sampled_from(["go", "go", "go", "go", "done", "cut"]),
        st.integers(0, 2),
        st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2, 3]),
    ),
    max_size=50,
)


@pytest.mark.costly
@settings(max_examples=effort(20, 40), deadline=None)
@given(
    steps=steps,
    num_frames=st.integers(1, 3),
    capacity=st.integers(2, 9),
    n=st.integers(1, 4),
    batch_size=st.integers(1, 4),
    first_id=st.integers(0, 1),
    seed=st.integers(0, 99),
)
def test_every_batch_is_the_models(steps, num_frames, capacity, n, batch_size, first_id, seed):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store"

        def make():
            return ExperienceReplayBuffer(
                Env(num_frames), capacity, batch_size, n, 0.9, seed, path=path
            )

        model = Model(num_frames, capacity, batch_size, n, 0.9, seed)
        buffer, episode_id = make(), first_id
        for i, (end, action, event) in enumerate(steps):
            frame = np.full((2, 3), i, np.int16)
            shown = np.repeat(frame[..., None], num_frames, axis=-1)
            shown[..., :-1] = -1  # only the newest one is kept
            one_hot = np.eye(3)[action]
            done = end == "done"
            buffer.add(
                shown if num_frames > 1 else frame, one_hot if i % 5 == 4 else action, i / 7, done,
                episode_id,
            )  # fmt: skip
            model.add(frame, one_hot, i / 7, done, episode_id)
            episode_id += end != "go"
            if event == 1:  # reopened
                buffer.close()
                buffer = make()
                model.seed(seed)
            elif event == 2 and i % 4 == 3:
                buffer.clear()
                model.clear()
            assert len(buffer) == len(model)
            assert bool(buffer) == bool(len(model))
            if event == 3 or i > len(steps) - 4:
                assert_same_batch(outcome(buffer), outcome(model))
        if steps:
            ids = [model.in_slot(slot) for slot in range(model.slots)]
            for name, key in (("_s", "s"), ("_a", "a"), ("_r", "r"), ("_d", "done"), ("_e", "id")):
                column = getattr(buffer, name)
                assert len(column) == capacity + n
                for slot, g in enumerate(ids):
                    expected = 0 if g is None else model.rows[g][key]
                    assert (column[slot] == expected).all()
        buffer.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_long_stream_of_batches_is_the_models(seed):
    """Round the ring many times, a batch after every row."""
    rng = np.random.default_rng(seed)
    num_frames, n, capacity = 1 + seed % 4, 1 + seed % 3, int(rng.integers(5, 16))
    buffer = ExperienceReplayBuffer(Env(num_frames), capacity, 3, n, 0.95, seed)
    model = Model(num_frames, capacity, 3, n, 0.95, seed)
    episode_id = 1
    for i in range(150):
        done = rng.random() < 0.3
        frame = np.array([[i]])
        shown = np.repeat(frame[..., None], num_frames, axis=-1)
        buffer.add(shown if num_frames > 1 else frame, i % 3, i / 3, done, episode_id)
        model.add(frame, np.eye(3)[i % 3], i / 3, done, episode_id)
        episode_id += bool(done or rng.random() < 0.05)
        assert_same_batch(outcome(buffer), outcome(model))


def filled(rows=40, **options):
    buffer = ExperienceReplayBuffer(Env(2), 20, **{"batch_size": 4, "random_seed": 3, **options})
    for i in range(rows):
        buffer.add(np.full((2, 2, 2), i), i % 3, 1.0, i % 7 == 6, i // 7)
    return buffer


def test_a_seed_repeats_a_sample_and_setting_it_starts_anew():
    one, other = filled(), filled()
    first = one.sample()
    assert_same_batch(other.sample(), first)
    assert not np.array_equal(one.sample()[0], first[0])
    one.random_seed = 3
    assert_same_batch(one.sample(), first)


def test_a_batch_is_a_copy():
    buffer = filled()
    batch = buffer.sample()
    before = [column.copy() for column in batch]
    for i in range(50):
        buffer.add(np.full((2, 2, 2), -i), 0, -1.0, False, 9)
    buffer.sample()
    assert_same_batch(batch, before)


def test_before_the_first_row():
    buffer = ExperienceReplayBuffer(Env(), 5)
    assert len(buffer) == 0
    assert not buffer
    assert buffer.path is None
    buffer.clear()
    with pytest.raises(InsufficientCacheError):
        buffer.sample()


def test_num_frames_is_that_of_the_outermost_env_that_has_one():
    inner, outer = Env(3), Env()
    inner.env = Env(5)
    outer.env = inner
    assert ExperienceReplayBuffer(outer, 5).num_frames == 3
    assert ExperienceReplayBuffer(Env(), 5).num_frames == 1


def test_from_value_function():
    class Q:
        env, gamma, bootstrap_n = Env(2), 0.5, 3

    buffer = ExperienceReplayBuffer.from_value_function(Q, 10, batch_size=2)
    assert (buffer.env, buffer.gamma, buffer.bootstrap_n) == (Q.env, 0.5, 3)
    assert (buffer.capacity, buffer.batch_size, buffer.num_frames) == (10, 2, 2)
    assert buffer.random_seed is None


@pytest.mark.parametrize("state", [3, 2.5, np.float32(1), np.arange(4, dtype=np.uint8)])
def test_one_frame_takes_arrays_and_numbers(state):
    buffer = ExperienceReplayBuffer(Env(), 5, batch_size=2)
    for _ in range(4):
        buffer.add(state, 0, 0, False, 0)
    states = buffer.sample()[0]
    assert states.shape == (2, *np.shape(state))
    assert states.dtype == np.asarray(state).dtype
    assert (states == state).all()


def test_states_of_another_rank_are_stored_whole():
    buffer = ExperienceReplayBuffer(Env(3), 5, batch_size=2)
    for i in range(4):
        buffer.add(np.array([i, 10 * i, 100 * i]), 0, 0, False, 1)
    states = buffer.sample()[0]
    assert states.shape == (2, 3, 3)
    assert_array_equal(states[:, 1], 10 * states[:, 0])


def test_rank_four_keeps_the_newest_frame():
    buffer = ExperienceReplayBuffer(Env(2), 5, batch_size=2)
    for i in range(4):
        buffer.add(np.full((2, 3, 4, 2), i, np.uint8), 0, 0, False, 1)
    assert buffer.sample()[0].shape == (2, 2, 3, 4, 2)


@pytest.mark.parametrize("state", [[[1, 2]], 3, np.zeros((2, 2, 3)), np.zeros(())])
def test_states_without_their_frames_are_refused(state):
    buffer = ExperienceReplayBuffer(Env(2), 5)
    with pytest.raises(NumpyArrayCheckError):
        buffer.add(state, 0, 0, False, 0)
    assert buffer.path is None


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (1.0, AssertionError), ([0, 1, 0], AssertionError), (np.zeros(2), AssertionError),
        (np.array(1), AssertionError), ("1", AssertionError), (3, ValueError), (-1, ValueError),
    ],
)  # fmt: skip
def test_a_refused_add_changes_nothing(action, error):
    buffer = filled(10)
    before = buffer._s, buffer._e, len(buffer)
    with pytest.raises(error):
        buffer.add(np.zeros((2, 2, 2), int), action, 0, False, 1)
    with pytest.raises(ShapeError):
        buffer.add(np.zeros((3, 2, 2), int), 0, 0, False, 1)
    assert_array_equal(buffer._s, before[0])
    assert_array_equal(buffer._e, before[1])
    assert len(buffer) == before[2]


def test_a_refused_add_does_not_cut_the_episode(tmp_path):
    with ExperienceReplayBuffer(Env(), 10, 3, path=tmp_path / "s") as buffer:
        for i in range(3):
            buffer.add(np.zeros(2), 0, i, False, 5)
        for state, episode_id in (np.zeros(3), 6), (np.zeros(2, complex), 6), (np.zeros(2), 2**63):
            with pytest.raises(InvalidInputError):
                buffer.add(state, 0, 3, False, episode_id)
        buffer.add(np.zeros(2), 0, 3, False, 5)
        assert_array_equal(buffer._starts[:4], 0)
        with diskreplay.open(tmp_path / "s") as reader:
            assert_array_equal(reader.take("step", np.arange(4)), np.arange(4))


@pytest.mark.parametrize("reward", [1e300, -1e300, np.inf, np.nan])
def test_rewards_that_are_no_float32_are_kept(reward, tmp_path):
    with ExperienceReplayBuffer(Env(), 5, 3, path=tmp_path / "s") as buffer:
        for i in range(4):
            buffer.add(np.zeros(1), 0, reward, i == 3, 0)
    with ExperienceReplayBuffer(Env(), 5, 3, path=tmp_path / "s") as buffer:
        assert_array_equal(buffer._r[:4], reward)
        assert_array_equal(buffer.sample()[2], [reward] * 3)
    with diskreplay.open(tmp_path / "s") as reader:
        assert_array_equal(reader.take("reward", np.arange(4)), np.zeros(4))


def test_an_episode_goes_on_after_reopening(tmp_path):
    def make():
        return ExperienceReplayBuffer(Env(2), 20, 8, random_seed=1, path=tmp_path / "s")

    for start in (0, 5):
        with make() as buffer:
            for i in range(start, start + 5):
                buffer.add(np.full((1, 1, 2), i), 0, 0, False, 3)
    with make() as buffer:
        states, _, _, _, following, _ = buffer.sample()
        assert_array_equal(following - states, np.where(states[..., :1] == states[..., 1:],
                           [0, 1], 1))  # fmt: skip
        drawn = {tuple(pair) for _ in range(20) for pair in buffer.sample()[0][:, 0, 0].tolist()}
        assert drawn == {(0, 0), *((i, i + 1) for i in range(8))}
        with diskreplay.open(tmp_path / "s") as reader:
            assert_array_equal(reader.take("step", np.arange(10)), np.arange(10))
        buffer.add(np.full((1, 1, 2), 10), 0, 0, False, 4)
        assert buffer._starts[10] == 10


def test_an_action_may_be_a_bool():
    buffer = filled(0)
    for action in (True, False, np.int8(2)):
        buffer.add(np.zeros((2, 2, 2), int), action, 0, False, 1)
    assert buffer._a[:3].tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_the_bootstrap_factor_is_numpys_power(n):
    buffer = ExperienceReplayBuffer(Env(), 20, 1, n, 0.99)
    for _ in range(12):
        buffer.add(np.zeros(2), 0, 1.0, False, 1)
    assert buffer.sample()[3][0] == np.power([0.99], n)[0]


def test_what_the_action_space_is():
    discrete, box = filled(0), ExperienceReplayBuffer(Env(action_space=Box(0, 1, (2,))), 5, 2)
    assert (discrete.action_space_is_discrete, discrete.action_space_is_box) == (True, False)
    assert (box.action_space_is_discrete, box.action_space_is_box) == (False, True)
    assert discrete.num_actions == 3
    assert not hasattr(box, "num_actions")
    box.add(np.zeros(1), 0.5, 0, False, 0)
    assert box._a[0].tolist() == [0.5, 0.5]
    for action in ([1, 2, 3], None, "1", [None, None], [[1], [2]]):
        with pytest.raises(ShapeError):
            box.add(np.zeros(1), action, 0, False, 0)
    assert box._count == 1
    whole = ExperienceReplayBuffer(Env(action_space=Box(0, 100, (2,), np.uint8)), 5, 2)
    for action in (300, -1, 2.5, [1, 256]):
        with pytest.raises(InvalidInputError):
            whole.add(np.zeros(1), action, 0, False, 0)
    whole.add(np.zeros(1), [1, 255], 0, False, 0)
    assert whole._a[0].tolist() == [1, 255]


def test_box_actions_keep_shape_and_dtype():
    buffer = ExperienceReplayBuffer(Env(action_space=Box(-1, 1, (2,), np.float32)), 5, 2)
    for i in range(5):
        buffer.add(np.zeros(1), [i / 8, -i / 8], 0, False, 0)
    actions = buffer.sample()[1]
    assert (actions.dtype, actions.shape) == (np.float32, (2, 2))
    assert_array_equal(actions[:, 0], -actions[:, 1])


def test_spaces_go_by_their_name():
    class Discrete:  # as of a gym that is not installed
        n = 4

    buffer = ExperienceReplayBuffer(Env(action_space=Discrete()), 5, 2)
    for _ in range(4):
        buffer.add(np.zeros(1), 3, 0, False, 0)
    assert_array_equal(buffer.sample()[1], [[0, 0, 0, 1]] * 2)


def test_rows_that_cannot_be_used_end_in_an_error():
    buffer = ExperienceReplayBuffer(Env(), 10, batch_size=2)
    for i in range(9):
        buffer.add(np.zeros(1), 0, 0, False, i)  # each one cut
    with pytest.raises(RuntimeError, match="0 rows of 2"):
        buffer.sample()


def test_an_episode_longer_than_the_ring_keeps_its_order():
    buffer = ExperienceReplayBuffer(Env(3), 10, batch_size=8, random_seed=1)
    for i in range(47):
        buffer.add(np.full((1, 1, 3), i), 0, 0, False, 5)
    for _ in range(10):
        batch = buffer.sample()
        assert (np.diff(batch[0][:, 0, 0]) == 1).all()
        assert_array_equal(batch[4], batch[0] + 1)


def test_an_end_ends_an_episode_even_if_its_id_goes_on():
    buffer = ExperienceReplayBuffer(Env(3), 20, batch_size=10, random_seed=1)
    for i in range(12):
        buffer.add(np.full((1, 1, 3), i), 0, 0, i == 5, 7)
    states = buffer.sample()[0][:, 0, 0]
    assert {tuple(state) for state in states} & {(6, 6, 6), (6, 6, 7)}
    assert all(state.min() > 5 or state.max() < 6 for state in states)


def test_what_other_programs_see(tmp_path):
    with ExperienceReplayBuffer(Env(), 20, path=tmp_path / "s") as buffer:
        for i in range(9):
            buffer.add(np.array([i]), i % 3, i / 2, i == 3, 0 if i < 4 else i // 6 + 1)
        buffer.flush()
        with diskreplay.open(tmp_path / "s") as reader:
            assert_array_equal(reader.take("observation", np.arange(9)), np.arange(9)[:, None])
            assert_array_equal(reader.take("step", np.arange(9)), [0, 1, 2, 3, 0, 1, 0, 1, 2])
            assert_array_equal(reader.take("reward", np.arange(9)), np.arange(9) / 2)
        with pytest.raises(LockedError):
            ExperienceReplayBuffer(Env(), 20, path=tmp_path / "s")


@pytest.mark.parametrize("capacity", [13, 40])
def test_reopening_with_another_capacity_keeps_the_newest(tmp_path, capacity):
    def make(capacity):
        return ExperienceReplayBuffer(Env(), capacity, 8, random_seed=1, path=tmp_path / "s")

    with make(19) as buffer:
        for i in range(50):
            buffer.add(np.array([i]), 0, 0, i % 10 == 9, i // 10)
    with make(capacity) as buffer:
        kept = min(20, capacity + 1)
        assert len(buffer) == kept - 1
        for _ in range(10):
            states, _, _, factors, following, _ = buffer.sample()
            assert states.min() >= 50 - kept
            assert_array_equal((following - states)[factors > 0], 1)


def test_in_a_larger_ring_frames_that_left_are_not_made_up(tmp_path):
    """Rows whose stack reaches behind the oldest one are passed over, as in a full ring."""
    env = Env(3, Box(0, 99, (1,), np.float32))

    def states(capacity):
        found = {}
        with ExperienceReplayBuffer(env, capacity, 8, random_seed=1, path=tmp_path / "s") as buffer:
            for _ in range(20):
                batch = buffer.sample()
                found |= {
                    int(action): state[0].tolist()
                    for action, state in zip(batch[1][:, 0], batch[0], strict=True)
                }
        return found

    with ExperienceReplayBuffer(env, 10, 8, path=tmp_path / "s") as buffer:
        for i in range(30):
            stack = np.array([[max(i - 2, 0), max(i - 1, 0), i]], np.uint8)
            buffer.add(stack[..., None, :], [i], i, i == 24, int(i > 24))
    expected = {i: [[i - 2, i - 1, i]] for i in range(21, 29)}
    expected |= {25: [[25] * 3], 26: [[25, 25, 26]]}
    assert states(10) == expected
    assert states(40) == expected
    with ExperienceReplayBuffer(env, 40, 8, path=tmp_path / "s") as buffer:
        buffer.add(np.full((1, 1, 3), 30, np.uint8), [30], 30, False, 1)
    assert states(40) == expected | {29: [[27, 28, 29]]}


def test_a_refused_first_row_fixes_no_shape(tmp_path):
    with ExperienceReplayBuffer(Env(), 8, 2, path=tmp_path / "s") as buffer:
        with pytest.raises(InvalidInputError, match="episode_id"):
            buffer.add(np.zeros(3), 0, 0.0, False, 2**63)
        assert not (tmp_path / "s").exists()
        buffer.add(np.zeros(4, np.uint8), 0, 0.0, False, 0)


def test_rows_outlive_a_kill(tmp_path):
    writer = processes.Process(WRITER, tmp_path / "s", stdout=subprocess.PIPE)
    with writer:
        acknowledged = 0
        while acknowledged < 60:
            acknowledged = json.loads(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(json.loads, writer.stdout.read().split())])
    buffer = ExperienceReplayBuffer(Env(), 39, path=tmp_path / "s")
    assert len(buffer) == 39
    newest = buffer._s.max()
    assert newest in (acknowledged, acknowledged + 1)
    for slot, g in enumerate(buffer._s[:, 0]):
        assert newest - 40 < g <= newest
        assert g % 40 == slot
        assert_array_equal(buffer._a[slot], np.eye(3)[g % 3])
        assert (buffer._r[slot], buffer._d[slot]) == (g / 3, g % 9 == 8)
        assert buffer._e[slot] == g // 9
    buffer.close()


WRITER = """
import itertools, sys
import numpy as np
from diskreplay.compat.keras_gym import ExperienceReplayBuffer
from tests.compat.test_keras_gym import Env
buffer = ExperienceReplayBuffer(Env(), 39, path=sys.argv[1])
for g in itertools.count():
    buffer.add(np.array([g]), g % 3, g / 3, g % 9 == 8, g // 9)
    print(g, flush=True)
"""
