import copy
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from diskreplay.errors import InvalidInputError
from diskreplay.integrations.env_state import EnvState
from diskreplay.integrations.mujoco_state import (
    give_simulation,
    has_model,
    is_simulated,
    other_size,
)

mujoco = pytest.importorskip("mujoco")

PENDULUM = """<mujoco><worldbody><body><joint name="hinge" type="hinge" damping="0.1"/>
<geom size=".1" pos=".5 0 0"/></body></worldbody><actuator><motor joint="hinge"/></actuator>
</mujoco>"""
TWO = PENDULUM.replace("<geom", '<joint name="slide" type="slide"/><geom')


class Drawn(gymnasium.Env):
    """A pendulum with another mass and another time step in each episode."""

    observation_space, action_space = Box(-np.inf, np.inf, (4,), "float64"), Box(-1, 1, (1,))

    def __init__(self, xml=PENDULUM):
        self.model = mujoco.MjModel.from_xml_string(xml)
        self.data = mujoco.MjData(self.model)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        self.model.body_mass[1] = self.np_random.uniform(1, 9)
        self.model.opt.timestep = self.np_random.uniform(0.001, 0.01)
        self.model.vis.headlight.ambient[0] = self.np_random.random()
        return self._seen(), {}

    def step(self, action):
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data)
        return self._seen(), 0.0, False, False, {}

    def _seen(self):
        data = self.data
        return np.array(
            [data.qpos[0], data.qvel[0], data.qacc[0], self.model.vis.headlight.ambient[0]]
        )


class Named(Drawn):
    """The same under other names, and the data where nobody looks."""

    def __init__(self):
        super().__init__()
        self.mj_model, self.parts = self.model, [self.data]
        del self.model, self.data

    def __getattr__(self, name):
        if name in ("model", "data"):
            return self.mj_model if name == "model" else self.parts[0]
        raise AttributeError(name)


@pytest.mark.parametrize("kind", [Drawn, Named])
def test_an_environment_that_changes_its_model_goes_on(kind):
    env, other = kind(), kind()
    env.reset(seed=1)
    for _ in range(9):
        env.step(0.5)
    data = EnvState(env).take()
    expected = [env.step(0.1)[0] for _ in range(20)]
    first = other.reset(seed=2)[0]
    model, state = other.model, EnvState(other)
    before = state.now()
    state.give(state.read(data))
    assert other.model is model
    np.testing.assert_array_equal(expected, [other.step(0.1)[0] for _ in range(20)])
    state.go_back(before)
    np.testing.assert_array_equal(other._seen(), first)


def test_another_model_is_refused():
    env, other = Drawn(TWO), Drawn()
    for each in (env, other):
        each.reset(seed=0)
    with pytest.raises(InvalidInputError, match=r"env: data of Drawn: .* nB = \d+ saved, and"):
        EnvState(other).read(EnvState(env).take())


def test_parts():
    model = mujoco.MjModel.from_xml_string(PENDULUM)
    data, twin = mujoco.MjData(model), copy.deepcopy(model)
    assert is_simulated(data, data)
    assert is_simulated(model)
    assert not is_simulated(model, data)
    assert not is_simulated(3, None)
    assert has_model([1, data], model)
    assert not has_model([1, data], twin)
    assert not has_model([data], data)
    assert other_size(model, twin) is None
    assert other_size(data, mujoco.MjData(mujoco.MjModel.from_xml_string(TWO)))
    twin.geom_rgba[:], twin.stat.extent = 0.25, 7.0
    give_simulation(model, pickle.loads(pickle.dumps(twin)))
    assert (model.geom_rgba == 0.25).all()
    assert model.stat.extent == 7
