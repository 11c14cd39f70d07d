"""The recipes give what they say: compared with what is known of the rows."""

import contextlib

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay

ROWS, EPISODE = 1500, 150


def values(scale):
    """A network of which the best action is always 3."""
    return lambda batch: scale * (batch.step[..., None] + np.arange(4.0))


def unroll(batch):
    return batch.id[..., None] + np.float32([0, 0.5])


def check_r2d2(names):
    batch = names["batch"]
    assert batch.h.shape == (64, 2)
    for i in range(64):
        for j in range(80):
            if not batch.learn[i, 40 + j]:
                continue
            step = int(batch.step[i, 40 + j])
            steps = min(5, EPISODE - step)
            value = 0.0 if steps + step == EPISODE else 2.0 * (step + 5 + 3)
            target = sum(0.99**k for k in range(steps)) + 0.99**steps * value
            chosen = 0.5 * (step + batch.action[i, 40 + j])
            assert names["td"][i, j] == pytest.approx(target - chosen, rel=1e-5)
    assert np.isfinite(names["loss"])
    found = names["view"].gather(batch.anchor).probability
    assert len(set(np.round(found, 12))) > 3


def check_states_that_are_written_again(names):
    again = names["view"].gather(names["batch"].anchor)
    first = np.array([ids[ids >= 0][0] for ids in again.id])
    assert (again.h == first[:, None] + np.float32([0, 0.5])).all()


def check_dreamer(names):
    batch = names["batch"]
    assert batch.reward.shape == (16, 64)
    assert (batch.reward[batch.is_first] == 0).all()
    assert (batch.is_last == (batch.observed & ~batch.transition)).all()
    assert batch.is_terminal[batch.is_last].all()


def check_td_mpc2(names):
    batch = names["batch"]
    assert batch.observation.shape == (256, 4, 3)
    assert batch.transition[:, :3].all()
    np.testing.assert_array_equal(batch.id[:, :3], batch.anchor[:, None] + np.arange(3))
    np.testing.assert_array_equal(batch.observation, names["buffer"].take("observation", batch.id))


def check_decision_transformer(names):
    mask = names["mask"]
    np.testing.assert_allclose(names["returns_to_go"][mask], EPISODE - names["steps"][mask])
    assert 0 < (~mask).sum() < mask.size / 2


def check_the_first(names):
    assert names["batch"].reward.shape == (64, 125)


def then_closed(check):
    """Recipes are for different runs: the next view may have the same name."""

    def checked(names):
        check(names)
        names["view"].close()

    return checked


CHECKS = {
    "n_step=5, prioritized=True)": then_closed(check_the_first),
    "priority(td, learn)": then_closed(check_r2d2),
    "view.write(": then_closed(check_states_that_are_written_again),
    "arrival=True": then_closed(check_dreamer),
    "batch_size=256": then_closed(check_td_mpc2),
    "returns_to_go=1.0": then_closed(check_decision_transformer),
}


@contextlib.contextmanager
def around(_said):
    made = diskreplay.ReplayBuffer(
        "runs/replay", observation_space=Box(0, 255, (3,), "uint8"), action_space=Discrete(4),
        capacity=2000, update_horizon=5,
        extras={"h": ((2,), "float32", "mutable"), "c": ((2,), "float32")},
    )  # fmt: skip
    with made as buffer:
        for i in range(ROWS):
            seen = np.full(3, i % 256, np.uint8)
            buffer.add(
                seen, i % 4, 1.0, i % EPISODE == EPISODE - 1, False, next_observation=seen,
                h=np.full(2, i), c=np.full(2, -i),
            )  # fmt: skip
        yield {
            "buffer": buffer, "np": np, "unroll": unroll, "network": values(0.5),
            "target_network": values(2.0),
        }  # fmt: skip
