"""Trains with SB3's own replay buffer and with ours, and compares the networks bit for bit.

    python tools/frameworks/same_weights.py [--steps 3000] [--only "DQN, Pong"] [--slots 30000]

Pong for DQN and QR-DQN, Pendulum for SAC, TD3, TQC, CrossQ and 3-step SAC, BitFlipping for HER; two
envs each, rings that wrap round, `VecNormalize`, and `learn` called twice, which resets amid an
episode. Needs the extras sb3 and atari, and sb3-contrib for QR-DQN, TQC and CrossQ.
"""

import argparse
import hashlib
import time

import ale_py
import gymnasium
import torch
from stable_baselines3 import DQN, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from diskreplay.integrations.sb3 import (
    DiskHerReplayBuffer,
    DiskNStepReplayBuffer,
    DiskReplayBuffer,
)

gymnasium.register_envs(ale_py)


def pong():
    return VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=2, seed=0), 4)


def pendulum():
    return make_vec_env("Pendulum-v1", n_envs=2, seed=0)


def normalized():
    return VecNormalize(pendulum())


def bits():
    return make_vec_env(lambda: BitFlippingEnv(n_bits=6, continuous=True), n_envs=2, seed=0)


PLAIN = ReplayBuffer, DiskReplayBuffer, {}
STACKED = ReplayBuffer, DiskReplayBuffer, {"frame_stack": 4}
N_STEP = NStepReplayBuffer, DiskNStepReplayBuffer, {}
HER = HerReplayBuffer, DiskHerReplayBuffer, {}


def runs():
    yield "DQN, Pong", DQN, "CnnPolicy", pong, STACKED, {}
    yield "DQN, Pong, whole stacks", DQN, "CnnPolicy", pong, PLAIN, {}
    yield "SAC", SAC, "MlpPolicy", pendulum, PLAIN, {}
    yield "SAC, VecNormalize", SAC, "MlpPolicy", normalized, PLAIN, {}
    yield "TD3", TD3, "MlpPolicy", pendulum, PLAIN, {}
    yield "SAC, 3 steps", SAC, "MlpPolicy", pendulum, N_STEP, {"n_steps": 3, "gamma": 0.99}
    yield "SAC, HER", SAC, "MultiInputPolicy", bits, HER, {}
    try:
        from sb3_contrib import QRDQN, TQC, CrossQ
    except ModuleNotFoundError:
        print("sb3-contrib is not there: QR-DQN, TQC and CrossQ were not run")
        return
    yield "QR-DQN, Pong", QRDQN, "CnnPolicy", pong, STACKED, {}
    yield "TQC", TQC, "MlpPolicy", pendulum, PLAIN, {}
    yield "CrossQ", CrossQ, "MlpPolicy", pendulum, PLAIN, {}


class Returns(BaseCallback):
    """Notes the return of each episode."""

    def __init__(self):
        super().__init__()
        self.found = []

    def _on_step(self):
        self.found += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True


def trained(algorithm, policy, make_env, kind, steps, slots, options):
    """A digest of the weights, the returns of the episodes, and seconds."""
    began, returns = time.perf_counter(), Returns()
    model = algorithm(
        policy, make_env(), buffer_size=slots, learning_starts=100, train_freq=8, seed=1,
        batch_size=32, device="cpu", replay_buffer_class=kind, replay_buffer_kwargs=options,
    )  # fmt: skip
    model.learn(steps, callback=returns)
    model.learn(steps // 2, callback=returns)
    assert model.replay_buffer.full
    digest = hashlib.sha256()
    for name, value in sorted(model.policy.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()[:12], returns.found, time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--only", help="the run of this name")
    parser.add_argument("--slots", type=int, help="of the buffers; as many as steps by default")
    given = parser.parse_args()
    slots = given.slots or given.steps
    torch.set_num_threads(1)
    wrong = 0
    for name, algorithm, policy, make_env, (theirs, ours, disk), options in runs():
        if given.only not in (None, name):
            continue
        *wanted, seconds = trained(algorithm, policy, make_env, theirs, given.steps, slots, options)
        *found, ours_took = trained(
            algorithm, policy, make_env, ours, given.steps, slots, {**options, **disk}
        )
        wrong += wanted != found
        verdict = "identical" if wanted == found else "DIFFERENT"
        print(
            f"{name:24} {verdict}  {wanted[0]} {found[0]}  {seconds:.0f} s, ours {ours_took:.0f} s"
        )
        tenth = max(len(found[1]) // 10, 1)
        parts = [found[1][at : at + tenth] for at in range(0, len(found[1]), tenth)]
        means = ", ".join(f"{sum(part) / len(part):.1f}" for part in parts)
        print(f"  {len(found[1])} episodes, mean returns of each tenth: {means}")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
