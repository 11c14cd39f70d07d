"""Values as JSON has them."""

import dataclasses
import json
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np


def plain(value: Any, text: Callable[[str], str] = str, *, spelled: bool = False) -> Any:
    """`value` in JSON's own types: dicts, lists, text, numbers, booleans and None.

    Arrays become lists, paths and dtypes become text.

    Parameters
    ----------
    text : callable
        What is made of each text: `harmless` where it is shown.
    spelled : bool
        What is not finite becomes ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``, as stored values
        have to be told apart; else None, as of a figure that there is none of.
    """
    if isinstance(value, dict):
        return {text(str(key)): plain(inner, text, spelled=spelled) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, text, spelled=spelled) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), text, spelled=spelled)
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value) if spelled else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value), text, spelled=spelled)
    return text(str(value)) if isinstance(value, str | os.PathLike | np.dtype) else value
