"""The state of an environment in the middle of an episode: taken, and given back to another one.

Of an environment and each of its wrappers, and of each env of a `SyncVectorEnv`:

- what `get_state` returns, where a class has it and `set_state(state)` too;
- else its attributes, pickled together, so that what two of them share stays shared. Left out are
  functions, specs, what Gymnasium and its like draw pictures with, and the buffers that it records
  into. Of spaces the generator alone is given back, so that whoever holds them keeps them;
- of Atari's emulator a snapshot with its random numbers, of MuJoCo's simulation all of its data.

The emulator does not tell which action it would repeat (`repeat_action_probability`), and no
snapshot has it. So that is no operation from then on, in the environment whose state is taken too.
Else the first frame of a run that goes on might repeat what another environment did.
"""

import io
import math
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import gymnasium
from gymnasium import vector
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import EzPickle
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from diskreplay.errors import InvalidInputError
from diskreplay.session import Session

_PICTURES = {"clock", "mujoco_renderer", "renderer", "screen", "surf", "viewer", "window"}
_DRAWING = {"OpenGL", "glfw", "gymnasium", "mujoco", "pygame", "pyglet"}  # packages that draw them
_MADE_WITH = {"_ezpickle_args", "_ezpickle_kwargs", "_saved_kwargs", "env_fns"}
# Called so since Gymnasium 1.0.
_VECTOR_WRAPPER = vars(vector).get("VectorWrapper") or vars(vector)["VectorEnvWrapper"]
_CODE = types.FunctionType | types.BuiltinFunctionType | types.ModuleType | EnvSpec


class EnvState:
    """Takes the state of an environment, and gives it back to it or to one that is made alike.

    Parameters
    ----------
    env : gymnasium.Env or gymnasium.vector.SyncVectorEnv
        With its wrappers; recorders may be among them.

    Raises
    ------
    InvalidInputError
        Its envs are in other processes, where nobody can take their state.
    """

    def __init__(self, env: Any) -> None:
        self._layers = list(_layers(env))
        self._names = [type(layer).__qualname__ for layer in self._layers]
        self._numbers = {id(layer): number for number, layer in enumerate(self._layers)}

    def take(self) -> bytes:
        """The state as it is now. Atari's emulator, if it repeats actions, plays some 50 frames for
        it, which are undone.

        Raises
        ------
        InvalidInputError
            An attribute cannot be pickled; it is named.
        """
        states = [_state(layer) for layer in self._layers]
        try:
            return self._pickled((self._names, states))
        except Exception as error:
            for layer, (_, attributes) in zip(self._layers, states, strict=True):
                for name, value in attributes.items():
                    self._check(layer, name, value)
            raise InvalidInputError(f"env: its state cannot be pickled: {error}") from error

    def read(self, data: bytes) -> list[Any]:
        """What `give` takes, from what `take` returned. Changes nothing.

        Unpickling runs what the data says: read what you trust.

        Raises
        ------
        InvalidInputError
            It is the state of an environment with other wrappers.
        """
        names, states = _Unpickler(data, self._layers).load()
        if names != self._names:
            raise InvalidInputError(
                f"env: the state of {' > '.join(names)} found; make the environment as it was, "
                f"this is {' > '.join(self._names)}"
            )
        return states

    def give(self, states: list[Any]) -> None:
        """Be in the state that `read` returned."""
        for layer, (own, attributes) in zip(self._layers, states, strict=True):
            for name, value in attributes.items():
                there = getattr(layer, name, None)
                if isinstance(there, gymnasium.Space) and type(there) is type(value):
                    there.__dict__.update(value.__dict__)
                elif _is_simulation(there):
                    sys.modules["mujoco"].mj_copyData(there, layer.model, value)
                else:
                    setattr(layer, name, value)
            if _has(layer, "get_state", "set_state"):
                layer.set_state(own)
            elif own is not None:
                _repeat_nothing(layer)
                layer.restore_state(own)

    def _pickled(self, value: Any) -> bytes:
        file = io.BytesIO()
        _Pickler(file, self._numbers).dump(value)
        return file.getvalue()

    def _check(self, layer: Any, name: str, value: Any) -> None:
        try:
            self._pickled(value)
        except Exception as error:
            raise InvalidInputError(
                f"env: the attribute {name} of {type(layer).__qualname__} cannot be pickled "
                f"({error}); give the class get_state() and set_state(state), or leave env out: "
                "then a run is resumed at a reset"
            ) from error


class _Pickler(pickle.Pickler):
    """Says of layers and buffers only which ones they are."""

    def __init__(self, file: io.BytesIO, numbers: dict[int, int]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._numbers = numbers

    def persistent_id(self, value: Any) -> int | None:
        number = self._numbers.get(id(value))
        if number is None and isinstance(value, gymnasium.Env) and isinstance(value, EzPickle):
            raise InvalidInputError(
                f"{type(value).__qualname__} is pickled as what it was made with, without its state"
            )
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, layers: list[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._layers = layers

    def persistent_load(self, number: int) -> Any:
        return self._layers[number]


def _layers(env: Any) -> Iterator[Any]:
    """The environment, from the outermost wrapper on, and the envs of a vector one."""
    if isinstance(env, AsyncVectorEnv):
        raise InvalidInputError(
            "env: the envs of an AsyncVectorEnv are in other processes; use a SyncVectorEnv, or "
            "leave env out: then a run is resumed at a reset"
        )
    yield env
    if isinstance(env, gymnasium.Wrapper | _VECTOR_WRAPPER):
        yield from _layers(env.env)
    elif isinstance(env, SyncVectorEnv):
        for each in env.envs:
            yield from _layers(each)


def _state(layer: Any) -> tuple[Any, dict[str, Any]]:
    """What a layer says of itself, and its attributes."""
    if _has(layer, "get_state", "set_state"):
        return layer.get_state(), {}
    own = None
    if _has(layer, "clone_state", "restore_state"):
        own = layer.clone_state(include_rng=True)
        if _repeat_nothing(layer):
            layer.restore_state(own)
    return own, {
        name: value for name, value in vars(layer).items()
        if not _is_left_out(layer, name, value)
        and not isinstance(value, _CODE | types.MethodType | Session)
    }  # fmt: skip


def _is_left_out(layer: Any, name: str, value: Any) -> bool:
    """Whether an attribute is no state of its own: a layer, what a snapshot has, or a picture.

    By the value, too: an environment may well call a count of its steps `clock`.
    """
    if name in _PICTURES:
        return value is None or type(value).__module__.partition(".")[0] in _DRAWING
    if name == "ale":
        return _has(layer, "clone_state", "restore_state")
    if name == "model":
        return type(value).__name__ == "MjModel"
    if name in ("env", "envs"):
        return isinstance(layer, gymnasium.Wrapper | _VECTOR_WRAPPER | SyncVectorEnv)
    return name in _MADE_WITH


def _repeat_nothing(layer: Any) -> bool:
    """Have the emulator repeat no operation, if it repeats actions. It is in another state then.

    Each frame takes the action unless the one before is repeated: all of these are in one of 1e30.
    """
    emulator = getattr(layer, "ale", None)
    if emulator is None or not (repeats := emulator.getFloat("repeat_action_probability")):
        return False
    if repeats < 1:
        for _ in range(math.ceil(math.log(1e-30) / math.log(repeats))):
            emulator.act(0)
    return True


def _has(layer: Any, *methods: str) -> bool:
    return all(callable(getattr(type(layer), method, None)) for method in methods)


def _is_simulation(value: Any) -> bool:
    return type(value).__name__ == "MjData" and "mujoco" in sys.modules
