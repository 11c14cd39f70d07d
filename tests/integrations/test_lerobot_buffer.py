"""HIL-SERL's replay buffer: it draws what a plain one draws, over episode ends too."""

import itertools
import signal
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from diskreplay import (  # noqa: E402
    EmptyBufferError,
    InvalidInputError,
    ReentryError,
    SchemaError,
    ShapeError,
)
from diskreplay.integrations.lerobot import ReplayBuffer  # noqa: E402
from tests.test_interrupt import interrupted  # noqa: E402

pytest.importorskip("pyarrow")
IMAGE, STATE = "observation.images.front", "observation.state"


class Plain:
    """The same in lists: every transition with its own next state."""

    def __init__(self, capacity):
        self.capacity, self.slots, self.position = capacity, [], 0

    def add(self, **transition):
        if len(self.slots) < self.capacity:
            self.slots.append(transition)
        else:
            self.slots[self.position] = transition
        self.position = (self.position + 1) % self.capacity

    def sample(self, batch_size):
        batch_size = min(batch_size, len(self.slots))
        drawn = [self.slots[i] for i in torch.randint(0, len(self.slots), (batch_size,)).tolist()]
        batch = {
            name: {key: torch.cat([each[name][key] for each in drawn]) for key in (IMAGE, STATE)}
            for name in ("state", "next_state")
        }
        batch["action"] = torch.cat([each["action"] for each in drawn])
        for name in ("reward", "done", "truncated"):
            batch[name] = torch.tensor([float(each[name]) for each in drawn])
        batch["complementary_info"] = {
            "grip": torch.cat([each["complementary_info"]["grip"] for each in drawn])
        }
        return batch


def observation(number):
    image = torch.full((1, 3, 16, 16), (number % 256) / 255)
    return {IMAGE: image, STATE: torch.tensor([[float(number), -1.0]])}


def transitions(ends):
    """A run whose episodes end so: "on", "done", "truncated", "both" or "reset" (unannounced)."""
    for number, end in enumerate(ends):
        led = observation(number + 1) if end == "on" else observation(1000 + number)
        yield {
            "state": observation(number), "action": torch.tensor([[number / 7, 2.0]]),
            "reward": float(number), "next_state": led, "done": end in ("done", "both"),
            "truncated": end in ("truncated", "both"),
            "complementary_info": {"grip": torch.tensor([float(number)])},
        }  # fmt: skip


def check_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, dict):
            check_equal(found[name], value)
        else:
            assert found[name].dtype == value.dtype
            torch.testing.assert_close(found[name], value, rtol=0, atol=0, msg=name)


ENDS = st.lists(
    st.sampled_from(["on", "on", "on", "on", "done", "truncated", "both", "reset"]),
    min_size=1, max_size=40,
)  # fmt: skip


@settings(max_examples=12)
@given(ends=ENDS, capacity=st.integers(1, 20), pixels=st.sampled_from(["float32", "uint8"]))
def test_it_draws_what_a_plain_one_draws(ends, capacity, pixels):
    ours = ReplayBuffer(capacity, "cpu", use_drq=False, pixels=pixels)
    plain = Plain(capacity)
    for number, transition in enumerate(transitions(ends)):
        ours.add(**transition)
        plain.add(**transition)
        if number % 7 == 3 or number == len(ends) - 1:
            torch.manual_seed(number)
            expected = plain.sample(9)
            torch.manual_seed(number)
            check_equal(ours.sample(9), expected)
    assert (len(ours), ours.position) == (len(plain.slots), plain.position)
    ours.close()


def test_pictures_are_shifted_alike_in_their_own_batch():
    ours = ReplayBuffer(10, "cpu")
    for transition in transitions(["on"] * 5):
        ours.add(**transition)
    batch = ours.sample(4)  # pictures of one colour stay what they are, wherever they are moved
    for name in ("state", "next_state"):
        numbers = batch[name][STATE][:, 0]
        torch.testing.assert_close(batch[name][IMAGE].mean(dim=(1, 2, 3)) * 255, numbers)
        assert batch[name][IMAGE].shape == (4, 3, 16, 16)
    seen = []
    other = ReplayBuffer(10, "cpu", image_augmentation_function=lambda x: seen.append(x) or x + 1)
    other.add(**next(transitions(["on"])))
    assert other.sample(5)["state"][IMAGE].min() >= 1
    assert seen[0].shape == (2, 3, 16, 16)
    ours.close(), other.close()


def test_a_shift_repeats_the_edges():
    from diskreplay.integrations.lerobot_datasets import random_shift

    images = torch.arange(2 * 3 * 5 * 6, dtype=torch.float32).reshape(2, 3, 5, 6)
    torch.manual_seed(3)
    found = random_shift(images, pad=2)
    torch.manual_seed(3)
    tops, lefts = (torch.randint(0, 5, (2,)) for _ in range(2))
    for image, shifted, top, left in zip(images, found, tops - 2, lefts - 2, strict=True):
        for row, column in itertools.product(range(5), range(6)):
            at = (row + top).clamp(0, 4), (column + left).clamp(0, 5)
            assert torch.equal(shifted[:, row, column], image[:, at[0], at[1]])


def test_iterators():
    ours = ReplayBuffer(10, "cpu", use_drq=False)
    for ahead in (True, False):
        with pytest.raises(EmptyBufferError):
            next(ours.get_iterator(3, async_prefetch=ahead))
    for transition in transitions(["on"] * 8):
        ours.add(**transition)
    for ahead, depth in itertools.product((True, False), (0, 1, 3)):
        torch.manual_seed(1)
        expected = [ours.sample(3) for _ in range(5)]
        torch.manual_seed(1)
        batches = ours.get_iterator(3, async_prefetch=ahead, queue_size=depth)
        for one in expected:
            check_equal(next(batches), one)
        batches.close()
    ours.close()


def test_a_path_has_it_all_again(tmp_path):
    ends = ["on", "on", "done", "on", "truncated", "on", "on", "reset", "on"]
    ours = ReplayBuffer(6, "cpu", use_drq=False, path=tmp_path / "run")
    for transition in transitions(ends):
        ours.add(**transition)
    torch.manual_seed(0)
    expected = ours.sample(20)
    ours.close()
    torch.manual_seed(0)
    check_equal(ours.sample(20), expected)  # opened again by its use
    ours.close()
    again = ReplayBuffer(6, "cpu", use_drq=False, path=tmp_path / "run")
    assert (len(again), again.position, again.initialized) == (6, 3, True)
    torch.manual_seed(0)
    check_equal(again.sample(20), expected)
    again.close()
    with pytest.raises(SchemaError, match="pixels"):
        ReplayBuffer(6, "cpu", path=tmp_path / "run", pixels="uint8")


RUN = """
import sys
from diskreplay.integrations.lerobot import ReplayBuffer
from tests.integrations.test_lerobot_buffer import transitions
ours = ReplayBuffer(50, "cpu", path=sys.argv[1])
for number, transition in enumerate(transitions(["on", "on", "done", "on"] * 1000)):
    ours.add(**transition)
    print(number, flush=True)
"""


def test_after_a_kill(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    ) as run:
        for line in run.stdout:
            if int(line) == 77:
                run.send_signal(signal.SIGKILL)
                break
        added = int([line, *run.stdout][-1])
    again = ReplayBuffer(50, "cpu", use_drq=False, path=tmp_path / "run")
    assert len(again) >= 48
    batch = again.sample(50)
    numbers = batch["state"][STATE][:, 0]
    assert set(numbers.tolist()) <= set(range(added - 50, added + 2))
    led = torch.where(numbers % 4 == 2, numbers + 1000, numbers + 1)
    led = torch.where(numbers % 4 == 3, numbers + 1, led)
    assert torch.equal(batch["done"], (numbers % 4 == 2).float())
    assert torch.equal(batch["next_state"][STATE][:, 0], led)
    assert torch.equal(batch["complementary_info"]["grip"], numbers)
    again.close()


@pytest.mark.parametrize("pixels", ["float32", "uint8"])
def test_data_sets(tmp_path, pixels):
    pytest.importorskip("av")
    ends = ["on", "on", "done", "on", "truncated", "on", "on", "on"]
    ours = ReplayBuffer(7, "cpu", use_drq=False, pixels=pixels)
    with pytest.raises(EmptyBufferError):
        ours.to_lerobot_dataset("me/x", root=tmp_path / "set")
    for transition in transitions(ends):
        ours.add(**transition)
    ours.to_lerobot_dataset("me/x", fps=10, root=tmp_path / "set", task_name="lift")
    back = ReplayBuffer.from_lerobot_dataset(
        tmp_path / "set", "cpu", [IMAGE, STATE], use_drq=False, pixels=pixels
    )
    assert len(back) == 7
    given = list(transitions(ends))[1:]
    given[-1]["next_state"] = given[-1]["state"]  # not in the data set
    found = [back._ring.observations(at, np.arange(7), np.zeros(7, np.int64), following=f)
             for f in (False, True) for at in (0, 1)]  # fmt: skip
    names = [leaf.name for leaf in back._ring.leaves]
    for values, (of, key) in zip(
        found, itertools.product(("state", "next_state"), names), strict=True
    ):
        expected = np.concatenate([each[of][key].numpy() for each in given])
        scale = 255 if values.dtype == np.uint8 else 1
        np.testing.assert_allclose(values / np.float32(scale), expected, atol=1e-6)
    assert back.dones[:7].tolist() == [each["done"] for each in given]
    assert back.truncateds[:7].tolist() == [each["truncated"] for each in given]
    assert back.complementary_info["grip"][:7].tolist() == [float(n) for n in range(1, 8)]
    with pytest.raises(InvalidInputError, match="capacity"):
        ReplayBuffer.from_lerobot_dataset(tmp_path / "set", "cpu", [STATE], capacity=3)
    with pytest.raises(InvalidInputError, match="wrist"):
        ReplayBuffer.from_lerobot_dataset(tmp_path / "set", "cpu", ["wrist"])
    with pytest.raises(InvalidInputError, match="state_keys"):
        ReplayBuffer.from_lerobot_dataset(tmp_path / "set", "cpu")
    ours.close(), back.close()


def test_what_is_refused():
    ours = ReplayBuffer(5, "cpu", pixels="uint8")
    good = next(transitions(["on"]))
    with pytest.raises(EmptyBufferError):
        ours.sample(3)
    ours.add(**good)
    with pytest.raises(InvalidInputError, match="state: the keys"):
        ours.add(**good | {"state": {STATE: good["state"][STATE]}})
    with pytest.raises(InvalidInputError, match="next_state: the keys"):
        ours.add(**good | {"next_state": {STATE: good["state"][STATE]}})
    with pytest.raises(ShapeError, match=r"observation\.state"):
        ours.add(**good | {"state": good["state"] | {STATE: torch.zeros(1, 3)}})
    with pytest.raises(InvalidInputError, match="from 0 to 1"):
        ours.add(**good | {"state": good["state"] | {IMAGE: good["state"][IMAGE] + 2}})
    assert len(ours) == 1
    for options, words in (({"capacity": 0}, "capacity"), ({"pixels": "int4"}, "pixels")):
        with pytest.raises(InvalidInputError, match=words):
            ReplayBuffer(**{"capacity": 5, **options})
    ours.close()


@pytest.mark.parametrize("call", ["add", "sample"])
def test_a_handler_that_calls_at_any_place(tmp_path, call):
    """Amid `add` its transition got the place of the other one."""
    ours = ReplayBuffer(50, "cpu", use_drq=False, path=tmp_path / "store")
    number, refused, served = 0, 0, 0

    def add():
        nonlocal number
        (made,) = transitions(["done"])
        number += 1
        ours.add(**made | {"state": observation(number), "reward": float(number)})

    def handler():
        nonlocal refused, served
        try:
            add()
            served += 1
        except ReentryError:
            refused += 1

    for _ in range(12):
        add()
    place = 0
    while interrupted(add if call == "add" else lambda: ours.sample(3), place, handler):
        rewards = ours.rewards[: len(ours)].tolist()
        states = [float(each) for each in ours.sample(40)["state"][STATE][:, 0]]
        assert len(set(rewards)) == len(rewards) == len(ours)
        assert set(states) <= set(rewards)
        place += 3
    assert refused > 5
    assert served > 0
    ours.close()
