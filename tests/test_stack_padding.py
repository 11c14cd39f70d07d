"""What stands in a stack before an episode's first frame: zeros, or that frame again."""

import json

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay import errors
from tests.naive import SideBySide

PADDINGS = ("zero", "reset")


def make(path, **changed):
    options = {
        "observation_space": Box(0, 255, (3,), "uint8"),
        "action_space": Discrete(2),
        "capacity": 100,
        "stack_size": 3,
        "seed": 0,
        **changed,
    }
    return diskreplay.ReplayBuffer(path, **options)


def episode(buffer, frames):
    """One that terminates; its last frame is the one it ended with."""
    for i, frame in enumerate(frames[:-1]):
        over = i == len(frames) - 2
        last = np.full(3, frames[-1], np.uint8) if over else None
        buffer.add(np.full(3, frame, np.uint8), 0, 0.0, over, False, last)


def stacks(buffer, id):
    batch = buffer.gather([id])
    return batch.observation[0, :, 0].tolist(), batch.next_observation[0, :, 0].tolist()


EXPECTED = {
    "zero": {0: ([0, 0, 7], [0, 7, 8]), 1: ([0, 7, 8], [7, 8, 9]), 3: ([0, 0, 4], [0, 4, 5])},
    "reset": {0: ([7, 7, 7], [7, 7, 8]), 1: ([7, 7, 8], [7, 8, 9]), 3: ([4, 4, 4], [4, 4, 5])},
}


def check(buffer, padding):
    assert buffer.stack_padding == padding
    for id, expected in EXPECTED[padding].items():
        assert stacks(buffer, id) == expected


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("compressor", ["raw", "lz4"])
def test_both_stacks_of_a_transition_are_padded(tmp_path, padding, compressor):
    with make(tmp_path / "store", stack_padding=padding, compressor=compressor) as buffer:
        episode(buffer, [7, 8, 9])
        episode(buffer, [4, 5])
        check(buffer, padding)
        with buffer.prefetch(2) as batches:
            for id, first in [(0, 7), (3, 4)]:
                while id not in (batch := next(batches)).id:
                    pass
                row = batch.id.tolist().index(id)
                wanted = [first if padding == "reset" else 0] * 2 + [first]
                assert batch.observation[row, :, 0].tolist() == wanted


def test_zeros_are_the_default(tmp_path):
    with make(tmp_path / "store") as buffer:
        episode(buffer, [7, 8, 9])
        episode(buffer, [4, 5])
        check(buffer, "zero")


def test_it_can_be_changed_at_a_reopening_and_readers_take_the_stored_one(tmp_path):
    path = tmp_path / "store"
    with make(path) as buffer:
        episode(buffer, [7, 8, 9])
        episode(buffer, [4, 5])
        buffer.save(tmp_path / "checkpoints", 1)
    for padding in ("reset", "zero", "reset"):
        with make(path, stack_padding=padding) as buffer:
            check(buffer, padding)
            with diskreplay.open(path) as reader:
                check(reader, padding)
    with diskreplay.open(path, mode="a") as buffer:
        check(buffer, "reset")
        buffer.load(tmp_path / "checkpoints", 1)  # rows do not depend on it: this buffer's stays
        check(buffer, "reset")
    with diskreplay.open(tmp_path / "checkpoints" / "replay_ckpt.1") as checkpoint:
        check(checkpoint, "zero")


def test_stores_that_say_nothing_have_zeros(tmp_path):
    path = tmp_path / "store"
    with make(path) as buffer:
        episode(buffer, [7, 8, 9])
        episode(buffer, [4, 5])
    document = json.loads((path / "zarr.json").read_text())
    del document["attributes"]["diskreplay"]["stack_padding"]
    (path / "zarr.json").write_text(json.dumps(document))
    with diskreplay.open(path) as reader:
        check(reader, "zero")


@pytest.mark.parametrize("found", ["edge", "Zero", None, 0, ["zero"], {"reset": 1}])
def test_anything_else_is_refused(tmp_path, found):
    with pytest.raises(errors.InvalidInputError, match="stack_padding: 'zero' or 'reset'"):
        make(tmp_path / "store", stack_padding=found)
    assert not (tmp_path / "store").exists()
    with make(tmp_path / "store"):
        pass
    document = json.loads((tmp_path / "store" / "zarr.json").read_text())
    document["attributes"]["diskreplay"]["stack_padding"] = found
    (tmp_path / "store" / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(errors.FormatError, match="stack_padding"):
        diskreplay.open(tmp_path / "store")


def test_an_episode_that_was_partly_evicted_is_not_padded(tmp_path):
    """Its first frame is gone: what needs it is not sampled, as with zeros."""
    with SideBySide(
        tmp_path / "store", capacity=12, stack_size=4, stack_padding="reset", segment_rows=4
    ) as both:
        for _ in range(40):
            both.step(["go on"])
        both.check_everything()
        for ending in ("terminated, final", "truncated, final", "terminated"):
            for _ in range(2):
                both.step(["go on"])
            both.step([ending])
            both.check_everything()


def test_an_episode_that_goes_on_after_a_load_keeps_its_first_frame(tmp_path):
    with SideBySide(tmp_path / "store", stack_size=4, stack_padding="reset") as both:
        both.step(["terminated"])
        both.step(["go on"])
        saved = both.twin.copy()
        both.real.save(tmp_path / "checkpoints", 1)
        both.step(["go on"])
        both.real.load(tmp_path / "checkpoints", 1, resume_episodes=True)
        both.twin.restore(saved, resume_episodes=True)
        for _ in range(3):
            both.step(["go on"])
        both.check_everything()


def test_every_leaf_of_a_nested_observation(tmp_path):
    space = Dict({"camera": Box(0, 255, (2000,), "uint8"), "speed": Box(-9, 9, (2,))})
    with make(tmp_path / "store", observation_space=space, stack_padding="reset") as buffer:
        for step in range(3):
            observation = {
                "camera": np.full(2000, step + 1, np.uint8),
                "speed": np.full(2, step + 0.5, np.float32),
            }
            buffer.add(observation, 0, 0.0, False, False)
        batch = buffer.gather([0, 1])
        assert batch.observation["camera"][:, :, 0].tolist() == [[1, 1, 1], [1, 1, 2]]
        assert batch.observation["speed"][:, :, 1].tolist() == [[0.5] * 3, [0.5, 0.5, 1.5]]
        assert batch.next_observation["camera"][:, :, 0].tolist() == [[1, 1, 2], [1, 2, 3]]
