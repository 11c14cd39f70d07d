"""What `dumps` and `loads` of a `DiskStorage` do."""

import json
import os
from pathlib import Path
from typing import Any

from tensordict import TensorDict
from torchrl.data.replay_buffers.checkpointers import TensorStorageCheckpointer

from diskreplay.store.listing import checkpoints


class DiskStorageCheckpointer(TensorStorageCheckpointer):  # type: ignore[misc]
    """Saves a `DiskStorage` by hard links: a checkpoint of its store, with the leaves in memory."""

    def dumps(self, storage: Any, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint into a directory, in place of the one that is there."""
        if not storage.initialized:
            raise RuntimeError("Cannot save a non-initialized storage.")
        storage.write(Path(path), 0, keep=None)

    def loads(self, storage: Any, path: str | os.PathLike[str]) -> None:
        """Go back to what `dumps` wrote; or take in what another storage of torchrl wrote."""
        found = checkpoints(Path(path))
        if found:
            storage.restore(found[-1].path)
            return
        metadata = json.loads((Path(path) / "storage_metadata.json").read_text())
        if metadata["is_pytree"] or self._load_hooks:
            super().loads(storage, Path(path))
        else:
            storage.fill(TensorDict.load_memmap(Path(path)), metadata["len"])
