"""ReAgent's buffers beside a model of them."""

import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import diskreplay  # noqa: E402
from diskreplay.compat.reagent import (  # noqa: E402
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ReplayElement,
    SumTree,
)
from diskreplay.errors import ClosedError, DiskFullError, SchemaError, UsageError  # noqa: E402
from diskreplay.store.column_files import ColumnFiles  # noqa: E402
from tests import processes  # noqa: E402
from tests.compat.reagent_model import Model  # noqa: E402

pytestmark = pytest.mark.usefixtures("small_columns")

SLOW = settings(
    max_examples=25, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip

REWARDS = [((), np.float32), ((), np.float64), ((), np.int32), ((2,), np.float32)]
ACTIONS = [((), np.int32), ((2,), np.float32)]
EXTRAS = [
    [],
    [("log_prob", (), np.float32), ("mask", (2,), np.int8)],  # one name is the format's own
    [("mdp_id", (), np.int64), ("seen", (), np.bool_)],
    [("user", (0,), np.float32), ("x", (2, 0), np.int8)],
]
OBSERVATIONS = [((3, 2), np.uint8), ((2,), np.float32), ((3, 2), np.uint8), ((0,), np.float32)]


@st.composite
def setups(draw):
    stack, horizon = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    return {
        "stack": stack,
        "horizon": horizon,
        "capacity": stack + horizon + draw(st.integers(0, 14)),
        "reward": draw(st.sampled_from(REWARDS)),
        "action": draw(st.sampled_from(ACTIONS)),
        "extras": draw(st.sampled_from(EXTRAS)),
        "observation": draw(st.sampled_from(OBSERVATIONS)),
        "gamma": draw(st.sampled_from([1.0, 0.5, 0.99])),
        "everything": draw(st.booleans()),
        "timeline": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "ends": draw(st.sampled_from([0.02, 0.2, 0.6])),
    }


def elements_of(setup):
    return {
        "observation": setup["observation"],
        "action": setup["action"],
        "reward": setup["reward"],
        "terminal": ((), np.uint8),
        **{name: (shape, dtype) for name, shape, dtype in setup["extras"]},
    }


def make(setup, prioritized=False, **options):
    flags = {} if prioritized else {
        "return_everything_as_stack": setup["everything"],
        "return_as_timeline_format": setup["timeline"],
    }  # fmt: skip
    kind = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    return kind(
        setup["observation"][0], setup["stack"], setup["capacity"], 4,
        update_horizon=setup["horizon"], gamma=setup["gamma"],
        extra_storage_types=[ReplayElement(*extra) for extra in setup["extras"]],
        observation_dtype=setup["observation"][1], action_shape=setup["action"][0],
        action_dtype=setup["action"][1], reward_shape=setup["reward"][0],
        reward_dtype=setup["reward"][1], **flags, **options,
    )  # fmt: skip


def make_model(setup):
    return Model(
        elements_of(setup), stack=setup["stack"], capacity=setup["capacity"],
        horizon=setup["horizon"], gamma=setup["gamma"],
    )  # fmt: skip


def random_row(setup, rng):
    row = {}
    for name, (shape, dtype) in elements_of(setup).items():
        if name == "terminal":
            row[name] = int(rng.integers(1, 4)) if rng.random() < setup["ends"] else 0
        elif dtype == np.bool_:
            row[name] = bool(rng.integers(2))
        else:
            row[name] = rng.integers(0, 100, shape).astype(dtype)
    return row


def add_to_both(buffer, model, setup, rng, prioritized=False):
    row = random_row(setup, rng)
    if prioritized:
        priority = float(rng.integers(0, 5))
        buffer.add(*row.values(), priority)
        model.add(row, priority)
    else:
        positional = list(row.values())[:4]
        extras = dict(list(row.items())[4:])
        buffer.add(*positional, **extras)
        model.add(row)


def check_batch(batch, model, slots, **flags):
    expected = model.batch(slots, **flags)
    assert set(batch._fields) - {"sampling_probabilities"} == expected.keys()
    for name, wanted in expected.items():
        found = getattr(batch, name)
        assert len(found) == len(wanted)
        for row, value in zip(found, wanted, strict=True):
            if isinstance(value, list):
                assert len(row) == len(value)
                pairs = list(zip(row, value, strict=True))
            else:
                pairs = [(row, value)]
            for one, other in pairs:
                if other is None:
                    continue  # undefined
                other = np.asarray(other)
                shape = other.shape
                if shape == () and not isinstance(value, list):
                    shape = (1,)
                assert tuple(one.shape) == shape, name
                np.testing.assert_allclose(
                    one.numpy().reshape(other.shape), other, rtol=1e-6, err_msg=name
                )
                if name not in ("indices", "step", "terminal"):
                    assert one.numpy().dtype == other.dtype, name


def check_state(buffer, model):
    valid = model.valid()
    assert int(buffer.add_count) == len(model.rows)
    assert buffer.cursor() == len(model.rows) % model.capacity
    assert buffer.is_full() == (len(model.rows) >= model.capacity)
    assert buffer.size == len(valid)
    assert np.flatnonzero(buffer._is_index_valid.numpy()).tolist() == valid
    for name in model.elements:
        np.testing.assert_array_equal(buffer._store[name].numpy(), model.array(name), name)


@SLOW
@given(setups())
@pytest.mark.costly(1)
def test_uniform_buffer_does_as_the_model(setup):
    rng = np.random.default_rng(setup["seed"])
    flags = {"everything": setup["everything"], "timeline": setup["timeline"]}
    with make(setup) as buffer:
        model = make_model(setup)
        assert buffer.is_empty()
        for i in range(3 * setup["capacity"]):
            add_to_both(buffer, model, setup, rng)
            if i % 5 == 0:
                check_state(buffer, model)
        check_state(buffer, model)
        check_batch(buffer.sample_all_valid_transitions(), model, model.valid(), **flags)
        every = list(range(setup["capacity"]))
        check_batch(
            buffer.sample_transition_batch(len(every), torch.tensor(every)), model, every, **flags
        )
        if model.valid():
            torch.manual_seed(setup["seed"] % 1000)
            slots = model.draw(4)
            torch.manual_seed(setup["seed"] % 1000)
            check_batch(buffer.sample_transition_batch(), model, slots, **flags)


@settings(SLOW, max_examples=15)
@given(setups())
@pytest.mark.costly(1)
def test_prioritized_buffer_does_as_the_model(setup):
    setup["everything"] = setup["timeline"] = False
    rng = np.random.default_rng(setup["seed"])
    with make(setup, prioritized=True) as buffer:
        model = make_model(setup)
        drawn = 0
        for i in range(3 * setup["capacity"]):
            add_to_both(buffer, model, setup, rng, prioritized=True)
            if i % 4 == 0:
                slots = rng.integers(0, setup["capacity"], 5)
                priorities = rng.integers(0, 6, 5)
                buffer.set_priority(slots.astype(np.int32), priorities)
                for slot, priority in zip(slots, priorities, strict=True):
                    model.priorities[slot] = float(priority)
                every = np.arange(setup["capacity"], dtype=np.int32)
                assert buffer.get_priority(every).tolist() == model.priorities
            if any(model.priorities[slot] for slot in model.valid()):
                random.seed(i)
                wanted = model.draw_prioritized(6)
                random.seed(i)
                batch = buffer.sample_transition_batch(6)
                drawn += 1
                check_batch(batch, model, wanted)
                expected = [[model.priorities[slot]] for slot in wanted]
                assert batch.sampling_probabilities.tolist() == expected
        check_state(buffer, model)
        assert drawn or not model.valid() or not any(model.priorities)


@pytest.mark.parametrize("prioritized", [False, True])
@settings(SLOW, max_examples=6)
@given(setup=setups())
def test_reopening_continues(prioritized, setup, tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "replay"
    rng = np.random.default_rng(setup["seed"])
    model = make_model(setup)
    for _ in range(4):
        with make(setup, prioritized, path=path) as buffer:
            check_state(buffer, model)
            for _ in range(int(rng.integers(1, setup["capacity"] + 3))):
                add_to_both(buffer, model, setup, rng, prioritized)
            if prioritized:
                assert buffer.sum_tree.leaves.tolist() == model.priorities
                buffer.set_priority(np.array([0], np.int32), [7.0])
                model.priorities[0] = 7.0
            check_state(buffer, model)
    with make(setup, prioritized, path=path) as buffer:
        if prioritized:
            assert buffer.sum_tree.leaves.tolist() == model.priorities
            assert buffer.sum_tree.max_recorded_priority == 7.0


def test_rows_and_priorities_outlive_a_kill(tmp_path):
    code = f"""
import os
import numpy as np
from diskreplay.compat.reagent import PrioritizedReplayBuffer
buffer = PrioritizedReplayBuffer((2,), 3, 20, 4, path={str(tmp_path / "replay")!r})
for i in range(12):
    if i == 5:
        buffer.set_priority(np.array([3], np.int32), [9.0])
        buffer.flush()
    buffer.add(np.full(2, i, np.uint8), i, float(i), i == 8, i + 1.1)
os.kill(os.getpid(), 9)
"""
    assert processes.run(code, imports=["torch"]).returncode == -9
    with PrioritizedReplayBuffer((2,), 3, 20, 4, path=tmp_path / "replay") as buffer:
        assert int(buffer.add_count) == 12 + 2 * 2
        assert buffer.size == 11
        expected = [0, 0, 1.1, 9, *(i + 1.1 for i in range(2, 9)), 0, 0, 10.1, 11.1, 12.1]
        assert buffer.sum_tree.leaves[:16].tolist() == expected
        buffer.add(np.zeros(2, np.uint8), 0, 0.0, 0, 1.0)
        assert int(buffer.add_count) == 17  # the episode goes on


def test_another_stack_size_is_refused(tmp_path):
    with ReplayBuffer((2,), 3, 20, 4, path=tmp_path / "replay") as buffer:
        buffer.add(np.ones(2, np.uint8), 0, 0.0, 0)
    with pytest.raises(SchemaError, match="stack_size=3"):
        ReplayBuffer((2,), 2, 20, 4, path=tmp_path / "replay")


def test_the_store_reads_as_one_of_diskreplays(tmp_path):
    with ReplayBuffer((2,), 2, 20, 4, path=tmp_path / "replay") as buffer:
        for i in range(9):
            buffer.add(np.full(2, i + 1, np.uint8), i, float(i), i == 4)
    with diskreplay.open(tmp_path / "replay") as reader:
        batch = reader.gather([1, 5, 8])  # rows 0 and 6 are padding
        assert batch.action.tolist() == [0, 4, 6]
        assert batch.observation[0, :, 0].tolist() == [0, 1]
        assert batch.observation[1, :, 0].tolist() == [4, 5]
        assert batch.terminated.tolist() == [False, True, False]


@pytest.mark.parametrize("horizon", [1, 2])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.int32])
@pytest.mark.parametrize("gamma", [1, 1.0])
def test_the_dtype_of_a_reward_is_torchs(horizon, dtype, gamma):
    with ReplayBuffer((2,), 1, 10, 4, update_horizon=horizon, gamma=gamma,
                      reward_dtype=dtype) as buffer:  # fmt: skip
        for number in range(6):
            buffer.add(np.ones(2, np.uint8), 0, number, 0)
        found = buffer.sample_all_valid_transitions().reward
    rows = torch.ones(1, horizon, dtype=torch.from_numpy(np.zeros(1, dtype)).dtype)
    decays = gamma ** torch.arange(horizon)
    assert found.dtype == (rows * decays * torch.ones(horizon, dtype=torch.bool)).sum(dim=1).dtype


def test_whether_several_slots_are_valid():
    with ReplayBuffer((2,), 1, 10, 4) as buffer:
        for number in range(4):
            buffer.add(np.ones(2, np.uint8), 0, number, 0)
        assert buffer.is_valid_transition(0) is True
        for index in ([2, 3], torch.tensor([2, 3]), slice(2, 4)):
            found = buffer.is_valid_transition(index)
            assert found.tolist() == [True, False]
            found[:] = False
        assert buffer.is_valid_transition(2)
        with pytest.raises(IndexError):
            buffer.is_valid_transition(10)


def test_a_derived_rule_of_what_is_valid():
    class Even(PrioritizedReplayBuffer):
        def is_valid_transition(self, index):
            return index % 2 == 0 and super().is_valid_transition(index)

    with Even((2,), 1, 10, 4) as buffer:
        for number in range(9):
            buffer.add(np.ones(2, np.uint8), 0, number, 0, 1.0)
        assert set(buffer.sample_index_batch(200).tolist()) == {0, 2, 4, 6}


# -- what is refused


def small(**options):
    return ReplayBuffer((2,), 2, 10, 4, extra_storage_types=[ReplayElement("x", (2,), np.int8)],
                        **options)  # fmt: skip


def test_constructor_refuses():
    with pytest.raises(AssertionError):
        ReplayBuffer([2], 2, 10, 4)
    with pytest.raises(ValueError, match="There is not enough capacity"):
        ReplayBuffer((2,), 10, 10, 4)
    with pytest.raises(ValueError, match="checkpoint_format"):
        small(checkpoint_format="zip")
    with pytest.raises(TypeError, match="return_as_timeline_format"):
        PrioritizedReplayBuffer((2,), 2, 10, 4, return_as_timeline_format=True)
    with pytest.raises(ValueError, match="There is not enough capacity"):
        PrioritizedReplayBuffer((2,), 5, 10, 4, 10, 1.0)  # the fifth is the horizon


def test_refused_rows_change_nothing():
    frame = np.ones(2, np.uint8)
    with small() as buffer:
        for error, args, kwargs in [
            (ValueError, (frame, 0, 0.0, 0), {}),
            (ValueError, (frame, 0, 0.0, 0, [1, 2], 3), {}),
            (KeyError, (frame, 0, 0.0, 0), {"y": [1, 2]}),
            (ValueError, (frame, 0, 0.0, 0, [1, 2, 3]), {}),
            (ValueError, (np.ones(3, np.uint8), 0, 0.0, 0, [1, 2]), {}),
            (ValueError, (frame, [0], 0.0, 0, [1, 2]), {}),
            (ValueError, (frame, 0, float("nan"), 0, [1, 2]), {}),
        ]:
            with pytest.raises(error):
                buffer.add(*args, **kwargs)
            assert buffer.is_empty()
            assert int(buffer.add_count) == 0
        with pytest.raises(ValueError, match="Add expects"):
            buffer._check_add_types(frame, 0, 0.0, 0)
        buffer.add(frame, 0, 0.0, 0, x=(1, 2))
        assert int(buffer.add_count) == 2


def test_prioritized_refuses_before_it_writes():
    with PrioritizedReplayBuffer((2,), 2, 10, 4) as buffer:
        frame = np.ones(2, np.uint8)
        with pytest.raises(ValueError, match="Add expects"):
            buffer.add(frame, 0, 0.0, 0)
        for priority in (-1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="priority"):
                buffer.add(frame, 0, 0.0, 0, priority)
        assert buffer.is_empty()
        assert buffer.sum_tree.leaves.sum() == 0
        buffer.add(frame, 0, 0.0, 1, priority=2.0)
        assert buffer.get_priority(np.array([1], np.int32)).tolist() == [2.0]
        with pytest.raises(AssertionError):
            buffer.get_priority(1)
        with pytest.raises(AssertionError):
            buffer.get_priority(np.array([1]))
        with pytest.raises(AssertionError):
            buffer.set_priority(np.array([1]), [1.0])
        with pytest.raises(ValueError, match="nonnegative"):
            buffer.set_priority(np.array([1, 1], np.int32), [1.0, -1.0])
        assert buffer.get_priority(np.array([1], np.int32)).tolist() == [2.0]


def test_a_full_disk_halfway_through_the_padding(tmp_path, monkeypatch):
    setup = {
        "stack": 4, "horizon": 2, "capacity": 40, "reward": REWARDS[0], "action": ACTIONS[0],
        "extras": [], "observation": ((5000,), np.uint8), "gamma": 0.5, "everything": False,
        "timeline": False, "ends": 0.3,
    }  # fmt: skip
    rng, failed = np.random.default_rng(0), 0
    make_way = ColumnFiles.make_way
    with make(setup, path=tmp_path / "replay") as buffer:
        model = make_model(setup)

        def full(self, path):
            if self._field.packed:
                raise DiskFullError(28, "full", str(path))
            return make_way(self, path)

        for _ in range(900):
            row = random_row(setup, rng)
            monkeypatch.setattr(ColumnFiles, "make_way", full)
            try:
                buffer.add(*row.values())
            except DiskFullError:
                failed += 1
                monkeypatch.setattr(ColumnFiles, "make_way", make_way)
                buffer.add(*row.values())
            model.add(row)
        monkeypatch.setattr(ColumnFiles, "make_way", make_way)
        check_state(buffer, model)
    assert failed > 2


@pytest.mark.parametrize("terminal", [256, -1, 300, 1 << 40, 0.5, np.float32(0.25)])
def test_numbers_are_cast_and_any_terminal_but_zero_ends(terminal):
    with ReplayBuffer((2,), 1, 10, 4, action_dtype=np.int8) as buffer:
        buffer.add([300, -1], 129, 0.0, terminal)
        buffer.add(np.ones(2, np.uint8), 0, 0.0, 0)
        assert buffer.size == 1
        batch = buffer.sample_all_valid_transitions()
        assert batch.state.tolist() == [[44, 255]]
        assert batch.action.tolist() == [[-127]]
        assert batch.terminal.tolist() == [[True]]


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_a_larger_capacity_brings_no_states_that_never_were(kind, tmp_path):
    def make(capacity, name):
        return kind((1,), 2, capacity, 2, path=tmp_path / name, checkpoint_format="native")

    def states(buffer):
        return buffer.sample_all_valid_transitions().state[:, 0].tolist()

    more = [1.0] if kind is PrioritizedReplayBuffer else []
    with make(9, "a") as buffer:
        for value in range(1, 31):
            buffer.add(np.array([value]), 0, value, 0, *more)
        before = states(buffer)
        assert sorted(before) == [[i - 1, i] for i in range(23, 30)]
        buffer.save(tmp_path / "ckpt", 1)
    with make(20, "b") as loaded, make(20, "a") as reopened:
        loaded.load(tmp_path / "ckpt", 1)
        for buffer in (loaded, reopened):
            assert states(buffer) == sorted(before)
            for value in range(31, 36):
                buffer.add(np.array([value]), 0, value, 0, *more)
            assert states(buffer) == [[i - 1, i] for i in range(23, 35)]
            steps = buffer._ring.column("step")
            assert (np.diff(steps) == 1).all()
            buffer.add(np.array([0]), 0, 0, 1, *more)
            buffer.add(np.array([0]), 0, 0, 0, *more)
            assert buffer._ring.column("is_final")[-2:].tolist() == [True, False]


@pytest.mark.parametrize("rows", [5, 15])
def test_priorities_that_were_set_outlive_a_larger_capacity(rows, tmp_path):
    with PrioritizedReplayBuffer((2,), 1, 10, 4, path=tmp_path / "a") as buffer:
        for i in range(rows):
            buffer.add(np.ones(2, np.uint8), i, 0.0, 0, 1.0 + i)
        buffer.set_priority(np.array([3], np.int32), [90.0])
        leaves = buffer.sum_tree.leaves
        oldest_first = np.roll(leaves, -buffer.cursor()) if buffer.is_full() else leaves
    for _ in range(2):
        with PrioritizedReplayBuffer((2,), 1, 20, 4, path=tmp_path / "a") as buffer:
            assert buffer.sum_tree.leaves.tolist() == [*oldest_first, *([0.0] * 10)]


def test_a_priority_that_the_tree_would_refuse_changes_nothing():
    with PrioritizedReplayBuffer((2,), 2, 10, 4) as buffer:
        with pytest.raises(ValueError, match="priority"):
            buffer.add(np.ones(2, np.uint8), 0, 0.0, 0, 1e301)
        assert buffer.is_empty()
        buffer.add(np.ones(2, np.uint8), 0, 0.0, 0, 1e297)
        assert buffer.sum_tree.leaves[:3].tolist() == [0.0, 1e297, 0.0]


@pytest.mark.parametrize("indices", [torch.tensor([0, 1, 2]), torch.zeros(4, 1), torch.tensor(4)])
def test_indices_of_another_shape_are_refused(indices):
    with ReplayBuffer((2,), 1, 10, 4) as buffer:
        for i in range(5):
            buffer.add(np.ones(2, np.uint8), i, 0.0, 0)
        with pytest.raises(AssertionError, match="indices"):
            buffer.sample_transition_batch(indices=indices)
        every_other = torch.arange(8)[::2]
        batch = buffer.sample_transition_batch(indices=every_other)
        assert batch.indices.flatten().tolist() == [0, 2, 4, 6]
        every_other[:] = 9
        assert batch.indices.flatten().tolist() == [0, 2, 4, 6]


def test_strata_are_those_of_random_uniform():
    tree, uniform = SumTree(40), random.Random(3).uniform
    for i in range(40):
        tree.set(i, float(i % 7))
    sums = np.cumsum([i % 7 for i in range(40)])
    random.seed(3)
    for size in [*range(40), 97, 1000]:
        bounds = np.linspace(0.0, 1.0, size + 1)
        masses = [uniform(bounds[i], bounds[i + 1]) * sums[-1] for i in range(size)]
        assert tree.stratified_sample(size) == np.searchsorted(sums, masses, "right").tolist()


def test_a_closed_buffer_gives_no_batch():
    buffer = ReplayBuffer((2,), 1, 10, 4)
    for i in range(5):
        buffer.add(np.ones(2, np.uint8), i, 0.0, 0)
    buffer.close()
    with pytest.raises(ClosedError):
        buffer.sample_transition_batch()
    with pytest.raises(ClosedError):
        buffer.sample_all_valid_transitions()


def test_what_is_handed_out_changes_nothing():
    with small() as buffer:
        for i in range(4):
            buffer.add(np.ones(2, np.uint8), i, 0.0, 0, [0, 0])
        before = buffer._is_index_valid.tolist()
        buffer._is_index_valid[:] = False
        assert buffer._is_index_valid.tolist() == before
        assert sum(before) == buffer.size
        with pytest.raises(UsageError, match="cannot be set"):
            buffer._store["action"] = torch.zeros(10)


def test_torch_tensors_are_taken():
    with small() as buffer:
        buffer.add(
            torch.ones(2, dtype=torch.uint8), torch.tensor(3), 1.0, torch.tensor(True),
            torch.tensor([1, 2]),
        )  # fmt: skip
        batch = buffer.sample_all_valid_transitions()
        assert batch.x.tolist() == [[[0, 1], [0, 2]]]


def test_nothing_to_sample():
    with small() as buffer:
        with pytest.raises(RuntimeError):
            buffer.sample_transition_batch()
        assert len(buffer.sample_all_valid_transitions().state) == 0
        with pytest.raises(AssertionError):
            buffer.sample_transition_batch(2, [0, 1])
        with pytest.raises(AssertionError):
            buffer.sample_transition_batch(3, torch.tensor([0, 1]))
        with pytest.raises(IndexError):
            buffer.is_valid_transition(10)
        assert not buffer.is_valid_transition(9)
    with PrioritizedReplayBuffer((2,), 1, 10, 4, max_sample_attempts=10) as buffer:
        buffer.add(np.ones(2, np.uint8), 0, 0.0, 0, 1.0)
        for size in (1, 2):
            with pytest.raises(RuntimeError, match="Max sample attempts: Tried 10 times"):
                buffer.sample_index_batch(size)


def test_statuses_can_be_overridden():
    with small() as buffer:
        for i in range(4):
            buffer.add(np.ones(2, np.uint8), i, 0.0, 0, [0, 0])
        before = buffer.size
        buffer.set_index_valid_status(1, False)
        buffer.set_index_valid_status(1, False)
        assert buffer.size == before - 1
        assert 1 not in buffer.sample_index_batch(200).tolist()
        buffer.set_index_valid_status(9, True)
        assert buffer.size == before
        assert 9 in buffer.sample_index_batch(200).tolist()


def test_a_batch_is_a_copy():
    with small() as buffer:
        for i in range(6):
            buffer.add(np.full(2, i + 1, np.uint8), i, 0.0, 0, [0, 0])
        indices = torch.tensor([2, 3])
        batch = buffer.sample_transition_batch(2, indices)
        again = buffer.sample_transition_batch(2, indices)
        batch.state.zero_()
        batch.indices.zero_()
        assert torch.equal(batch.next_state, again.next_state)
        assert indices.tolist() == [2, 3]
        assert torch.equal(buffer.sample_transition_batch(2, indices).state, again.state)


def test_elements_of_a_subclass():
    class More(ReplayBuffer):
        def get_transition_elements(self, batch_size=None):
            size = self._batch_size if batch_size is None else batch_size
            return [*super().get_transition_elements(size), ReplayElement("q", (size,), np.float32)]

    with More((2,), 2, 10, 4) as buffer:
        for i in range(4):
            buffer.add(np.ones(2, np.uint8), i, 0.0, 0)
        batch = buffer.sample_transition_batch(3)
        assert batch.q.shape == (3, 1)
        assert batch.q.dtype == torch.float32
        shapes = {element.name: element.shape for element in buffer.get_transition_elements()}
        assert shapes["state"] == (4, 2, 2)
        assert shapes["reward"] == (4,)


def test_public_attributes_are_those_of_the_original():
    with small() as buffer, PrioritizedReplayBuffer((2,), 1, 10, 4) as prioritized:
        assert [name for name in vars(buffer) if name[0] != "_"] == ["add_count"]
        names = {name for name in vars(prioritized) if name[0] != "_"}
        assert names == {"add_count", "sum_tree"}
        assert buffer.add_count.dtype == np.int64
        assert buffer.add_count.shape == ()


def test_without_torch_the_error_says_what_to_install():
    code = """
import sys
sys.modules["torch"] = None
try:
    import diskreplay.compat.reagent
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "diskreplay[torch]"' in done.stdout
