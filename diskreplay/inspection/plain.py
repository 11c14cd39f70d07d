"""Values as JSON has them."""

import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np


def plain(value: Any, text: Callable[[str], str] = str) -> Any:
    """`value` in JSON's own types: dicts, lists, text, numbers, booleans and None.

    Arrays become lists, what is not finite becomes None, paths and dtypes become text. `text` is
    what is made of each text: `harmless` where it is shown.
    """
    if isinstance(value, dict):
        return {text(str(key)): plain(inner, text) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, text) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), text)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value), text)
    return text(str(value)) if isinstance(value, str | os.PathLike | np.dtype) else value
