"""The state of an environment in the middle of an episode: taken, and given back to another one.

Of an environment and each of its wrappers, and of each env of a `SyncVectorEnv`:

- what `get_state` returns, where a class has it and `set_state(state)` too;
- else its attributes, pickled together, so that what two of them share stays shared. Left out are
  functions, specs, what Gymnasium and its like draw pictures with, and the buffers that it records
  into. (So what a function keeps between calls, in a closure or a global, and a method in its
  object, stays as it is: that may be the agent.) What has an owner who saves it (`held`: a network,
  a generator) is named only, and stays shared with that owner. Spaces have to be as they were. Of
  Gymnasium's, and of their parts, the generator alone is given back, so that whoever holds them
  keeps them; of spaces of other classes also what those have noted in them;
- of Atari's emulator a snapshot with its random numbers, of MuJoCo's simulation all of its data,
  and its model: an environment may draw other masses for each episode.

The emulator does not tell which action it would repeat (`repeat_action_probability`), and no
snapshot has it. So that is no operation from then on, in the environment whose state is taken too.
Else the first frame of a run that goes on might repeat what another environment did.
"""

import contextlib
import copy
import io
import math
import pickle
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium
from gymnasium import vector
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import EzPickle
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from diskreplay.brief import brief
from diskreplay.errors import InvalidInputError
from diskreplay.integrations.mujoco_state import (
    give_simulation,
    has_model,
    is_simulated,
    other_size,
)
from diskreplay.session import Session
from diskreplay.signals import undisturbed

_PICTURES = {"clock", "mujoco_renderer", "renderer", "screen", "surf", "viewer", "window"}
_DRAWING = {"OpenGL", "glfw", "gymnasium", "mujoco", "pygame", "pyglet"}  # packages that draw them
_GENERATOR = "_np_random"  # of a space
_MADE_WITH = {"_ezpickle_args", "_ezpickle_kwargs", "_saved_kwargs", "env_fns"}
# Called so since Gymnasium 1.0.
_VECTOR_WRAPPER = vars(vector).get("VectorWrapper") or vars(vector)["VectorEnvWrapper"]
_UNPICKLED_AT_THEIR_PATH = "diskreplay.integrations.", "diskreplay.compat."
_CODE = types.FunctionType | types.BuiltinFunctionType | types.ModuleType | EnvSpec


class EnvState:
    """Takes the state of an environment, and gives it back to it or to one that is made alike.

    Parameters
    ----------
    env : gymnasium.Env or gymnasium.vector.SyncVectorEnv
        With its wrappers; recorders may be among them.
    held : callable, optional
        The objects, by name, whose state somebody else takes and gives back.
    unsaved : callable, optional
        The objects, by name, that others use too, and whose state nobody takes. `take` refuses an
        environment that holds one.

    Raises
    ------
    InvalidInputError
        It is no environment, or its envs are in other processes, where nobody can take their state.
    """

    def __init__(
        self,
        env: Any,
        held: Callable[[], Mapping[str, Any]] = dict,
        unsaved: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        if isinstance(env, type) or not all(hasattr(env, part) for part in ("reset", "step")):
            raise InvalidInputError(
                f"env: a gymnasium.Env or SyncVectorEnv expected, found {brief(env)}; make it first"
            )
        self._layers, self._held, self._unsaved = list(_layers(env)), held, unsaved
        for layer in self._layers:
            _refuse_hidden(layer)
        self._made_with = [set(vars(layer)) for layer in self._layers]
        self._names = [type(layer).__qualname__ for layer in self._layers]

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
            for layer, (_, attributes, _names) in zip(self._layers, states, strict=True):
                for name, value in attributes.items():
                    self._check(layer, name, value)
            raise InvalidInputError(f"env: its state cannot be pickled: {error}") from error

    def read(self, data: bytes) -> list[Any]:
        """What `give` takes, from what `take` returned. Changes nothing.

        Unpickling runs what the data says: read what you trust.

        Raises
        ------
        InvalidInputError
            It is the state of an environment with other wrappers or spaces, or refers to something
            that is not held here.
        """
        names, states = self._unpickled(data)
        if names != self._names:
            raise InvalidInputError(
                f"env: the state of {' > '.join(names)} found; make the environment as it was, "
                f"this is {' > '.join(self._names)}"
            )
        for layer, (_own, attributes, _names) in zip(self._layers, states, strict=True):
            for name, value in attributes.items():
                there = getattr(layer, name, None)
                if _are_spaces(there, value) and not _is_alike(there, value):
                    raise InvalidInputError(
                        f"env: {name} of {type(layer).__qualname__}: {brief(value, 200)} saved, "
                        f"and {brief(there, 200)} here; make the environment as it was"
                    )
                if is_simulated(there, value) and (found := other_size(there, value)):
                    raise InvalidInputError(
                        f"env: {name} of {type(layer).__qualname__}: a model of MuJoCo's with "
                        f"{found} here; make the environment as it was"
                    )
        return states

    def give(self, states: list[Any]) -> None:
        """Be in the state that `read` returned. An attribute that was not there then goes, if it
        came since this was made: the environment makes it when it needs it."""
        for layer, made_with, (own, attributes, names) in zip(
            self._layers, self._made_with, states, strict=True
        ):
            for name, value in attributes.items():
                there = getattr(layer, name, None)
                if is_simulated(there, value):
                    give_simulation(there, value)
                elif _are_spaces(there, value):
                    _give_space(there, value)
                else:
                    setattr(layer, name, value)
            if not _has(layer, "get_state", "set_state"):
                for name in _attributes(layer).keys() - {*names} - made_with:
                    del vars(layer)[name]  # whatever the class says of it
            _give_own(layer, own)
            if _has(layer, "go_on_anywhere"):
                layer.go_on_anywhere()

    def now(self) -> "list[_Before]":
        """What `go_back` takes: the attributes as they are, and no copies, which those who hold
        them would not see."""
        found = []
        for layer in self._layers:
            own, attributes = None, dict(vars(layer))
            with contextlib.suppress(Exception):  # it may have no state before its first reset
                own = self._pickled(_own(layer))
            spaces = [(s, dict(vars(s))) for each in attributes.values() for s in _spaces(each)]
            simulations = [
                (each, copy.deepcopy(each)) for each in attributes.values() if is_simulated(each)
            ]
            found.append(_Before(own, attributes, spaces, simulations))
        return found

    def go_back(self, before: "list[_Before]") -> None:
        """Undo `give`, and nothing that was done since."""
        for layer, (own, attributes, spaces, simulations) in zip(self._layers, before, strict=True):
            for thing, its in [(layer, attributes), *spaces]:
                vars(thing).clear()
                vars(thing).update(its)
            for simulation, its in simulations:
                give_simulation(simulation, its)
            if own is not None:
                _give_own(layer, self._unpickled(own))

    def _pickled(self, value: Any) -> bytes:
        file = io.BytesIO()
        names: dict[int, int | str] = {id(each): name for name, each in self._held().items()}
        names |= {id(layer): number for number, layer in enumerate(self._layers)}
        unsaved = {id(each): name for name, each in self._unsaved().items()}
        _Pickler(file, names, unsaved).dump(value)
        return file.getvalue()

    def _unpickled(self, data: bytes) -> Any:
        return _Unpickler(data, dict(enumerate(self._layers)) | dict(self._held())).load()

    def _check(self, layer: Any, name: str, value: Any) -> None:
        try:
            self._pickled(value)
        except Exception as error:
            raise InvalidInputError(
                f"env: the attribute {name} of {type(layer).__qualname__} cannot be pickled "
                f"({type(error).__name__}: {error}); give the class get_state() and "
                "set_state(state), or leave env out: then a run is resumed at a reset"
            ) from error


class _Before(NamedTuple):
    """A layer before a state was given to it: its own state, its attributes, the attributes of the
    spaces among them, and copies of its simulations."""

    own: bytes | None
    attributes: dict[str, Any]
    spaces: list[tuple[gymnasium.Space[Any], dict[str, Any]]]
    simulations: list[tuple[Any, Any]]


class _Pickler(pickle.Pickler):
    """Says of layers, and of what is held, only which ones they are."""

    def __init__(
        self, file: io.BytesIO, names: dict[int, int | str], unsaved: dict[int, str]
    ) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._names, self._unsaved = names, unsaved

    def persistent_id(self, value: Any) -> int | str | None:
        name = self._names.get(id(value))
        if name is None and id(value) in self._unsaved:
            raise InvalidInputError(
                f"{self._unsaved[id(value)]} is not saved with this run, and a copy of it would "
                "draw other numbers; name it in rng"
            )
        if name is None and isinstance(value, gymnasium.Env) and isinstance(value, EzPickle):
            raise InvalidInputError(
                f"{type(value).__qualname__} is pickled as what it was made with, without its state"
            )
        if name is None and _is_on_disk(value):
            raise InvalidInputError(
                f"a {type(value).__qualname__} is on the disk, and another one of this process "
                "would take its store; only the buffer of the run may be held"
            )
        return name


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, named: dict[Any, Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._named = named

    def persistent_load(self, name: int | str) -> Any:
        if name not in self._named:
            raise InvalidInputError(f"env: it had {name}, which is not there in this run")
        return self._named[name]


class _Plain:
    """What has attributes and nothing else is as large as this."""


def _refuse_hidden(layer: Any) -> None:
    """Refuse what has state that is no attribute, and does not say itself what it is."""
    says = _has(layer, "get_state", "set_state") or _has(layer, "clone_state", "restore_state")
    if not says and type(layer).__basicsize__ != _Plain.__basicsize__:
        raise InvalidInputError(
            f"env: {type(layer).__qualname__} has state that is in no attribute (__slots__, or a "
            "base class in C), which nobody can take; give the class get_state() and "
            "set_state(state), or leave env out: then a run is resumed at a reset"
        )


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


def _state(layer: Any) -> tuple[Any, dict[str, Any], list[str]]:
    """What a layer says of itself, its attributes, and the names of all, those left out too."""
    if _has(layer, "get_state", "set_state"):
        return _own(layer), {}, []
    return _own(layer), _attributes(layer), [*vars(layer)]


def _own(layer: Any) -> Any:
    """What a layer says of itself; None if it says nothing."""
    if _has(layer, "get_state", "set_state"):
        return layer.get_state()
    if not _has(layer, "clone_state", "restore_state"):
        return None
    own = layer.clone_state(include_rng=True)
    if _repeats(layer):
        _restore(layer, own)
    return own


def _give_own(layer: Any, own: Any) -> None:
    if _has(layer, "get_state", "set_state"):
        layer.set_state(own)
    elif own is not None:
        _restore(layer, own)


def _restore(layer: Any, own: Any) -> None:
    """Be in a state that was cloned, with no action to repeat."""
    with undisturbed():  # Ctrl-C amid it would leave the emulator some frames later
        try:
            _repeat_nothing(layer)
        finally:
            layer.restore_state(own)


def _attributes(layer: Any) -> dict[str, Any]:
    """Those that are its state."""
    return {
        name: value for name, value in vars(layer).items()
        if not _is_left_out(layer, name, value)
        and not isinstance(value, _CODE | types.MethodType | Session)
    }  # fmt: skip


def _are_spaces(*values: Any) -> bool:
    return all(isinstance(each, gymnasium.Space) for each in values)


def _is_alike(there: Any, value: Any) -> bool:
    """Whether two spaces and their parts are of the same kinds, shapes and bounds."""
    mine, its = _spaces(there), _spaces(value)
    return [*map(_looks, mine)] == [*map(_looks, its)] and all(
        type(space).__eq__ is object.__eq__ or bool(space == other)
        for space, other in zip(mine, its, strict=True)
    )


def _looks(space: gymnasium.Space[Any]) -> Any:
    return type(space), getattr(space, "shape", None), getattr(space, "dtype", None)


def _give_space(there: Any, value: Any) -> None:
    """Give a space the generators of one that is alike, and its parts those of the other's."""
    for space, other in zip(_spaces(there), _spaces(value), strict=True):
        is_plain = type(space).__module__.startswith("gymnasium.")
        vars(space).update(
            (name, its) for name, its in vars(other).items()
            if name == _GENERATOR or not (is_plain or _parts(its))
        )  # fmt: skip


def _spaces(value: Any) -> list[gymnasium.Space[Any]]:
    """A space, its parts and their parts; nothing of what is no space."""
    found = _parts(value) if isinstance(value, gymnasium.Space) else []
    for space in found:  # which grows
        known = {id(each) for each in found}
        parts = [part for each in vars(space).values() for part in _parts(each)]
        found += [part for part in parts if id(part) not in known]
    return found


def _parts(value: Any, depth: int = 4) -> list[gymnasium.Space[Any]]:
    """A space, or those of a container, which may be in so many others and in itself."""
    if isinstance(value, gymnasium.Space):
        return [value]
    if isinstance(value, dict):
        value = [*value.values()]
    if not depth or not isinstance(value, list | tuple):
        return []
    return [part for each in value for part in _parts(each, depth - 1)]


def _is_on_disk(value: Any) -> bool:
    """Whether it is a buffer of ours that unpickles by opening its store."""
    kind = type(value)
    return (
        any(each.__module__.startswith(_UNPICKLED_AT_THEIR_PATH) for each in kind.__mro__)
        and hasattr(kind, "close")
        and (hasattr(kind, "add") or hasattr(kind, "set"))
    )


def _is_left_out(layer: Any, name: str, value: Any) -> bool:
    """Whether an attribute is no state of its own: a layer, what a snapshot has, or a picture.

    By the value, too: an environment may well call a count of its steps `clock`.
    """
    if name in _PICTURES:
        return value is None or type(value).__module__.partition(".")[0] in _DRAWING
    if name == "_behind":  # a recorder's place in its buffer
        return _has(layer, "go_on_anywhere")
    if name == "ale":
        return _has(layer, "clone_state", "restore_state")
    if has_model(vars(layer).values(), value):
        return True
    if name in ("env", "envs"):
        return isinstance(layer, gymnasium.Wrapper | _VECTOR_WRAPPER | SyncVectorEnv)
    return name in _MADE_WITH


def _repeats(layer: Any) -> float:
    """With what probability an emulator repeats an action; 0 of what is none."""
    emulator = getattr(layer, "ale", None)
    return 0.0 if emulator is None else emulator.getFloat("repeat_action_probability")


def _repeat_nothing(layer: Any) -> None:
    """Have the emulator repeat no operation, if it repeats actions. It is in another state then.

    Each frame takes the action unless the one before is repeated: all of these are in one of 1e30.
    """
    repeats = _repeats(layer)
    if 0 < repeats < 1:
        for _ in range(math.ceil(math.log(1e-30) / math.log(repeats))):
            layer.ale.act(0)


def _has(layer: Any, *methods: str) -> bool:
    return all(callable(getattr(type(layer), method, None)) for method in methods)
