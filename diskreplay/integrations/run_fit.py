"""Whether a run's saved state fits the modules, optimizers and generators that are to get it."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from diskreplay.errors import InvalidInputError
from diskreplay.integrations.generator_states import kind_of, state_of


def parameters_of(optimizers: Mapping[str, Any], modules: Mapping[str, Any]) -> dict[str, Any]:
    """Which parameters each optimizer has, in the order in which it numbers their states.

    Of each group of parameters their names, which the modules give them, shapes and dtypes. A
    parameter of no module has None for a name. What is no `torch.optim.Optimizer`, a schedule say,
    is left out.
    """
    names = {
        id(parameter): f"{name}.{key}"
        for name, module in modules.items()
        if isinstance(module, torch.nn.Module)
        for key, parameter in module.named_parameters()
    }
    return {
        name: [
            [(names.get(id(each)), _shape(each), str(each.dtype)) for each in group["params"]]
            for group in optimizer.param_groups
        ]
        for name, optimizer in optimizers.items()
        if isinstance(optimizer, torch.optim.Optimizer)
    }


def check_fit(
    path: Path,
    agent: Mapping[str, Any],
    modules: Mapping[str, Any],
    optimizers: Mapping[str, Any],
    generators: Mapping[str, Any],
    rng: Sequence[str],
) -> None:
    """Refuse what cannot be given to the modules, optimizers and generators of a run: `agent` is
    what the `agent.pt` of the checkpoint at `path` has.

    Raises
    ------
    InvalidInputError
        Something does not fit; it is named.
    AttributeError, LookupError, TypeError, ValueError
        `agent` has no states where there should be some: `RunState` did not write it.
    """
    for kind, mine in (
        ("modules", modules), ("optimizers", optimizers), ("generators", generators),
    ):  # fmt: skip
        _check(f"{path}: the names of {kind}", sorted(agent[kind]), sorted(mine))
    for name in rng:
        _check(f"{path}: rng", name if name in agent["rng"] else None, name)
    for name, module in modules.items():
        _check_module(f"{path}: modules[{name!r}]", agent["modules"][name], module)
    known, mine = agent.get("parameters", {}), parameters_of(optimizers, modules)
    for name, optimizer in optimizers.items():
        where = f"{path}: optimizers[{name!r}]"
        _check(where, agent["classes"][name], type(optimizer).__qualname__)
        _check_optimizer(where, agent["optimizers"][name], optimizer)
        if name in known and name in mine:
            pairs = zip(*(itertools.chain(*each[name]) for each in (known, mine)), strict=True)
            for number, (saved, here) in enumerate(pairs):
                _check(f"{where}, parameter {number}", saved, here)
    for name, generator in generators.items():
        kinds = [kind_of(each) for each in (agent["generators"][name], state_of(generator))]
        _check(f"{path}: generators[{name!r}]", *kinds)


def _check(where: str, saved: Any, mine: Any) -> None:
    if saved != mine:
        raise InvalidInputError(f"{where}: {saved!r} saved, and {mine!r} here")


def _check_module(where: str, saved: Mapping[str, Any], module: Any) -> None:
    """Refuse another shape or dtype: PyTorch would round to this one without a word."""
    own = module.state_dict()
    for key, value in own.items():
        _check_has_values(f"{where}, {key}", value)
    shapes = [{key: _shape(value) for key, value in each.items()} for each in (saved, own)]
    for key in sorted({*saved, *own}):
        _check(f"{where}, {key}", *(each.get(key) for each in shapes))
        dtypes = [getattr(each[key], "dtype", None) for each in (saved, own)]
        if None not in dtypes:
            _check(f"{where}, {key}, dtype", *dtypes)


def _check_optimizer(where: str, saved: Mapping[str, Any], optimizer: Any) -> None:
    own = optimizer.state_dict()
    _check(f"{where}, parameters of each group", *(_groups(each) for each in (saved, own)))
    for group in getattr(optimizer, "param_groups", ()):
        for number, value in enumerate(group["params"]):
            _check_has_values(f"{where}, parameter {number} of a group", value)
    for one, other in zip(*(each.get("param_groups", ()) for each in (saved, own)), strict=True):
        names = one.get("param_names"), other.get("param_names")  # which not everybody gives
        if None not in names:
            _check(f"{where}, names of parameters", *names)


def _check_has_values(where: str, value: Any) -> None:
    """Refuse what could not be put back into the state that it has now."""
    if is_lazy(value):
        raise InvalidInputError(
            f"{where}: a parameter without a shape found; call the module once before the load"
        )
    if getattr(value, "is_meta", False):
        raise InvalidInputError(
            f"{where}: a tensor on the device meta found, which has no values; move the module by "
            "to_empty(device=...) before the load"
        )


def _shape(value: Any) -> tuple[int, ...] | None:
    return None if is_lazy(value) else tuple(getattr(value, "shape", ()))


def _groups(state: Mapping[str, Any]) -> list[int] | list[str]:
    """How many parameters each group of an optimizer has; of something else, its keys."""
    if "param_groups" not in state:
        return sorted(state)
    return [len(group["params"]) for group in state["param_groups"]]
