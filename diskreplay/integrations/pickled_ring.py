"""Pickles and copies of a replay buffer on disk: they refer to checkpoints, and hold no frames."""

import copy
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diskreplay.integrations.packed_checkpoint import check_is_kept, packed, unpacked
from diskreplay.integrations.transition_ring import TransitionRing
from diskreplay.locks import one_call
from diskreplay.one_checkpoint import loaded_with
from diskreplay.opening import open as open_buffer
from diskreplay.shared_buffer import SharedBuffer, shared
from diskreplay.store import temporary
from diskreplay.store.format import read_attributes
from diskreplay.store.listing import checkpoints, next_number
from diskreplay.store.tempfiles import Workspace

if TYPE_CHECKING:
    from diskreplay.integrations.disk_options import DiskOptions
    from diskreplay.integrations.stacked_leaf import Padding, StackedLeaf

_MEMORY = "slots.npz"  # of a checkpoint: what is not in the store
_ARRAYS = "actions", "rewards", "dones", "timeouts"


class Snapshot:
    """A checkpoint that is only read, in place of a `SharedBuffer`; removed, with the `room` that
    it is in, when it is dropped."""

    def __init__(self, path: Path, room: Workspace) -> None:
        self.path, self.buffer = path, open_buffer(path)
        self._remove = weakref.finalize(self, _remove, room, os.getpid())

    def claim(self, pause: Any = None) -> object:
        """See `SharedBuffer.claim`; nobody else has it."""
        return self

    def has(self, claim: object) -> bool:
        """See `SharedBuffer.has`."""
        return claim is self

    def close(self) -> None:
        """Remove it."""
        self.buffer.close()
        self._remove()


class Checkpointed:
    """Mixin of `DiskTransitions`: how it is pickled, and copied."""

    # Set by the framework's buffer, or by the class that stands for it.
    buffer_size: int
    n_envs: int
    # Set by `DiskTransitions`.
    _disk: "DiskOptions"
    _leaves: "list[StackedLeaf]"
    _ring: TransitionRing | None = None  # until there are rows
    _handle: SharedBuffer | Snapshot | None = None
    _pos, _full = 0, False

    # What `DiskTransitions` has.
    _look: Callable[[], None]
    _make_views: Callable[[], None]
    _options_of_buffer: "Callable[[Padding], dict[str, Any]]"

    @property
    def checkpoint_dir(self) -> Path | None:
        """Where pickles of this buffer keep their rows; None where those have them inside."""
        disk = self._disk
        if disk.path is None or disk.pickle == "embed":
            return None
        return Path(disk.checkpoints or f"{disk.path}.checkpoints")

    def _in_memory(self, ring: TransitionRing) -> dict[str, np.ndarray]:
        return {
            **ring.state(), **{name: getattr(self, name) for name in _ARRAYS},
            "place": np.array([self._pos, self._full]),
        }  # fmt: skip

    def _save(
        self, ring: TransitionRing, directory: Path, number: int | str, keep: int | None
    ) -> Path:
        memory: dict[str, Any] = self._in_memory(ring)  # to `savez` a name might be `allow_pickle`

        def write(path: Path) -> None:
            with open(path, "wb") as file:
                np.savez(file, **memory)

        return ring.buffer.save(directory, number, attachments={_MEMORY: write}, keep=keep)

    @one_call
    def __getstate__(self) -> dict[str, Any]:
        self._look()
        inherited = super().__getstate__()
        assert isinstance(inherited, dict)  # there are no slots
        state: dict[str, Any] = dict(inherited)
        for name in ("_ring", "_handle", "observations", "next_observations"):
            state.pop(name, None)
        if (ring := self._ring) is None:
            return state
        for name in _ARRAYS:
            del state[name]
        if (directory := self.checkpoint_dir) is None:
            with self._room() as room:
                made = self._save(ring, room.path, "embedded", None)
                state["_saved"] = packed(made)
        else:
            made = self._save(ring, directory, next_number(directory), self._disk.keep)
            state["_saved"] = os.fspath(made)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("_saved", None)
        restore = getattr(super(), "__setstate__", self.__dict__.update)
        restore(state)
        self._make_views()
        if isinstance(saved, str):
            self._load(Path(saved))
        elif saved is not None:
            with self._room() as room:
                self._load(unpacked(saved, room.path))

    def _load(self, checkpoint: Path) -> None:
        """Go back to a checkpoint, and to what was in memory."""
        check_is_kept(checkpoint, self._disk.keep)
        padding = read_attributes(checkpoint)["stack_padding"]
        handle = shared(self._disk.path, **self._options_of_buffer(padding))
        handle.pause()  # a prefetcher that stays open would be given what the pickle had under way
        memory, _ = loaded_with(
            checkpoint, _read, lambda: handle.buffer.load(checkpoint, resume_episodes=True),
            needs=_MEMORY,
        )  # fmt: skip
        self._handle = handle
        self._ring = TransitionRing(handle, self._leaves, self.buffer_size, self.n_envs, padding)
        self._restore(self._ring, memory)

    def _restore(self, ring: TransitionRing, memory: Mapping[str, np.ndarray]) -> None:
        ring.restore(memory)
        for name in _ARRAYS:
            setattr(self, name, memory[name])
        pos, full = memory["place"].tolist()
        self._pos, self._full = pos, bool(full)

    def _room(self) -> Workspace:
        """A directory of one's own, on the disk that the store is on; a killed process's is
        removed by a later one."""
        if self._disk.path is None:
            return temporary.make()
        return Workspace(Path(os.path.realpath(self._disk.path)), "tmp", takes_place=False)

    @one_call
    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy that can only be read: the rows of now, linked and not copied."""
        self._look()
        kept = ("_ring", "_handle", "observations", "next_observations", "env")
        new = object.__new__(type(self))
        memo[id(self)] = new
        state = {name: value for name, value in self.__dict__.items() if name not in kept}
        new.__dict__.update(copy.deepcopy(state, memo))
        if "env" in self.__dict__:
            new.__dict__["env"] = self.__dict__["env"]  # HER's
        new._make_views()
        if (ring := self._ring) is None:
            return new
        room = self._room()
        made = self._save(ring, room.path, "copy", None)
        new._handle = Snapshot(made, room)
        new._ring = TransitionRing(
            new._handle, new._leaves, self.buffer_size, self.n_envs, ring.buffer.stack_padding
        )
        new._restore(new._ring, _read(checkpoints(room.path)[0].attachments))
        return new


def _read(attached: Mapping[str, Path]) -> dict[str, np.ndarray]:
    with np.load(attached[_MEMORY], allow_pickle=False) as arrays:
        return dict(arrays)


def _remove(room: Workspace, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has a copy of this, and no part in the directory
        room.remove()
