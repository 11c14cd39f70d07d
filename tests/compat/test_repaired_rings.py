"""The older APIs after a repair: what they draw is what was recorded, and all of it."""

import shutil
from functools import cache

import numpy as np
import pytest

from diskreplay.check.repair import repair
from diskreplay.check.verify import verify
from diskreplay.compat import cpprb, cs294, keras_gym, rainbow
from tests.check.damaged import flip, open_segments, segments

SIZE, LENGTH, STACK = 300, 13, 3
SIDE = 34  # packed: more than 1 KiB


@cache
def frame(number):
    """Not that of any other step, and nowhere zeros alone; of -1 zeros."""
    if number == -1:
        return np.zeros((SIDE, SIDE), np.uint8)
    made = np.random.default_rng(number).integers(1, 255, (SIDE, SIDE), np.uint8)
    made[0, :2] = divmod(number, 250)
    return made


def numbers(frames):
    """The steps of frames, along the last axis; -1 for one of zeros."""
    found = frames[..., 0, 0].astype(int) * 250 + frames[..., 0, 1]
    found[~frames.any((-2, -1))] = -1
    once, places = np.unique(found, return_inverse=True)
    expected = np.stack([frame(int(number)) for number in once])
    assert (frames == expected[places.reshape(found.shape)]).all()
    return found


def ends(step):
    return step % LENGTH == LENGTH - 1


def history(step, begins=False):
    """The steps that the stack of one shows, oldest first; -1, or the first again."""
    first = step - step % LENGTH
    return [max(n, first) if begins else n if n >= first else -1
            for n in range(step - STACK + 1, step + 1)]  # fmt: skip


class Rainbow:
    field = "observation"

    def make(self, path):
        return rainbow.ReplayBuffer(SIDE * SIDE, SIZE, batch_size=1, path=path)

    def fill(self, buffer, start, stop):
        for n in range(start, stop):
            buffer.store(frame(n).ravel(), n % 7, n, frame(n + 1).ravel(), ends(n))

    def drawn(self, buffer):
        assert len(buffer) == buffer.size
        batch = buffer._batch(np.arange(buffer.size))
        shape = len(batch["obs"]), SIDE, SIDE
        steps = numbers(batch["obs"].reshape(shape).astype(np.uint8))
        led = numbers(batch["next_obs"].reshape(shape).astype(np.uint8))
        assert (led == steps + 1).all()
        assert (batch["rews"] == steps).all()
        assert (batch["acts"] == steps % 7).all()
        assert (batch["done"] == ends(steps)).all()
        assert (np.diff(np.roll(steps, -buffer.ptr * (buffer.size == SIZE))) > 0).all()
        return steps


class PrioritizedRainbow(Rainbow):
    def make(self, path):
        return rainbow.PrioritizedReplayBuffer(SIDE * SIDE, SIZE, batch_size=8, path=path)

    def fill(self, buffer, start, stop):
        super().fill(buffer, start, stop)
        at = np.arange(buffer.size)
        buffer.update_priorities(at, buffer.rews_buf[: buffer.size] + 1)

    def drawn(self, buffer):
        steps = super().drawn(buffer)
        leaves = (steps + 1.0) ** buffer.alpha
        np.testing.assert_allclose(buffer.sum_tree[np.arange(buffer.size)], leaves)
        assert np.isin(buffer.sample_batch()["rews"], steps).all()
        return steps


class Cpprb:
    field = "obs"
    options = {}  # noqa: RUF012

    def make(self, path):
        spec = {"obs": {"shape": (SIDE, SIDE, STACK), "dtype": np.uint8}, "n": {"dtype": np.int64}}
        spec["next_obs"] = spec["obs"]
        if "next_of" in self.options:
            del spec["next_obs"]
        return cpprb.ReplayBuffer(SIZE, spec, path=path, **self.options)

    def fill(self, buffer, start, stop):
        for n in range(start, stop):
            stacks = [
                np.stack([frame(max(k, 0)) for k in range(at - STACK + 1, at + 1)], -1)
                for at in (n, n + 1)
            ]
            buffer.add(obs=stacks[0], next_obs=stacks[1], n=n)

    def drawn(self, buffer):
        rows = buffer.get_all_transitions()
        steps = rows["n"][:, 0].astype(int)
        for name, on in (("obs", 0), ("next_obs", 1)):
            shown = numbers(np.moveaxis(rows[name], -1, 1))
            wanted = (steps + on)[:, None] + np.arange(1 - STACK, 1)
            assert (shown == np.maximum(wanted, 0)).all()
        if len(steps):
            assert np.isin(buffer.sample(50)["n"], steps).all()
        return steps


class CpprbFrames(Cpprb):
    field = "next_obs_frame"
    options = {"next_of": "obs", "stack_compress": "obs"}  # noqa: RUF012


class CpprbStacks(Cpprb):
    options = {"stack_compress": ["obs", "next_obs"]}  # noqa: RUF012


class Keras:
    field = "observation"

    class Env:
        class Discrete:
            n = 7

        num_frames, action_space = STACK, Discrete()

    def make(self, path):
        return keras_gym.ExperienceReplayBuffer(self.Env(), SIZE, 80, 2, 0.5, 3, path=path)

    def fill(self, buffer, start, stop):
        for n in range(start, stop):
            stack = np.stack([frame(k) for k in history(n, begins=True)], -1)
            buffer.add(stack, n % 7, float(n), ends(n), n // LENGTH)

    def drawn(self, buffer):
        found = set()
        for _ in range(40):
            states, actions, returns, factors, later, _ = buffer.sample()
            shown, led = (numbers(np.moveaxis(each, -1, 1)) for each in (states, later))
            for at, step in enumerate(shown[:, -1].tolist()):
                assert shown[at].tolist() == history(step, begins=True)
                assert actions[at].argmax() == step % 7
                assert returns[at] == step + (0 if ends(step) else (step + 1) / 2)
                over = ends(step) or ends(step + 1)
                assert factors[at] == (0 if over else 0.25)
                assert over or led[at].tolist() == history(step + 2, begins=True)
                found.add(step)
        return np.array(sorted(found))


class Cs294:
    field = "observation"

    def make(self, path):
        return cs294.ReplayBuffer(SIZE, STACK, path=path)

    def fill(self, buffer, start, stop):
        for n in range(start, stop):
            buffer.store_effect(buffer.store_frame(frame(n)), n % 7, n, ends(n))

    def drawn(self, buffer):
        batch = buffer.sample(buffer._available())
        histories, following = (numbers(np.moveaxis(batch[at], -1, 1)) for at in (0, 3))
        steps = histories[:, -1]
        assert (batch[2] == steps).all()
        assert (batch[1] == steps % 7).all()
        assert (batch[4] == ends(steps)).all()
        oldest = int(buffer._ring.column("reward").max()) - SIZE
        for shown, led, step in zip(histories.tolist(), following.tolist(), steps, strict=True):
            if step >= oldest + STACK:
                assert shown == history(step)
            assert led[-1] == step + 1
        return steps


class CpprbWhole(CpprbFrames):
    """All rows are lost, with the only block of stacks that are stored whole."""

    field = "next_obs_whole"


class ReAgent:
    field = "observation"
    horizon = 3

    def make(self, path):
        reagent = pytest.importorskip("diskreplay.compat.reagent")
        return reagent.ReplayBuffer(
            (SIDE, SIDE), STACK, SIZE, 8, update_horizon=self.horizon, gamma=1.0, path=path
        )

    def fill(self, buffer, start, stop):
        for n in range(start, stop):
            buffer.add(frame(n), n % 7, float(n), ends(n))

    def drawn(self, buffer):
        batch = buffer.sample_all_valid_transitions()
        shown, led = (numbers(np.moveaxis(each.numpy(), -1, 1))
                      for each in (batch.state, batch.next_state))  # fmt: skip
        steps = shown[:, -1]
        assert len(steps) == buffer.size
        assert (batch.action.numpy()[:, -1] == steps % 7).all()
        for at, step in enumerate(steps.tolist()):
            assert shown[at].tolist() == history(step)
            last = next((n for n in range(step, step + self.horizon) if ends(n)), None)
            taken = self.horizon if last is None else last - step + 1
            assert batch.reward[at] == sum(range(step, step + taken))
            assert batch.terminal[at] == (last is not None)
            assert last is not None or led[at].tolist() == history(step + self.horizon)
        return steps


APIS = [
    Rainbow, PrioritizedRainbow, Cpprb, CpprbFrames, CpprbStacks, CpprbWhole, Keras, Cs294, ReAgent,
]  # fmt: skip


@pytest.mark.parametrize("where", [0.4, 0.7, 0.99])
@pytest.mark.parametrize("steps", [11 * LENGTH, 29 * LENGTH])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.costly(4)
def test_what_is_set_aside_is_not_drawn(tmp_path, api, steps, where):
    api, store = api(), tmp_path / "store"
    buffer = api.make(store)
    api.fill(buffer, 0, steps)
    before = set(api.drawn(buffer).tolist())
    buffer.close()
    fields = [path.name for path in store.iterdir()]
    name = next(n for n in sorted(fields, reverse=True) if n.startswith(api.field))
    path = segments(store, name)[-1]
    flip(path, int(min(path.stat().st_size, open_segments(store)[name].size) * where))
    assert repair(store).aside is not None
    buffer = api.make(store)
    after = set(api.drawn(buffer).tolist())
    # Nothing else, and no more is gone than the damage and what hangs together with it.
    assert after <= before
    if not isinstance(api, CpprbWhole):
        assert len(before) - 8 - 2 * STACK - 3 <= len(after) < len(before)
    api.fill(buffer, steps, steps + 10 * LENGTH)
    api.drawn(buffer)
    buffer.close()
    assert verify(store).clean
    buffer = api.make(store)
    api.drawn(buffer)
    buffer.close()


def test_priorities_of_rows_beside_those_set_aside_are_converted_once(tmp_path):
    """A kill amid the flush of another alpha left leaves that the record does not describe. A
    repair keeps what made them beside them."""

    def opened(path, alpha):
        spec = {"obs": {"shape": (SIDE, SIDE), "dtype": np.uint8}, "n": {"dtype": np.int64}}
        return cpprb.PrioritizedReplayBuffer(SIZE, spec, path=path, alpha=alpha, eps=0.0)

    with opened(tmp_path / "store", 0.5) as buffer:
        for n in range(SIZE):
            buffer.add(obs=frame(n), n=n, priorities=n + 1)
    record = (tmp_path / "store" / "zarr.json").read_bytes()
    killed = tmp_path / "killed"
    with opened(tmp_path / "store", 1.0) as buffer:
        buffer.flush()
        with buffer._ring._rows.store.maintenance.lock:  # it renames and removes files
            shutil.copytree(tmp_path / "store", killed)
    (killed / "zarr.json").write_bytes(record)
    field = next(path.name for path in killed.iterdir() if path.name.startswith("obs"))
    path = segments(killed, field)[-1]
    flip(path, path.stat().st_size // 2)
    assert repair(killed).aside is not None
    for alpha in (0.5, 0.25):
        with opened(killed, alpha) as buffer:
            rows = buffer.get_all_transitions()["n"].ravel()
            assert SIZE / 2 < len(rows) < SIZE
            leaves = buffer._tree().leaves[: len(rows)]
            np.testing.assert_allclose(leaves, (rows + 1.0) ** alpha, rtol=1e-5)
