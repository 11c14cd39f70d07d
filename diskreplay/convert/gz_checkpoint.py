"""Checkpoints of ReAgent's and Dopamine's replay buffers, as stores and back.

Such a checkpoint is a directory of ``{name}_ckpt.{suffix}.gz``: a gzipped .npy file for each column
of a ring of rows (``$store$_observation``, ``$store$_action``, ``$store$_reward``,
``$store$_terminal``, further ones), ``add_count``, and Dopamine's ``invalid_range``. The DQN Replay
Dataset is published in this form. Where frames are stacked, zero rows precede each episode.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay.buffer import ReplayBuffer
from diskreplay.convert.gz_files import STORE_PREFIX, GzFiles, numbers
from diskreplay.convert.gz_writing import write
from diskreplay.convert.importer import Progress
from diskreplay.convert.output import new_store
from diskreplay.convert.padding import Padding
from diskreplay.convert.source_files import SourceFiles
from diskreplay.convert.unpickling import PickledSumTree
from diskreplay.errors import CorruptCheckpointError, InvalidInputError, SchemaError
from diskreplay.naming import extra_names
from diskreplay.opening import open as open_buffer
from diskreplay.prioritized import PrioritizedReplayBuffer
from diskreplay.spaces import box
from diskreplay.store.paths import local

__all__ = ["newest", "read", "write"]

_OWN = ("observation", "action", "reward", "terminal")
_MOST_SLOTS = 1 << 40


def found(directory: str | os.PathLike[str], suffix: int | str) -> bool:
    """Whether `directory` holds such a checkpoint with this suffix, whole or not."""
    there = GzFiles(directory, suffix)
    return there.has("add_count") or bool(there.columns())


def newest(directory: str | os.PathLike[str]) -> int | None:
    """The highest number that a directory holds such a checkpoint of.

    Parameters
    ----------
    directory : path

    Returns
    -------
    int or None
        None if there is none.
    """
    return max(numbers(local(directory, "directory")), default=None)


class Found(NamedTuple):
    """Such a checkpoint that `ReplayBuffer.load` was pointed to."""

    directory: Path
    suffix: str

    def convert(self, buffer: ReplayBuffer, room: Path) -> Path:
        """A checkpoint of a store with the same rows and this buffer's options, made in `room`."""
        kind: dict[str, Any] = {"prioritized": False}
        if isinstance(buffer, PrioritizedReplayBuffer):
            kind = {"prioritized": True, "alpha": buffer.alpha}
        made = read(
            self.directory, self.suffix, room / "store",
            observation_space=buffer.observation_space, action_space=buffer.action_space,
            stack_size=buffer.stack_size, update_horizon=buffer.update_horizon,
            gamma=buffer.gamma, batch_size=buffer.batch_size, capacity=buffer.capacity,
            metadata=buffer.metadata, **kind,
        )  # fmt: skip
        with open_buffer(made, mode="a") as converted:
            return converted.save(room, "converted")


def find(directory: Path, suffix: int | str | None) -> Found | None:
    """The checkpoint with this suffix, or the newest one, if there is one, whole or not."""
    suffix = newest(directory) if suffix is None else suffix
    if suffix is None or not found(directory, suffix):
        return None
    return Found(directory, str(suffix))


def read(
    directory: str | os.PathLike[str],
    suffix: int | str,
    path: str | os.PathLike[str],
    *,
    observation_space: gym_spaces.Space[Any] | None = None,
    action_space: gym_spaces.Space[Any] | None = None,
    stack_size: int | None = None,
    update_horizon: int | None = None,
    capacity: int | None = None,
    prioritized: bool | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Path:
    """Make a store of a checkpoint.

    Parameters
    ----------
    directory : path
    suffix : int or str
        The iteration.
    path : path
        Where the store is to be; nothing may be there.
    observation_space, action_space : gymnasium.Space, optional
        Of one frame and one action; they need the shapes of the files. Default: a Box, and for
        integer scalars a Discrete that holds every action in the file.
    stack_size : int, optional
        Of the buffer that wrote the files: it decides which zero rows are padding. Default: what
        ``invalid_range`` says; ReAgent's files do not say it. The store gets it too.
    update_horizon : int, optional
        Default: what ``invalid_range`` says, or 1.
    capacity : int, optional
        Default: the slots of the files. With fewer the newest rows are kept.
    prioritized : bool, optional
        Whether to make the store of a `PrioritizedReplayBuffer`, with ``alpha=1`` unless it is
        given; rows have the odds that ``sum_tree`` gave them. Default: if there is that file.
    progress : callable, optional
        Called as ``progress(rows, rows_in_all)`` after each chunk.
    **options
        Of the buffer: ``gamma``, ``batch_size``, ``compressor``, ``alpha`` and so on.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    CheckpointNotFoundError
        A file is missing (a ``FileNotFoundError``).
    CorruptCheckpointError
        A file is damaged, or of a kind that is not taken.
    SchemaError
        The columns are no transitions, or do not fit the spaces.
    InvalidInputError
        There is something at `path`, or `stack_size` is needed.
    NotFiniteError
        A reward is NaN or infinite.
    StorageError
        In all these cases nothing is at `path`.

    Notes
    -----
    Reads the files as streams: memory holds some chunks of 4 MiB and a few bytes a row, whatever
    their size. Rows are put into time order, padding is dropped, and what can be sampled is found
    out again by the rules of diskreplay. Nothing is unpickled but by `unpickling.unpickled`.
    """
    files = GzFiles(directory, suffix)
    source = SourceFiles(files.directory, files.all)
    with source:
        files.check_present((*(STORE_PREFIX + name for name in _OWN), "add_count"))
        names = [*_OWN, *(name for name in files.columns() if name not in _OWN)]
        add_count, specs = files.add_count(), {name: files.spec(name) for name in names}
        slots = _slots(files, specs)
        stack_size, update_horizon = _windows(files, slots, add_count, stack_size, update_horizon)
        tree = _sum_tree(files, slots) if prioritized is not False else None
    if tree is not None or prioritized:
        options.setdefault("alpha", 1.0)
    extras = {name: specs[name] for name in names[len(_OWN) :]}
    called = extra_names(extras)
    frames, frame_dtype = specs["observation"]
    with new_store(path) as beside, source:
        buffer = (PrioritizedReplayBuffer if "alpha" in options else ReplayBuffer)(
            beside,
            observation_space=observation_space or box(frames[1:], frame_dtype),
            action_space=action_space or _actions(files, add_count, specs["action"]),
            capacity=slots if capacity is None else capacity,
            stack_size=stack_size,
            update_horizon=update_horizon,
            extras={called[n]: (shape[1:], dtype) for n, (shape, dtype) in extras.items()},
            **options,
        )
        with buffer:
            for field, shape, dtype in (
                ("observation", *specs["observation"]), ("action", *specs["action"])
            ):  # fmt: skip
                _check_field(buffer, field, shape[1:], dtype)
            kept = _fill(buffer, files, add_count, slots, names, progress)
            if tree is not None and isinstance(buffer, PrioritizedReplayBuffer):
                # What is drawn by is `priority ** alpha` here, and the priority itself there.
                exponent = 1 / buffer.alpha if buffer.alpha else 1.0
                buffer.update_priorities(np.arange(len(kept)), tree.leaves[kept] ** exponent)
    return Path(path)


def _fill(
    buffer: ReplayBuffer,
    files: GzFiles,
    add_count: int,
    slots: int,
    names: list[str],
    progress: Progress | None,
) -> np.ndarray:
    """Copy all rows but padding; the slots they were in, in the order of their ids."""
    base = max(add_count - slots, 0)
    # With stacks, both originals begin with a padding. Files without it begin inside an episode,
    # also those of a ring that is not full: what `write` makes of an evicted beginning.
    padding = Padding(buffer.stack_size, known_start=buffer.stack_size == 1 and base == 0)
    ends = _episode_ends(files)
    done, kept = 0, []
    for chunk in files.in_time_order(names, add_count, slots):
        terminal = chunk["terminal"] != 0
        places = (base + done + np.arange(len(terminal))) % slots
        truncated = np.isin(places, ends) & ~terminal
        is_padding, step = padding.find(chunk, terminal | truncated)
        real = ~is_padding
        columns = {
            "observation": chunk["observation"],
            "action": chunk["action"],
            "reward": chunk["reward"].astype(np.float32),
            "terminated": terminal,
            "truncated": truncated,
            "step": step,
            "is_final": is_padding,
            **{name: chunk[of] for of, name in extra_names(names[len(_OWN) :]).items()},
        }
        if real.any():
            buffer.extend({name: column[real] for name, column in columns.items()})
        kept.append(places[real])
        done += len(terminal)
        if progress:
            progress(done, add_count - base)
    return np.concatenate(kept) if kept else np.empty(0, np.int64)


def _slots(files: GzFiles, specs: dict[str, tuple[tuple[int, ...], np.dtype]]) -> int:
    """How many rows each column has, which has to be the same."""
    lengths = {shape[0] if shape else 0 for shape, _dtype in specs.values()}
    if len(lengths) != 1 or not 0 < min(lengths) < _MOST_SLOTS:
        shown = {name: shape for name, (shape, _dtype) in specs.items()}
        raise CorruptCheckpointError(
            f"{files.directory}: columns of the same number of rows expected, found {shown}"
        )
    for name in ("reward", "terminal"):
        if len(specs[name][0]) != 1:
            raise SchemaError(f"{files.path(STORE_PREFIX + name)}: one number a row expected")
    return lengths.pop()


def _windows(
    files: GzFiles, slots: int, add_count: int, stack_size: int | None, horizon: int | None
) -> tuple[int, int]:
    """Stack size and update horizon, as given or as in ``invalid_range``.

    Dopamine lists there the slots from ``cursor - horizon`` to ``cursor + stack_size - 1``.
    """
    if files.has("invalid_range") and None in (stack_size, horizon):
        listed = files.array("invalid_range")
        if add_count and listed.ndim == 1 and listed.dtype.kind in "iuf" and len(listed) > 1:
            says = int((add_count - int(listed[0])) % slots)
            if 0 < says < len(listed):
                horizon = says if horizon is None else horizon
                stack_size = len(listed) - says if stack_size is None else stack_size
    if stack_size is None:
        raise InvalidInputError(
            f"{files.directory}: stack_size is needed, that of the buffer that wrote the files "
            "(4 for Atari): nothing in them tells padding from black frames"
        )
    return stack_size, 1 if horizon is None else horizon


def _episode_ends(files: GzFiles) -> np.ndarray:
    """Slots where newer Dopamines ended an episode; those without a terminal were truncated."""
    if not files.has("episode_end_indices"):
        return np.empty(0, np.int64)
    ends = files.value("episode_end_indices")
    if not isinstance(ends, set | frozenset | list) or not all(isinstance(e, int) for e in ends):
        raise CorruptCheckpointError(
            f"{files.path('episode_end_indices')}: a set of slots expected, found "
            f"{type(ends).__name__}"
        )
    return np.array(sorted(ends), np.int64)


def _sum_tree(files: GzFiles, slots: int) -> PickledSumTree | None:
    if not files.has("sum_tree"):
        return None
    tree = files.value("sum_tree")
    if not isinstance(tree, PickledSumTree) or len(tree.leaves) < slots:
        raise CorruptCheckpointError(
            f"{files.path('sum_tree')}: a sum tree of {slots} leaves expected"
        )
    return tree


def _actions(
    files: GzFiles, add_count: int, spec: tuple[tuple[int, ...], np.dtype]
) -> gym_spaces.Space[Any]:
    """The space of what is in the file; reads it once."""
    shape, dtype = spec
    if len(shape) > 1 or dtype.kind not in "iu":
        return box(shape[1:], dtype)
    low, high = 0, 0
    for chunk in files.in_time_order(["action"], add_count, shape[0]):
        low, high = min(low, int(chunk["action"].min())), max(high, int(chunk["action"].max()))
    return box(shape[1:], dtype) if low < 0 or high >= 2**31 else gym_spaces.Discrete(high + 1)


def _check_field(buffer: ReplayBuffer, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
    expected = buffer.fields.get(name)
    fits = expected is not None and expected[0] == shape
    if expected is None or not fits or not np.can_cast(dtype, expected[1], "same_kind"):
        raise SchemaError(
            f"{name}: the files hold {dtype} of shape {shape}, and the space asks for "
            f"{'nested fields' if expected is None else f'{expected[1]} of shape {expected[0]}'}"
        )
