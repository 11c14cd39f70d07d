"""What replay buffers with the face of Stable-Baselines3 or CleanRL can be told of the disk."""

import os
from collections.abc import Mapping
from typing import Literal, NamedTuple


class DiskOptions(NamedTuple):
    """What the framework does not say; the buffers' docstrings say what each means."""

    path: str | os.PathLike[str] | None = None
    frame_stack: int | Mapping[str, int] = 1
    frame_axis: Literal["auto", 0, -1] = "auto"
    stack_padding: Literal["auto", "zero", "reset"] = "auto"
    compressor: str | Mapping[str, str] = "auto"
    checkpoints: str | os.PathLike[str] | None = None
    keep: int | None = 4
    pickle: Literal["reference", "embed"] = "reference"
    prefetch: int = 0
