"""`next_of` and `stack_compress`: whatever is given comes back, and what repeats costs nothing."""

import itertools
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from diskreplay.compat.cpprb import PrioritizedReplayBuffer, ReplayBuffer

FRAMES = 4
LARGE, SMALL = (8, 32, FRAMES), (2, FRAMES)


def frame(shape, dtype, code):
    """One frame; codes of the same value are the same frame, to the bit."""
    values = np.zeros(shape[:-1], dtype)
    if dtype == np.uint8:
        values[...] = code
        values.reshape(-1)[-1] = code // 2
        return values
    special = [0.0, -0.0, np.nan, 1.5]
    values[...] = special[code % 4]
    return values


@st.composite
def streams(draw):
    """Rows as (value, next) of frame codes: mostly sliding, now and then anything."""
    code = st.integers(0, 3)
    stack = st.lists(code, min_size=FRAMES, max_size=FRAMES)
    rows, previous, last = [], draw(stack), draw(stack)
    for _ in range(draw(st.integers(1, 30))):
        how = draw(st.sampled_from(["follow"] * 8 + ["anew", "same", "slide", "twist"]))
        anew, new = draw(stack), draw(code)
        value = {
            "follow": last, "anew": anew, "same": previous, "slide": [*last[1:], new],
            "twist": last[::-1],
        }[how]  # fmt: skip
        how = draw(st.sampled_from(["slide"] * 8 + ["anew", "same", "far"]))
        anew, new = draw(stack), draw(code)
        after = {
            "slide": [*value[1:], new], "anew": anew, "same": value, "far": [*value[2:], new, 1],
        }[how]  # fmt: skip
        rows.append((value, after))
        previous, last = value, after
    return rows


OPTIONS = [
    {"next_of": "obs"},
    {"stack_compress": "obs"},
    {"next_of": ("obs",), "stack_compress": np.array(["obs"])},
    {"stack_compress": ["obs", "next_obs"]},
    {"next_of": ["obs", "act"], "stack_compress": ["act"]},
]


KINDS = [(ReplayBuffer, options) for options in OPTIONS] + [
    (PrioritizedReplayBuffer, OPTIONS[2] | {"compressor": "raw"})
]


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=str)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=streams(),
    size=st.integers(1, 9),
    dtype=st.sampled_from([np.uint8, np.float32, np.float16]),
    shape=st.sampled_from([LARGE, LARGE, LARGE, SMALL]),
    data=st.data(),
)
@pytest.mark.costly(1)
def test_any_stream_comes_back(tmp_path_factory, kind, options, rows, size, dtype, shape, data):
    spec = {"shape": shape, "dtype": dtype}
    env = {"obs": spec, "act": {"shape": shape, "dtype": np.uint8}, "rew": {}}
    if "next_of" not in options:
        env["next_obs"] = spec
    linked_act = "act" in options.get("next_of", ())
    path = tmp_path_factory.mktemp("stream") / "store"
    open_it = lambda: kind(size, env, path=path, **options)  # noqa: E731
    buffer = open_it()
    given_rows = []
    for number, (value, after) in enumerate(rows):
        stacks = [np.stack([frame(shape, dtype, c) for c in s], axis=-1) for s in (value, after)]
        acts = [np.stack([frame(shape, np.uint8, c) for c in s], axis=-1) for s in (after, value)]
        row = {"obs": stacks[0], "act": acts[0], "rew": np.float32([number])}
        row["next_obs"] = stacks[1]
        if linked_act:
            row["next_act"] = acts[1]
        given_rows.append(row)
    at = 0
    while at < len(given_rows):
        count = data.draw(st.sampled_from([1, 1, 1, 2, 5, 12]))
        some = given_rows[at : at + count]
        slot = buffer.add(**{n: np.stack([row[n] for row in some]) for n in some[0]})
        assert slot == at % size
        at += len(some)
        what = data.draw(st.sampled_from(["go on", "go on", "end", "check", "check", "reopen"]))
        if what == "end":
            buffer.on_episode_end()
        elif what == "reopen" and data.draw(st.booleans()):
            buffer.close()
            buffer = open_it()
        elif what == "check":
            compare(buffer, given_rows[:at], size)
    compare(buffer, given_rows, size)
    if data.draw(st.booleans()):
        buffer.close()
        size, kept = size + 3, given_rows[-min(size, at) :]
        buffer = open_it()
        compare(buffer, kept, size)
    buffer.close()


def compare(buffer, rows, size):
    by_slot = {}
    for number, row in enumerate(rows):
        by_slot[number % size] = row
    found = buffer.get_all_transitions()
    assert set(found) == set(rows[0])
    assert len(found["rew"]) == len(by_slot)
    for slot, row in by_slot.items():
        for name, value in row.items():
            # Bytes, so that NaN is NaN and -0.0 is not 0.0.
            assert found[name][slot].dtype == value.dtype
            assert found[name][slot].tobytes() == value.tobytes(), (name, slot)
    twice = buffer._encode_sample([[0, len(by_slot) - 1]])
    assert twice["obs"].shape == (1, 2, *rows[0]["obs"].shape)
    assert twice["obs"][0, 1].tobytes() == by_slot[len(by_slot) - 1]["obs"].tobytes()


def atari(rows, seed):
    frames = np.random.default_rng(seed).integers(0, 256, (rows + 4, 32, 32), np.uint8)
    return np.stack([np.stack(frames[i : i + 4], axis=-1) for i in range(rows + 1)])


def test_columns_of_a_batch_share_no_memory():
    env = {"obs": {"shape": (32, 32, 4), "dtype": np.uint8}}
    for options in (OPTIONS[0], OPTIONS[2]):
        stacks = atari(10, 1)
        with ReplayBuffer(20, env, **options) as buffer:
            buffer.add(obs=stacks[:-1], next_obs=stacks[1:])
            batch = buffer.get_all_transitions()
            again = buffer.get_all_transitions()
            batch["obs"][...] = 7
            assert (batch["next_obs"] == stacks[1:]).all()
            assert not np.shares_memory(batch["obs"], batch["next_obs"])
            assert (again["obs"] == stacks[:10]).all()


def test_what_repeats_is_stored_once(tmp_path):
    """Frames that cannot be compressed: a row costs one of them, not eight."""
    env = {"obs": {"shape": (32, 32, 4), "dtype": np.uint8}}
    rows, frame_bytes = 640, 32 * 32
    sizes = {}
    for label, options in {
        "plain": {},
        "next_of": {"next_of": "obs"},
        "both": {"next_of": "obs", "stack_compress": "obs"},
    }.items():
        path = tmp_path / label
        full = env if options else env | {"next_obs": env["obs"]}
        with ReplayBuffer(rows, full, path=path, **options) as buffer:
            for start in range(0, rows, 80):  # eight episodes
                stacks = atari(80, start)
                for i in range(80):
                    buffer.add(obs=stacks[i], next_obs=stacks[i + 1])
                buffer.on_episode_end()
        sizes[label] = sum(
            os.path.getsize(os.path.join(where, name))
            for where, _below, files in os.walk(path)
            for name in files
        )
    assert sizes["plain"] > 7.5 * rows * frame_bytes
    assert sizes["next_of"] < 5.5 * rows * frame_bytes
    assert sizes["both"] < 2.5 * rows * frame_bytes


def test_next_of_needs_its_next_column():
    with ReplayBuffer(4, {"a": {}}, next_of="a") as buffer:
        with pytest.raises(KeyError, match="next_a"):
            buffer.add(a=1)
        buffer.add(a=1, next_a=2)
        assert list(buffer.sample(1)) == ["a", "next_a"]


def test_options_do_nothing_to_nstep_rows():
    env = {"obs": {"shape": LARGE, "dtype": np.uint8}, "done": {}}
    options = {"next_of": "obs", "stack_compress": "obs"}
    with ReplayBuffer(4, env, Nstep={"size": 2, "next": "next_obs"}, **options) as buffer:
        ones = np.ones(LARGE, np.uint8)
        assert buffer.add(obs=ones, next_obs=2 * ones, done=0) is None
        assert buffer.add(obs=3 * ones, next_obs=4 * ones, done=0) == 0
        found = buffer.get_all_transitions()
    assert (found["obs"] == 1).all()
    assert (found["next_obs"] == 4).all()


@pytest.mark.parametrize("options", [OPTIONS[1], OPTIONS[2]], ids=str)
def test_arrays_that_may_only_be_read_need_no_kernel_of_their_own(tmp_path, options):
    """As JAX gives them: one was compiled in the middle of a run, also after a warm-up."""
    from diskreplay.compat.cpprb import kernels

    env = {"obs": {"shape": LARGE, "dtype": np.uint8}, "rew": {}}
    if "next_of" not in options:
        env["next_obs"] = env["obs"]
    buffer = ReplayBuffer(8, env, path=tmp_path / "store", **options)
    stacks = np.arange(6 * np.prod(LARGE)).reshape(6, *LARGE).astype(np.uint8)
    stacks.flags.writeable = False
    for before, after in itertools.pairwise(stacks):
        buffer.add(obs=before, next_obs=after, rew=1.0)
    assert_array_equal(buffer.get_all_transitions()["obs"], stacks[:-1])
    assert all(kind.mutable for types in kernels.compare.signatures for kind in types)
