"""The parts of an optimizer: the hyper-parameters of its groups, and the precision of the loss.

A group with a `name` may have values of its own: `lr.GROUP` is the `lr` of that group, and `lr` that of the others.

Calling `make_optimizer` with two values shows each group's multiple of the study's rate. It must not be computed
from the values in force: those differ between a trial and its continuation, and may be 0 in both. If `make_optimizer`
ignores the value, as in a module written for another loop, the study's value replaces the optimizer's default, and
groups with another value keep their multiple of the default.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stagetree.sequences import did_you_mean
from stagetree.text import is_number
from stagetree.trainer.divided_tensors import local
from stagetree.trainer.ranks.group import here

Make = Callable[[dict[str, Any]], Optimizer]
PROBE = 0.5
"""A valid value for momentum, betas and the like."""

RATES = ("lr", "weight_decay")
"""Values that groups usually have as multiples of the study's."""


class Rates:
    """Applies values to the groups of an optimizer. Raises ValueError if a group's multiple cannot be determined."""

    def __init__(self, optimizer: Optimizer, make: Make) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ValueError(f"make_optimizer must return an optimizer of torch, got {type(optimizer).__name__}")
        self._optimizer, self._make = optimizer, make
        self._scales: dict[str, list[float | None]] = {}

    def apply(self, name: str, hp: dict[str, Any]) -> None:
        """Apply the value of `name` in `hp`. `momentum` is the first beta of Adam-like optimizers."""
        groups, value = self._optimizer.param_groups, hp[name]
        if "." in name:
            for group in _groups_by_name(name, groups):
                _set(group, name.partition(".")[0], value)
            return
        if name not in self._scales:
            self._scales[name] = _scales(name, groups, self._make, hp)
        for group, scale in zip(groups, self._scales[name], strict=True):
            if scale is not None and f"{name}.{group.get('name')}" not in hp:
                _set(group, name, value if scale == 1.0 else value * scale)
        self._set_default(name, value)

    def _set_default(self, name: str, value: Any) -> None:
        """Make the value the default of later groups, as if the optimizer were made now: a continuation makes it so."""
        defaults = self._optimizer.defaults
        is_known = name in defaults or (name == "momentum" and "betas" in defaults)
        if is_known and not isinstance(defaults.get(name), torch.Tensor):  # a tensor is shared with the groups
            _set(defaults, name, value)


def _groups_by_name(name: str, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups of `lr.GROUP`, which `make_optimizer` has given this `name`."""
    group_name = name.partition(".")[2]
    if not (matching := [group for group in groups if group.get("name") == group_name]):
        names = ", ".join(sorted({str(group["name"]) for group in groups if "name" in group})) or "none with a name"
        raise ValueError(
            f"{name}: the optimizer has no group with name {group_name!r}, but {names}; override `apply` for it"
        )
    return matching


def _scales(name: str, groups: list[dict[str, Any]], make: Make, hp: dict[str, Any]) -> list[float | None]:
    """Each group's factor for the study's value; None for groups with a value of their own."""
    if len(groups) == 1 or any(f"{name}_scale" in group for group in groups):
        return [float(group.get(f"{name}_scale", 1.0)) for group in groups]
    if name not in RATES or not is_number(hp[name]):
        values = [_plain(group.get(name)) for group in groups]
        is_told = any(each != 0 for each in values) or not is_number(hp[name])
        return _common_scales(name, values if is_told else _probe_zeros(name, values, make, hp))
    (base, one), (other_base, two) = (_values(name, make, {**hp, name: value}) for value in (1.0, 2.0))
    if one == two:
        return _common_scales(name, one, base if base == other_base else None)
    if any(b not in (a, 2 * a) for a, b in zip(one, two, strict=True)):
        raise ValueError(f"{name} of a group is no multiple of hp[{name!r}] in make_optimizer: override `apply` for it")
    return [a if a == 0 or b != a else None for a, b in zip(one, two, strict=True)]


def _probe_zeros(name: str, values: list[Any], make: Make, hp: dict[str, Any]) -> list[Any]:
    """The groups' values for a nonzero study value, when all are 0 now: some groups may stay at 0."""
    try:
        return _values(name, make, {**hp, name: PROBE})[1]
    except Exception:  # the user's code may refuse the probe value
        return values


def _common_scales(name: str, values: list[Any], base: float | None = None) -> list[float | None]:
    """Factors for values that ignore the study's: all get it, except that zeros among nonzero values stay 0.

    base: the optimizer's default; groups with other values keep their multiple of it.
    """
    if all(value == values[0] for value in values):
        return [1.0] * len(values)
    if len({value for value in values if value != 0}) == 1:
        return [0.0 if value == 0 else 1.0 for value in values]
    if base and base in values:
        return [value / base for value in values]
    raise ValueError(
        f"the study sets {name}, and the optimizer's groups have values of their own for it ({values}): make them "
        f"multiples of hp[{name!r}] in make_optimizer, write {name}_scale into each group, or override `apply` for it"
    )


def _values(name: str, make: Make, hp: dict[str, Any]) -> tuple[float | None, list[float]]:
    """The optimizer's default, if it has one, and the values of its groups."""
    rng_state = torch.get_rng_state()
    try:
        optimizer = make(hp)
        base = optimizer.defaults.get(name)
        return None if base is None else float(base), [float(group[name]) for group in optimizer.param_groups]
    finally:
        torch.set_rng_state(rng_state)


def _set(group: dict[str, Any], name: str, value: Any) -> None:
    if name == "momentum" and "betas" in group:
        group["betas"] = (value, group["betas"][1])
    elif name not in group or name == "params":
        names = [key for key in group if key != "params"]
        raise ValueError(
            f"hyper-parameter {name!r} is none of the optimizer's ({', '.join(names)}): read it in `build(hp)` if it "
            "shapes the model, override `apply` if it changes while it trains; what all trials have in common is in "
            f"`trainer_args`{did_you_mean(name, names)}"
        )
    elif isinstance(group[name], torch.Tensor):  # compiled and capturable optimizers need a tensor
        group[name].fill_(value)
    else:
        group[name] = value


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class RankedScaler(torch.amp.GradScaler):
    """torch's gradient scaler for divided gradients: an overflow on one rank counts on all of them."""

    def _unscale_grads_(self, optimizer: Any, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool) -> Any:
        found_by_device = super()._unscale_grads_(_LocalGradients(optimizer), inv_scale, found_inf, allow_fp16)  # type: ignore
        if any(here().any([any(bool(each) for each in found_by_device.values())])):
            for each in found_by_device.values():
                each.fill_(1.0)
        return found_by_device


class _LocalGradients:
    """Presents an optimizer to a scaler with the local rows of its gradients."""

    def __init__(self, optimizer: Optimizer) -> None:
        parameters = (each for group in optimizer.param_groups for each in group["params"] if each.grad is not None)
        self.param_groups = [{"params": [_local(each) for each in parameters]}]


def _local(parameter: Tensor) -> Tensor:
    mine = local(parameter.detach())
    mine.grad = local(parameter.grad)
    return mine


class Precision:
    """name: `fp32`, or the dtype of autocast: `bf16`, or `fp16` with scaled losses.

    is_reduced: less than single precision. is_scaled: losses are scaled. Raises ValueError.
    """

    def __init__(self, name: str, device: str) -> None:
        if name not in DTYPES:
            raise ValueError(f"precision must be one of {', '.join(DTYPES)}, not {name!r}")
        self._dtype, self._device_type = DTYPES[name], torch.device(device).type
        self._scaler = RankedScaler(self._device_type, enabled=name == "fp16")
        self.is_reduced, self.is_scaled = self._dtype is not None, self._scaler.is_enabled()

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which the model computes in this precision."""
        return torch.autocast(self._device_type, self._dtype) if self._dtype else nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Add the scaled gradient of a loss."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def unscale(self, optimizer: Optimizer) -> None:
        """Undo the scale of the gradients; otherwise `step` does it."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        """Update the parameters, unless a gradient is not finite; then the scale is reduced."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """Empty if losses are not scaled."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scaler.load_state_dict(state)
