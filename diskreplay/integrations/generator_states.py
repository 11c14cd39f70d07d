"""The states of random generators, as tensors and numbers: single ones, and the global ones."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from diskreplay.batch import mapped


def state_of(generator: np.random.Generator | torch.Generator) -> Any:
    """The state of a generator, of what `torch.load` takes with ``weights_only=True``."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return _tensors(generator.bit_generator.state)


def set_state(generator: np.random.Generator | torch.Generator, state: Any) -> None:
    """Have a generator go on from what `state_of` gave."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    else:
        generator.bit_generator.state = _arrays(state)


def kind_of(state: Any) -> Any:
    """Of what generators a state is."""
    return state["bit_generator"] if isinstance(state, dict) else f"{state.numel()} bytes"


def _tensors(value: Any) -> Any:
    """A state of NumPy, with tensors where it has arrays."""
    return mapped(
        lambda leaf: torch.from_numpy(leaf.copy()) if isinstance(leaf, np.ndarray) else leaf, value
    )


def _arrays(value: Any) -> Any:
    return mapped(lambda leaf: leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf, value)


def _cuda() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _set_cuda(states: list[torch.Tensor]) -> None:
    for device, state in zip(range(torch.cuda.device_count()), states, strict=False):
        torch.cuda.set_rng_state(state, device)


def _numpy() -> dict[str, Any]:
    return _tensors(np.random.get_state(legacy=False))  # noqa: NPY002 - of code that uses it


def _set_numpy(state: dict[str, Any]) -> None:
    np.random.set_state(_arrays(state))  # noqa: NPY002


# The global generators: how to have their state, and how to set it.
GLOBAL: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "python": (random.getstate, random.setstate),
    "numpy": (_numpy, _set_numpy),
    "torch": (torch.get_rng_state, torch.set_rng_state),
    "cuda": (_cuda, _set_cuda),
}


def holders() -> dict[str, list[Any]]:
    """The objects that the global generators are, by the names in `GLOBAL`. Who has one of them
    draws from the same generator as all others do."""
    numpy = np.random.mtrand._rand
    return {
        "python": [vars(random)["_inst"]],
        "numpy": [numpy, numpy._bit_generator],
        "torch": [torch.default_generator],
        "cuda": [*torch.cuda.default_generators],  # none before CUDA is used
    }
