"""Pickles, copies and files of Tianshou's replay buffers on disk."""

import copy
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tianshou.data import Batch

from diskreplay.integrations.batch_leaves import set_leaf
from diskreplay.integrations.packed_checkpoint import check_is_kept, packed, unpacked
from diskreplay.integrations.tianshou_hdf5 import PARTS, write
from diskreplay.integrations.tianshou_leaves import OPEN, DiskOptions
from diskreplay.integrations.tianshou_state import SavedBuffer
from diskreplay.locks import one_call
from diskreplay.store import temporary
from diskreplay.store.listing import next_number

_OURS = {"_rows", "_options", "_meta", "_saved", "_reads_both", "_ahead"}


class PickledBuffer(SavedBuffer):
    """Mixin of Tianshou's buffers: how they are pickled, copied and written to files."""

    def _parts_changed(self) -> None:
        """`buffers` are others."""

    def _portable(self) -> dict[str, Any]:
        """What is pickled beside the rows."""
        state = {name: value for name, value in self.__dict__.items() if name not in _OURS}
        state["_options"] = self._options
        if "buffers" in state:
            parts = np.empty(len(self.buffers), object)
            for at, part in enumerate(self.buffers):
                parts[at] = object.__new__(type(part))
                parts[at].__dict__.update({**part.__dict__, "_meta": Batch()})
            state["buffers"] = parts
        for name in PARTS[1:]:
            state.pop(name, None)
        return state

    @one_call
    def __getstate__(self) -> dict[str, Any]:
        return self._pickled(self._options.pickle == "embed")

    def _pickled(self, embed: bool) -> dict[str, Any]:
        self._restore_originals()
        state = self._portable()
        if self._rows is None:
            state["_meta"] = self._meta
            return state
        memory = self._memory()
        path = self._options.path
        if path is None or embed:
            with temporary.make() as room:
                saved: Any = packed(self._save(room.path, "embedded", None, None))
        else:
            directory = Path(self._options.checkpoints or f"{path}.checkpoints")
            made = self._save(directory, next_number(directory), None, self._options.keep)
            saved = os.fspath(made)
        state["_saved"] = saved, memory
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        saved, meta = state.pop("_saved", None), state.pop("_meta", None)
        options = state.pop("_options", DiskOptions())
        super().__setstate__({**state, "_meta": Batch(), "_rows": None, "_options": options})
        for part in state.get("buffers", ()):
            part._meta = Batch()  # a file of HDF5 has its rows once more; it gets those of this one
        self._parts_changed()
        if saved is None:
            if meta is not None and len(meta.get_keys()):
                self._options = options._replace(path=None)
                self._allocate(meta[np.arange(1)])
                self._meta[np.arange(self.maxsize)] = meta
            return
        rows, memory = saved
        if isinstance(rows, str):
            self._refer_to(Path(rows))
        else:
            self._options = options._replace(path=None)
            with temporary.make() as room:
                self.load(unpacked(rows, room.path))
        for path, value in memory.items():
            set_leaf(self._meta, path, value)
        self._share()

    def _refer_to(self, checkpoint: Path) -> None:
        check_is_kept(checkpoint, self._options.keep)
        there = OPEN.get(Path(str(self._options.path)))
        if there is not None and there._slots is not None and not there.slots.closed:
            self._take(self._leaf_rows(there.hand_over(), there.names))
            self._share()
        self.load(checkpoint)

    @one_call
    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy with rows of its own, in a temporary store."""
        made = memo[id(self)] = object.__new__(type(self))
        made.__setstate__(copy.deepcopy(self._pickled(True), memo))
        return made

    @one_call
    def save_hdf5(self, path: str, compression: str | None = None) -> None:
        """As Tianshou's: a file with all arrays, of which it makes its own buffers.

        Rows on disk are read some at a time. As in Tianshou's own files, the buffers inside of this
        one have their rows in the file once more.

        Raises
        ------
        InvalidInputError
            A function that a buffer was given cannot be pickled.
        """
        self._restore_originals()
        state = self._portable()
        del state["_options"]
        state.update((name, self.__dict__[name]) for name in PARTS if name in self.__dict__)
        with h5py.File(path, "w") as file:
            write(file, state, self._meta, compression)
