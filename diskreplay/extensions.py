"""What layers above the buffers do for them: data frames, tensors, foreign checkpoints; and the
packages that these need.

The package's `__init__`, which stands above all layers, says where each of these is. It is loaded
when it is first asked for. So no buffer imports a module that imports buffers.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PLACES: dict[str, str] = {}


def register(name: str, place: str) -> None:
    """Say where something is: ``"package.module:attribute"``."""
    _PLACES[name] = place


def find(name: str) -> Any:
    """What was registered under this name."""
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


@contextmanager
def needed(why: str, extra: str) -> Iterator[None]:
    """Around imports: what of them is not installed comes with which extra of the package.

    Raises
    ------
    ModuleNotFoundError
        One is missing; the text says why it is needed and how to get it.
    """
    try:
        yield
    except ModuleNotFoundError as error:  # one that is there and broken says so itself
        raise ModuleNotFoundError(
            f'{why}: pip install "diskreplay[{extra}]"', name=error.name
        ) from error
