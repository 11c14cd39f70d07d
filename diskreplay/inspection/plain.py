"""Values as JSON has them."""

import dataclasses
import math
import os
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """`value` in JSON's own types: dicts, lists, text, numbers, booleans and None.

    Arrays become lists, what is not finite becomes None, paths and dtypes become text.
    """
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    return str(value) if isinstance(value, os.PathLike | np.dtype) else value
