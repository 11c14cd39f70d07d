"""What layers above the buffers do for them: data frames, tensors, foreign checkpoints.

The package's `__init__`, which stands above all layers, says where each of these is. It is loaded
when it is first asked for. So no buffer imports a module that imports buffers.
"""

import importlib
from typing import Any

_PLACES: dict[str, str] = {}


def register(name: str, place: str) -> None:
    """Say where something is: ``"package.module:attribute"``."""
    _PLACES[name] = place


def find(name: str) -> Any:
    """What was registered under this name."""
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
