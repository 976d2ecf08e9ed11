"""The steps of an optimizer without an update rule: its own code, run once over tensors with a row for each lane.

This is valid for elementwise code, such as Lion's or a custom AdamW. `RowMode` observes the functions that it calls,
and its first steps are compared with its steps for one parameter.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stagetree.packing.lane_numbers import LaneNumber, LaneScalar, RowMode, UnsupportedOperation
from stagetree.packing.lane_optimizer import NotStackable, shallow_copy
from stagetree.packing.update_rules import PROBE_SIZE, RULES, Group, OptimizerRows, UpdateRule

VERIFIED_STEPS = 3
"""First steps to compare."""

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""The allowed relative difference of the compared update."""

FUSED_OPTIONS = frozenset({"foreach", "fused"})
"""Options by which torch's optimizers use fused operations, which do not work on rows."""


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The state names that an optimizer has for each parameter, and the type of its step count, if any."""

    names: tuple[str, ...]
    step: type | None


class TracedUpdate(UpdateRule):
    """like: a tensor with the dtype and device of the parameters."""

    is_traced = True

    def __init__(self, optimizer: Optimizer, like: Tensor) -> None:
        self._optimizer, self._like = shallow_copy(optimizer), like
        self._optimizer.defaults = {name: each for name, each in optimizer.defaults.items() if not _numbers({"": each})}
        self._layouts: dict[Any, StateLayout | None] = {}
        self._groups: dict[Any, dict[str, Any]] = {}

    @property
    def state_names(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(name for each in self._layouts.values() if each is not None for name in each.names)

    @property
    def counts_steps(self) -> bool:  # type: ignore[override]
        return any(each is not None and each.step is not None for each in self._layouts.values())

    @property
    def counts_with_int(self) -> bool:  # type: ignore[override]
        return any(each is not None and each.step is int for each in self._layouts.values())

    def supports(self, group: Group) -> bool:
        """Whether steps with such hyper-parameters have been verified on rows; the first use verifies them."""
        terms = self.terms(group)
        if terms not in self._layouts:
            try:
                self._layouts[terms] = self._verify(
                    _replace_numbers(self._groups[terms], map(_probe_value, _numbers(group))), terms
                )
            except Exception:  # if its own step is at fault, it raises again there
                self._layouts[terms] = None
        return self._layouts[terms] is not None

    def moments(self, group: Group) -> tuple[str, ...]:
        return self._layout(self.terms(group)).names

    def terms(self, group: Group) -> tuple[Any, ...]:
        """The group's values, with its floats replaced by whether they are zero."""
        key = tuple(_kind_of(value) for name, value in group.items() if name != "params")
        if key not in self._groups:
            self._groups[key] = {
                name: False if name in FUSED_OPTIONS else group[name] for name in group if name != "params"
            }
        return key

    def coefficients(self, group: Group, steps: int, *products: float) -> tuple[float, ...]:
        """Raises ValueError if a step is not made here."""
        numbers = _numbers(group)
        if not (self.supports(group) and all(map(math.isfinite, numbers))):
            raise ValueError("it goes by itself")
        return steps, *numbers

    def change(self, terms: tuple[Any, ...], rows: OptimizerRows, factors: Any) -> None:
        """factors: the coefficients of each lane. Nothing is changed if it raises, for example `LaneDisagreement`."""
        layout, (steps, *numbers) = self._layout(terms), zip(*factors, strict=True)
        values = rows.values.clone()
        values.grad = rows.grads.clone()
        state: dict[str, Any] = {name: rows.moments[name].clone() for name in layout.names}
        if layout.step is not None:
            state["step"] = LaneNumber(steps) if layout.step is int else LaneScalar(steps)
        joint = self._make_optimizer(values, _replace_numbers(self._groups[terms], map(LaneNumber, numbers)))
        joint.state[values].update(state)
        elsewhere = {**vars(joint)}, {**joint.param_groups[0]}
        with torch.no_grad(), RowMode(values):
            joint.step()
        after = joint.state[values]
        if after.keys() != state.keys() or not all(map(_is_unchanged, elsewhere, (vars(joint), joint.param_groups[0]))):
            raise UnsupportedOperation("it remembers something elsewhere")
        rows.values.copy_(values)
        for name in layout.names:
            rows.moments[name].copy_(after[name])

    def _make_optimizer(self, parameter: Tensor, group: Mapping[str, Any]) -> Optimizer:
        optimizer = shallow_copy(self._optimizer)
        optimizer.param_groups, optimizer.state = [{**group, "params": [parameter]}], defaultdict(dict)
        return optimizer

    def _verify(self, group: Mapping[str, Any], terms: Any) -> StateLayout | None:
        """The state layout, if the first steps equal the steps for one parameter. Raises the errors of the code."""
        chance = torch.Generator().manual_seed(0)
        values, grads = (torch.randn(1, PROBE_SIZE, generator=chance).to(self._like) for _ in range(2))
        parameter, before = nn.Parameter(values[0].clone()), values.clone()
        parameter.grad = grads[0].clone()
        own = self._make_optimizer(parameter, group)
        own.defaults = dict(group)
        own.step()
        layout = _state_layout(own.state[parameter], parameter)
        self._layouts[terms] = layout
        rows = OptimizerRows(values, grads, {name: torch.zeros_like(values) for name in layout.names}, ())
        for steps in range(VERIFIED_STEPS):
            self.change(terms, rows, [(steps * bool(layout.names), *_numbers(group))])
        for _ in range(VERIFIED_STEPS - 1):
            own.step()
        far, way = (torch.linalg.vector_norm(each - parameter.detach()) for each in (values[0], before[0]))
        return layout if bool(far <= TOLERANCE[values.dtype] * way) else None

    def _layout(self, terms: tuple[Any, ...]) -> StateLayout:
        layout = self._layouts[terms]
        assert layout is not None  # `coefficients` has checked it
        return layout


def _state_layout(state: Mapping[str, Any], parameter: Tensor) -> StateLayout:
    """Raises `NotStackable` for state that is neither elementwise nor a step count."""
    names = tuple(name for name, each in state.items() if isinstance(each, Tensor) and each.shape == parameter.shape)
    step = type(state["step"]) if "step" in state else None
    if state.keys() - {*names, "step"} or "step" in names or step not in (None, int, Tensor):
        raise NotStackable
    return StateLayout(names, step)


def _is_unchanged(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return before.keys() == after.keys() and all(after[name] is value for name, value in before.items())


def _kind_of(value: Any) -> object:
    """A key of a hyper-parameter, equal for lanes that are updated together."""
    if type(value) is float:
        return "0" if value == 0 else "number"
    if type(value) is tuple:
        return tuple(map(_kind_of, value))
    return repr(value)


def _numbers(group: Mapping[str, Any]) -> list[float]:
    """The group's float hyper-parameters, which may differ between lanes, in order."""
    numbers: list[float] = []
    for name, value in group.items():
        each = value if isinstance(value, tuple) and value else (value,)
        if name != "params" and all(type(one) is float for one in each):
            numbers += each
    return numbers


def _probe_value(number: float) -> float:
    """The number that is used to verify steps with this one."""
    return 0.0 if number == 0 else 1 / 64


def _replace_numbers(group: Mapping[str, Any], numbers: Iterator[Any]) -> dict[str, Any]:
    """The group with its floats replaced by `numbers`."""
    made = dict(group)
    for name, value in group.items():
        if isinstance(value, tuple) and _numbers({name: value}):
            made[name] = tuple(next(numbers) for _ in value)
        elif _numbers({name: value}):
            made[name] = next(numbers)
    return made


_rules: WeakKeyDictionary[type[Optimizer], dict[Any, TracedUpdate]] = WeakKeyDictionary()


def rule_of(optimizer: Optimizer, like: Tensor) -> UpdateRule | None:
    """The update rule for an optimizer; None if its steps are not made on rows. like: has the parameters' dtype and
    device."""
    kind = type(optimizer)
    if kind in RULES:
        return RULES[kind]
    try:
        names = [name for name in vars(optimizer) if name not in PER_LANE_ATTRIBUTES]
        attributes = [(name, _attribute(vars(optimizer)[name])) for name in names]
    except NotStackable:
        return None
    of_kind = _rules.setdefault(kind, {})
    key = repr(attributes), like.dtype, like.device
    if key not in of_kind:
        of_kind[key] = TracedUpdate(optimizer, like[:1, :1])
    rule = of_kind[key]
    return rule if all(map(rule.supports, optimizer.param_groups)) else None


PER_LANE_ATTRIBUTES = frozenset({"defaults", "param_groups", "state"})
"""Attributes of which each lane has its own."""


def _attribute(value: Any) -> Any:
    """A key equal for lanes that share a rule."""
    if isinstance(value, bool | int | float | str | None) or (isinstance(value, Sized) and not len(value)):
        return value
    raise NotStackable
