"""Methods of an author's class that another framework's loop calls and ours does not; and what hooks change."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import nn

Plain = bool | int | float | str | None


def overridden(thing: Any, base: type, package: str, allowed: Collection[str]) -> list[str]:
    """The public names of `base` that an object, or its class, has in another form, but for those that are allowed.

    package: the framework's; what `base` inherits from elsewhere, such as from torch, is called as ever.
    """
    kind = thing if isinstance(thing, type) else type(thing)
    bases = [each for each in base.__mro__ if each.__module__.split(".")[0] in package.split("|")]
    names = [name for each in bases for name in vars(each) if not name.startswith("_")]
    mine = () if isinstance(thing, type) else vars(thing)
    own = {
        name for name in names if name in mine or _function(getattr(kind, name)) is not _function(getattr(base, name))
    }
    return sorted(own - set(allowed))


def _function(method: Any) -> Any:
    """What a bound method of a class is made of, since each look at one makes another."""
    return getattr(method, "__func__", method)


def attributes(model: nn.Module, without: tuple[type, ...] = ()) -> dict[str, dict[str, Plain]]:
    """The numbers, words and flags that the modules of a model have as attributes, by module.

    Hooks change these, and no `state_dict` has them: the rate of a dropout, a counter, a temperature.
    """
    found = {name: _plain(module) for name, module in _modules(model, without)}
    return {name: values for name, values in found.items() if values}


def bring_back(model: nn.Module, kept: Mapping[str, Mapping[str, Plain]], without: tuple[type, ...] = ()) -> None:
    """Give the modules of a model the attributes that `attributes` returned, and no others of this kind."""
    for name, module in _modules(model, without):
        values = kept.get(name, {})
        for each in _plain(module).keys() - values.keys():
            delattr(module, each)
        for each, value in values.items():
            if vars(module).get(each, model) != value:
                setattr(module, each, value)


def frozen(model: nn.Module) -> list[str]:
    """The parameters that do not learn."""
    return [name for name, each in model.named_parameters() if not each.requires_grad]


def freeze(model: nn.Module, names: Collection[str]) -> None:
    """These parameters do not learn; all others do."""
    for name, each in model.named_parameters():
        if each.requires_grad is (name in names):
            each.requires_grad_(name not in names)


def _modules(model: nn.Module, without: tuple[type, ...]) -> Iterator[tuple[str, nn.Module]]:
    return ((name, module) for name, module in model.named_modules() if not isinstance(module, without))


def _plain(module: nn.Module) -> dict[str, Plain]:
    skipped = _TORCHS - {"training"}
    return {
        name: value
        for name, value in vars(module).items()
        if name not in skipped and (value is None or type(value) in (bool, int, float, str))
    }


_TORCHS = vars(nn.Module()).keys() | {
    *("_compiled_call_impl", "_trainer", "_fabric", "_current_fx_name", "_jit_is_scripting", "_compiler_ctx"),
    *("_metric_attributes", "_device_mesh", "_log_hyperparams", "_automatic_optimization", "_strict_loading"),
    "_example_input_array",
}
"""Attributes of torch's and Lightning's own."""
