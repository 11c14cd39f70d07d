"""Every contender by name; its module is imported only by the worker that measures it."""

from __future__ import annotations

from importlib import import_module

from contender import Contender

_CLASSES = (
    ("diskreplay_contender", "DiskreplayRaw"),
    ("diskreplay_contender", "DiskreplayLz4"),
    ("cpprb_contender", "Cpprb"),
    ("cpprb_contender", "CpprbMapped"),
    ("cpprb_contender", "CpprbUncut"),
    ("tianshou_contender", "Tianshou"),
    ("sb3_contender", "StableBaselines3"),
    ("flashbax_contender", "Flashbax"),
    ("torchrl_contender", "TorchrlSlices"),
    ("torchrl_contender", "TorchrlStacks"),
)


def contenders() -> dict[str, type[Contender]]:
    """Contender classes by name, diskreplay first.  The modules import no peer."""
    classes = [getattr(import_module(module), name) for module, name in _CLASSES]
    return {contender.name: contender for contender in classes}


def is_ours(name: str) -> bool:
    return name.startswith("diskreplay")
