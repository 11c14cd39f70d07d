"""Data and models of MuJoCo's, put into the state of others.

An environment may change its model: draw other masses for each episode, say. So a simulation is its
data and its model. Both stay the objects that they are, since renderers hold them.
"""

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np


def is_simulated(*values: Any) -> bool:
    """Whether all are data of MuJoCo's, or all are models."""
    names = {type(each).__name__ for each in values}
    return len(names) == 1 and names <= {"MjData", "MjModel"} and "mujoco" in sys.modules


def has_model(values: Iterable[Any], model: Any) -> bool:
    """Whether this is a model of MuJoCo's, and data among the values have it, also when pickled."""
    return is_simulated(model) and any(_is_data(each) and each.model is model for each in values)


def other_size(there: Any, value: Any) -> str | None:
    """In which size a model, or that of data, differs from another one; None if it fits."""
    mine, its = _model(there), _model(value)
    for name in dir(its):
        saved = getattr(its, name) if name.startswith("n") else None
        if isinstance(saved, int) and saved != (here := getattr(mine, name, None)):
            return f"{name} = {saved} saved, and {here}"
    return None


def give_simulation(there: Any, value: Any) -> None:
    """Put data and their model, or a model, into the state of others of the same sizes."""
    _copy(_model(there), _model(value))
    if _is_data(there):
        sys.modules["mujoco"].mj_copyData(there, there.model, value)


def _is_data(value: Any) -> bool:
    return is_simulated(value) and type(value).__name__ == "MjData"


def _model(value: Any) -> Any:
    return value.model if _is_data(value) else value


def _copy(there: Any, value: Any) -> None:
    """Give a struct all numbers of another one. (`mj_copyModel` cannot be called from Python.)"""
    kind = type(value)
    for name in dir(value):
        if name.startswith("_") or isinstance(its := getattr(value, name), type):
            continue
        if isinstance(its, np.ndarray):
            getattr(there, name)[...] = its
        elif isinstance(its, int | float):
            if getattr(kind, name).fset is not None:  # sizes are equal, and cannot be set
                setattr(there, name, its)
        elif type(its).__module__ == kind.__module__:  # the options, say
            _copy(getattr(there, name), its)
