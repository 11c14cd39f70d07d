"""A whole run in one checkpoint: rows, networks, optimizers, generators and the environment."""

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from diskreplay.brief import brief
from diskreplay.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    DiskReplayError,
    InvalidInputError,
)
from diskreplay.integrations.env_state import EnvState
from diskreplay.integrations.generator_states import GLOBAL, holders, set_state, state_of
from diskreplay.integrations.plain_state import check_plain, copied
from diskreplay.integrations.run_fit import check_fit, parameters_of
from diskreplay.locks import one_call
from diskreplay.one_checkpoint import only
from diskreplay.opening import checkpoints
from diskreplay.signals import undisturbed
from diskreplay.store import manifest
from diskreplay.store.checkpoint_names import CHECKPOINT_DURATION
from diskreplay.store.listing import Checkpoint
from diskreplay.store.loading import check_bytes
from diskreplay.store.manifest import ATTACHMENTS
from diskreplay.store.paths import is_remote, local, resolved
from diskreplay.store.place import Place

AGENT, ENVIRONMENT = "agent.pt", "env.pkl"
_STATE = "state_dict", "load_state_dict"
_PARTS = {"modules", "optimizers", "classes", "rng", "generators", "extras"}


class Saved(Protocol):
    """What is saved and loaded with a run. For URLs it also has what a `ReplayBuffer` has."""

    name: str

    def save(
        self, checkpoint_dir: Any, iteration_number: Any, *, attachments: Any, keep: Any
    ) -> Path: ...
    def load(
        self, checkpoint_dir: Any, suffix: Any = None, *, resume_episodes: bool
    ) -> Checkpoint: ...


class RunState:
    """Saves a run of PyTorch with its replay buffer, and goes on with it.

    Everything is in one checkpoint of the buffer, which is there whole or not at all: a kill never
    leaves a network without its rows, nor rows without their network.

    Parameters
    ----------
    buffer : ReplayBuffer
        Or what is saved and loaded as one is, a `Saved`: a buffer of
        `diskreplay.integrations.tianshou`, or `diskreplay.integrations.torchrl.SavedReplayBuffer`.
    checkpoint_dir : path, or URL of an object store
        As for ``buffer.save``.
    modules : dict of str to torch.nn.Module
        By names of your choice.
    optimizers : dict of str to torch.optim.Optimizer, optional
        And whatever else has ``state_dict`` and ``load_state_dict``: learning-rate schedulers, a
        `torch.amp.GradScaler`.
    rng : sequence of {"python", "numpy", "torch", "cuda"}
        Whose global generators are saved; those of CUDA where there is one. An `env` that holds one
        of the others is refused by `save`: it would draw from a copy in the run that goes on.
    generators : dict of str to numpy.random.Generator or torch.Generator, optional
        Further generators. The buffer's own is saved anyway.
    env : gymnasium.Env or gymnasium.vector.SyncVectorEnv, optional
        With its recorders: its state is saved in the middle of an episode, see
        `diskreplay.integrations.env_state`. It may hold the buffer and what `modules`,
        `optimizers`, `generators` and `rng` name, and shares them still when it is loaded. None: a
        resumed run begins with a reset, and the episode that was open is over.
    keep : int or None
        So many checkpoints of the highest numbers are kept; None keeps all.

    Raises
    ------
    InvalidInputError
        An argument is none of these.
    """

    def __init__(
        self,
        buffer: Saved,
        checkpoint_dir: str | os.PathLike[str],
        *,
        modules: Mapping[str, torch.nn.Module],
        optimizers: Mapping[str, Any] | None = None,
        rng: Sequence[str] = ("python", "numpy", "torch", "cuda"),
        generators: Mapping[str, np.random.Generator | torch.Generator] | None = None,
        env: Any = None,
        keep: int | None = CHECKPOINT_DURATION,
    ) -> None:
        if not all(hasattr(buffer, part) for part in ("name", "save", "load")):
            kind = type(buffer).__name__
            raise InvalidInputError(f"buffer: a ReplayBuffer expected, found {kind}")
        if is_remote(checkpoint_dir) and not hasattr(buffer, "_remote_saver"):
            raise InvalidInputError(
                f"checkpoint_dir: a directory expected, found {brief(checkpoint_dir, 80)}: a "
                f"{type(buffer).__name__} is not saved to URLs; push its checkpoints there"
            )
        self._buffer, self._keep = buffer, keep
        self._place = (
            checkpoint_dir if is_remote(checkpoint_dir) else local(checkpoint_dir, "checkpoint_dir")
        )
        self._modules = _named("modules", modules, _STATE)
        self._optimizers = _named("optimizers", optimizers or {}, _STATE)
        self._generators = _named(
            "generators", generators or {}, (np.random.Generator, torch.Generator)
        )
        self._rng = _names_of_generators(rng)
        self._env = None if env is None else EnvState(env, self._held, self._unsaved)

    def _held(self) -> dict[str, Any]:
        """What the environment may share with the run, by name: it is saved apart, so it stays the
        same object."""
        found: dict[str, Any] = {"the buffer": self._buffer}
        own = {"the buffer's rng": self._buffer.rng} if hasattr(self._buffer, "rng") else {}
        for number, part in enumerate(getattr(self._buffer, "buffers", ())):
            found[f"buffers[{number}]"] = part
        for kind, named in (
            ("modules", self._modules), ("optimizers", self._optimizers),
            ("generators", own | self._generators),
        ):  # fmt: skip
            for name, each in named.items():
                where = f"{kind}[{name!r}]"
                found[where] = each
                if isinstance(each, np.random.Generator):
                    found[f"{where}.bit_generator"] = each.bit_generator
                if isinstance(each, torch.nn.Module):
                    for parts in (each.named_modules, each.named_parameters, each.named_buffers):
                        found |= {f"{where}.{part}": value for part, value in parts() if part}
        return found | _global_generators(self._rng)

    def _unsaved(self) -> dict[str, Any]:
        """What the environment may not hold, by name: it would draw from a copy after a load."""
        return _global_generators(GLOBAL.keys() - {*self._rng})

    @one_call
    def save(self, number: int | str, /, **extras: Any) -> Path:
        """Write a checkpoint of this moment.

        Parameters
        ----------
        number : int or str
            As for ``buffer.save``; the steps that were made, say.
        **extras
            What else the run needs: numbers, strings, tensors, and dicts, lists and tuples of them.

        Returns
        -------
        Path
            The checkpoint's directory.

        Raises
        ------
        InvalidInputError
            Something cannot be loaded again; it is named. Nothing was written.
        CheckpointError, StorageError
            As ``buffer.save``.

        Notes
        -----
        Call it where a step is done: no other thread may train meanwhile. The file ``agent.pt`` is
        made of what `torch.load` takes with ``weights_only=True``.
        """
        agent = {
            "modules": {name: each.state_dict() for name, each in self._modules.items()},
            "optimizers": {name: each.state_dict() for name, each in self._optimizers.items()},
            "classes": {name: type(each).__qualname__ for name, each in self._optimizers.items()},
            "parameters": parameters_of(self._optimizers, self._modules),
            "rng": {name: GLOBAL[name][0]() for name in self._rng},
            "generators": {name: state_of(each) for name, each in self._generators.items()},
            "extras": extras,
        }
        for name, state in agent.items():
            check_plain(name, state)
        attachments: dict[str, Any] = {AGENT: lambda path: torch.save(agent, path)}
        if self._env is not None:
            attachments[ENVIRONMENT] = self._env.take()
        return self._buffer.save(self._place, number, attachments=attachments, keep=self._keep)

    @one_call
    def load(self, number: int | str | None = None) -> tuple[int | str | None, dict[str, Any]]:
        """Go back to a checkpoint; all or nothing.

        Parameters
        ----------
        number : int or str, optional
            Default: the highest number there.

        Returns
        -------
        number : int or str or None
            Which one it was. None if there is no checkpoint: nothing was changed.
        extras : dict
            What `save` was given, tensors on the CPU; empty if there is no checkpoint.

        Raises
        ------
        InvalidInputError
            What was saved does not fit the modules, optimizers, generators or the environment.
        CheckpointError, SchemaError, StorageError
            As ``buffer.load``; also if `RunState` did not write it. In all these cases rows,
            networks, generators and environment stay as they were. But an environment
            that had no state yet, before its first reset, may have got one.

        Notes
        -----
        When ``agent.pt`` is read, signals are put off until all is loaded. A second Ctrl-C ends
        that: all goes back but rows that are exchanged by then, so load again.

        ``env.pkl`` is unpickled, if there is an `env`, which runs what it says: load checkpoints
        that you trust. Without an `env` that file is left alone.
        """
        if (loaded := self._load_all(number)) is None:
            return None, {}
        found, agent = loaded
        return found.suffix if found.number is None else found.number, agent["extras"]

    def _load_all(self, number: int | str | None) -> tuple[Checkpoint, dict[str, Any]] | None:
        """Load a checkpoint whose parts fit, and say what `agent.pt` has."""
        if isinstance(self._place, Path):
            return self._load_located(number)
        assert hasattr(self._buffer, "_remote_saver")  # as `__init__` saw
        # Until all is loaded: a `save` of another thread would replace what was fetched.
        with self._buffer._remote_saver().turn(self._place):
            return self._load_located(number)

    def _load_located(self, number: int | str | None) -> tuple[Checkpoint, dict[str, Any]] | None:
        if (located := self._located(number)) is None:
            return None
        found = self._next(*located)
        with undisturbed():  # or parts could be of two moments, and PyTorch's gradients stay off
            while found is not None and not self._load_found(located[0], found):
                found = self._next(*located)
            loaded = None if found is None else (found.checkpoint, found.agent)
            found = None  # or Ctrl-C could come as the place is let go of, and be ignored
        return loaded

    def _next(self, directory: Path, number: int | str | None) -> "_Found | None":
        """The checkpoint to be loaded, its parts read; None if there is none."""
        while (listed := self._find(directory, number)) is not None:
            place = Place(resolved(listed.path))
            try:
                # Looked at again: another one may have come to its path since it was listed.
                checkpoint = Checkpoint.found(listed.path, listed.name, listed.suffix)
                # One that is not whole is refused by the buffer's `load`, by name.
                parts = self._read(checkpoint) if checkpoint.whole else ({}, [])
                return _Found(checkpoint, place, *parts)
            except DiskReplayError:
                if place.holds():  # else a save has replaced or retired it
                    raise
        return None

    def _load_found(self, directory: Path, found: "_Found") -> bool:
        """Load a checkpoint; False where another one took its place: then nothing is loaded."""
        checkpoint, undo = found.checkpoint, contextlib.ExitStack()
        try:
            if checkpoint.whole:
                # Before the rows, which cannot be given back: what refuses its state raises here.
                self._give(found.agent, found.states, checkpoint.path, undo)
            resume = self._env is not None
            with only(found.place):
                loaded = self._buffer.load(directory, checkpoint.suffix, resume_episodes=resume)
            if checkpoint.whole and loaded.saved_at == checkpoint.saved_at:
                undo.pop_all()
                return True
        except DiskReplayError:
            if found.place.holds():
                raise
        finally:
            with undisturbed():  # a second Ctrl-C has ended the other one
                undo.close()
        return False

    def _give(
        self, agent: dict[str, Any], states: list[Any], path: Path, undo: contextlib.ExitStack
    ) -> None:
        """Put modules, optimizers, generators and the environment into the states that were saved;
        `undo` puts them back into those that they have now."""
        # name, setting, saved, undoing
        parts: list[tuple[str, Callable[[Any], Any], Any, Callable[[], Any]]] = []
        for kind, mine in (("modules", self._modules), ("optimizers", self._optimizers)):
            for name, each in mine.items():
                where, state = f"{kind}[{name!r}]", copied(each.state_dict())
                give = each.load_state_dict
                parts.append((where, give, agent[kind][name], functools.partial(give, state)))
        for name in self._rng:
            take, put = GLOBAL[name]
            back = functools.partial(put, take())
            parts.append((f"rng, {name}", put, agent["rng"][name], back))
        for name, generator in self._generators.items():
            where, put = f"generators[{name!r}]", functools.partial(set_state, generator)
            back = functools.partial(put, state_of(generator))
            parts.append((where, put, agent["generators"][name], back))
        if self._env is not None:
            back = functools.partial(self._env.go_back, self._env.now())
            parts.append(("env", self._env.give, states, back))
        for where, give, saved, undoing in parts:
            undo.callback(_put_back, where, undoing)
            try:
                give(saved)
            except Exception as error:  # whatever their own code raises
                raise InvalidInputError(
                    f"{path}: {where}: it does not take what was saved ({type(error).__name__}: "
                    f"{error}); nothing was loaded"
                ) from error

    def _located(self, number: int | str | None) -> tuple[Path, int | str | None] | None:
        """The directory that checkpoints are in, and which one to load: of a URL the one that was
        pulled, or None if there is none."""
        if isinstance(self._place, Path):
            return self._place, number
        assert hasattr(self._buffer, "_remote_saver")  # as `__init__` saw
        try:
            return self._buffer._remote_saver().fetch(self._place, number)
        except CheckpointNotFoundError:
            if number is not None:
                raise
            return None

    def _find(self, directory: Path, number: int | str | None) -> Checkpoint | None:
        mine = [each for each in checkpoints(directory) if each.name == self._buffer.name]
        if number is None:
            numbered = [each for each in mine if each.number is not None]
            return max(numbered, key=lambda each: each.number or 0, default=None)
        for each in mine:
            if each.suffix == str(number):
                return each
        there = ", ".join(each.suffix for each in mine) or "none"
        raise CheckpointNotFoundError(
            f"{directory}: no checkpoint {number!r} of {self._buffer.name!r}; there: {there}"
        )

    def _read(self, found: Checkpoint) -> tuple[dict[str, Any], list[Any]]:
        """The parts of a checkpoint that are not rows, held against what they are for."""
        wanted = [AGENT] if self._env is None else [AGENT, ENVIRONMENT]
        contents = manifest.read(found.path)
        for name in wanted:
            if name not in contents.attachments:
                raise InvalidInputError(
                    f"{found.path}: it has no attachment {name}: it was saved "
                    + ("without env=" if name == ENVIRONMENT else "by something else than RunState")
                )
            # First, for what reads them trusts them: damaged bytes make other objects.
            check_bytes(found.path, (ATTACHMENTS / name).as_posix(), contents)
        path = found.path / ATTACHMENTS / AGENT
        try:
            agent = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever it makes of bytes that others wrote
            raise CorruptCheckpointError(f"{path}: it cannot be read: {error!r}") from error
        foreign = f"{path}: it was written by something else than RunState"
        is_ours = isinstance(agent, dict) and agent.keys() - {"parameters"} == _PARTS
        if not is_ours or not all(isinstance(part, dict) for part in agent.values()):
            raise InvalidInputError(foreign)
        try:
            mine = self._modules, self._optimizers, self._generators, self._rng
            check_fit(found.path, agent, *mine)
        except InvalidInputError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as error:  # no state dicts
            raise InvalidInputError(foreign) from error
        if self._env is None:
            return agent, []
        path = found.path / ATTACHMENTS / ENVIRONMENT
        try:
            return agent, self._env.read(path.read_bytes())
        except InvalidInputError:
            raise
        except Exception as error:  # whatever damaged bytes, or a class that is gone, raise
            raise CorruptCheckpointError(f"{path}: it cannot be read: {error!r}") from error


class _Found(NamedTuple):
    """A checkpoint that was read and not loaded yet; `place` is the directory that it is."""

    checkpoint: Checkpoint
    place: Place
    agent: dict[str, Any]
    states: list[Any]


def _put_back(where: str, go_back: Callable[[], Any]) -> None:
    """Undo what was loaded. What refuses that too is named, and keeps no other part from it."""
    try:
        go_back()
    except Exception as error:  # whatever its own code raises
        warnings.warn(
            f"{where}: it does not take its own state of before the load ({type(error).__name__}: "
            f"{error}); make it anew",
            RuntimeWarning,
            stacklevel=2,
        )


def _named(what: str, given: Any, methods: tuple[type, ...] | tuple[str, ...]) -> dict[str, Any]:
    """A dict of names to things of some classes, or with some methods."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InvalidInputError(f"{what}: a dict of names expected, found {brief(given, 80)}")
    for name, each in given.items():
        fits = (
            isinstance(each, methods) if isinstance(methods[0], type)
            else all(callable(getattr(each, method, None)) for method in methods)
        )  # fmt: skip
        if not fits:
            wanted = " and ".join(
                one.__qualname__ if isinstance(one, type) else one for one in methods
            )
            raise InvalidInputError(
                f"{what}[{name!r}]: something with {wanted} expected, found {type(each).__name__}"
            )
    return dict(given)


def _names_of_generators(given: Any) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Iterable):
        raise InvalidInputError(
            f"rng: names of {[*GLOBAL]} expected, found {brief(given)}; say () to save none"
        )
    names = tuple(names)
    for name in names:
        if not isinstance(name, str) or name not in GLOBAL:
            raise InvalidInputError(f"rng: {brief(name)} found, one of {[*GLOBAL]} expected")
    return names


def _global_generators(names: Iterable[str]) -> dict[str, Any]:
    found = holders()
    return {
        f"the global generator {name!r}" + (f", {number}" if number else ""): each
        for name in names
        for number, each in enumerate(found[name])
    }
