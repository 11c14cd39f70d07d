"""What completion and type checkers see: every option by name, here and in the older APIs."""

import importlib.util
import inspect

import gymnasium
import numpy as np
import pytest

import diskreplay
from diskreplay.compat import cpprb, cs294, keras_gym, rainbow
from diskreplay.integrations.gymnasium import Recorder, VectorRecorder

COMPAT = [cpprb, cs294, keras_gym, rainbow]
if importlib.util.find_spec("torch") is not None:
    COMPAT.append(importlib.import_module("diskreplay.compat.reagent"))
OF_COMPAT = [
    value
    for module in COMPAT
    for name, value in vars(module).items()
    if name[0] != "_" and getattr(value, "__module__", "").startswith(module.__name__)
]
PUBLIC = [getattr(diskreplay, name) for name in diskreplay.__all__]
CLASSES = [
    kind
    for kind in (*PUBLIC, Recorder, VectorRecorder, *OF_COMPAT)
    if inspect.isclass(kind) and not issubclass(kind, Exception | tuple)
]
# The keywords of a step are the names of its columns. And of the originals: cpprb takes, and
# ignores, any other option; ReAgent hands on those of the constructor, and values of a step.
WITH_KEYWORDS = {
    "diskreplay.env_writer.EnvWriter.add",
    "diskreplay.buffer.ReplayBuffer.add", "diskreplay.prioritized.PrioritizedReplayBuffer.add",
    "diskreplay.integrations.gymnasium.Recorder.annotate",
    "diskreplay.integrations.gymnasium.VectorRecorder.annotate",
    *(f"diskreplay.compat.cpprb.{name}" for name in (
        "buffer.ReplayBuffer", "prioritized.PrioritizedReplayBuffer", "buffer.ReplayBuffer.add",
        "prioritized.PrioritizedReplayBuffer.add", "nstep.NstepBuffer.add", "create_buffer",
    )),
    *(f"diskreplay.compat.reagent.{kind}.{name}" for name in ("add", "create_from_env")
      for kind in ("buffer.ReplayBuffer", "prioritized.PrioritizedReplayBuffer")
      if importlib.util.find_spec("torch") is not None),
}  # fmt: skip


def public_calls():
    for kind in CLASSES:
        yield f"{kind.__module__}.{kind.__qualname__}", kind
        for name, member in inspect.getmembers(kind, callable):
            if not name.startswith("_") and str(getattr(member, "__module__", "")).startswith(
                "diskreplay"
            ):
                yield f"{kind.__module__}.{kind.__qualname__}.{name}", member


def hides_options(call):
    kinds = [p.kind for p in inspect.signature(call).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def test_no_option_is_hidden():
    hidden = {name for name, call in public_calls() if hides_options(call)}
    hidden |= {
        f"{call.__module__}.{call.__name__}"
        for call in OF_COMPAT
        if inspect.isfunction(call) and hides_options(call)
    }
    assert hidden == WITH_KEYWORDS


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in CLASSES
        if kind not in (diskreplay.Batch, diskreplay.SequenceBatch, diskreplay.Statistics)
    ],
)
def test_docstrings_name_every_parameter(kind):
    documented = inspect.getdoc(kind) + (inspect.getdoc(kind.__init__) or "")
    lacking = [name for name in inspect.signature(kind).parameters if name not in documented]
    assert not lacking


def test_a_prioritized_buffer_takes_all_that_a_uniform_one_takes():
    """By name, with the same defaults; `functools.partial` and completion rely on it."""
    uniform, prioritized = (
        inspect.signature(kind).parameters
        for kind in (diskreplay.ReplayBuffer, diskreplay.PrioritizedReplayBuffer)
    )
    assert list(prioritized)[: len(uniform)] == list(uniform)
    assert all(prioritized[name] == parameter for name, parameter in uniform.items())
    assert set(prioritized) - set(uniform) == {"alpha", "beta", "weight_normalization"}


def test_only_a_prioritized_buffer_has_priorities_to_update():
    assert not hasattr(diskreplay.ReplayBuffer, "update_priorities")
    assert hasattr(diskreplay.PrioritizedReplayBuffer, "update_priorities")


SPACES = {
    "observation_space": gymnasium.spaces.Box(0, 255, (4,), "uint8"),
    "action_space": gymnasium.spaces.Discrete(3),
}


def test_a_gathered_batch_has_ids_of_its_own():
    with diskreplay.ReplayBuffer(None, **SPACES, capacity=100) as buffer:
        for i in range(10):
            buffer.add(np.full(4, i, np.uint8), 1, 0.0, False, False)
        ids = np.arange(3)
        batch = buffer.gather(ids)
        ids[:] = 7
        assert batch.id.tolist() == [0, 1, 2]
        batch.id[:] = 5
        assert ids.tolist() == [7, 7, 7]


WHOLE = [50, 50.0, np.int16(50), np.float32(50), np.uint64(50)]
INTEGERS = ("capacity", "num_envs", "stack_size", "update_horizon", "batch_size", "segment_rows")


@pytest.mark.parametrize("value", WHOLE, ids=repr)
def test_whole_numbers_of_any_kind(value):
    options = {"capacity": 10_000, **SPACES}
    for name in INTEGERS:
        with diskreplay.ReplayBuffer(None, **{**options, name: value}) as buffer:
            kept = getattr(buffer, name, 50)
            assert (kept, type(kept)) == (50, int)
    with diskreplay.ReplayBuffer(None, **SPACES, capacity=1e6) as buffer:
        assert buffer.capacity == 1_000_000
        for i in range(10):
            buffer.add(np.full(4, i, np.uint8), 1, 0.0, False, False)
        assert len(buffer.sample(value)) == 50
        with buffer.prefetch(np.float64(2), value) as batches:
            assert len(next(batches)) == 50


@pytest.mark.parametrize("value", [1.5, 0, -1, 0.0, np.nan, np.inf, True, "50", 10**400, 1e300])
def test_what_is_no_whole_number(value):
    for name in INTEGERS:
        with pytest.raises(diskreplay.InvalidInputError, match=name):
            diskreplay.ReplayBuffer(None, **{**SPACES, "capacity": 10_000, name: value})
    with diskreplay.ReplayBuffer(None, **SPACES, capacity=100) as buffer:
        for call in (buffer.sample, buffer.prefetch):
            with pytest.raises(diskreplay.InvalidInputError):
                call(value)
