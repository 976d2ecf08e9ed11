"""The step of an optimizer without a rule of ours, by its own code: run once, over tensors with a row for each lane.

That is sound for code that treats each number by itself, as Lion's does, and AdamW's in any hand. Whether it does is
seen by what it calls (`OnRows`), and its first steps are compared with those that it makes of one parameter.
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

from stagetree.packing.lane_numbers import LaneNumber, LaneScalar, Misunderstood, OnRows
from stagetree.packing.lane_optimizer import NotStackable, shallow_copy
from stagetree.packing.rules import RULES, TRIED, Group, OptimizerRows, Rule

STEPS = 3
"""So many first ones are compared."""

NEAR = {torch.float32: 1e-4, torch.float64: 1e-9}
"""By so much of its length may what they change differ."""

WAYS = frozenset({"foreach", "fused"})
"""In which torch's optimizers have fewer operations: not on rows."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What an optimizer remembers of each number, by name; and in what kind of number, if in any, its steps."""

    names: tuple[str, ...]
    step: type | None


class OwnCode(Rule):
    """like: a tensor of the kind that parameters are, on the device."""

    is_own_code = True

    def __init__(self, optimizer: Optimizer, like: Tensor) -> None:
        self._optimizer, self._like = shallow_copy(optimizer), like
        self._optimizer.defaults = {name: each for name, each in optimizer.defaults.items() if not _numbers({"": each})}
        self._seen: dict[Any, Remembered | None] = {}
        self._groups: dict[Any, dict[str, Any]] = {}

    @property
    def remembered(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(name for each in self._seen.values() if each is not None for name in each.names)

    @property
    def counts(self) -> bool:  # type: ignore[override]
        return any(each is not None and each.step is not None for each in self._seen.values())

    @property
    def counts_by_number(self) -> bool:  # type: ignore[override]
        return any(each is not None and each.step is int for each in self._seen.values())

    def knows(self, group: Group) -> bool:
        """Whether its step with such hyper-parameters was seen to be made here as by itself: whoever came first."""
        terms = self.terms(group)
        if terms not in self._seen:
            try:
                self._seen[terms] = self._tried(_with(self._groups[terms], map(_like, _numbers(group))), terms)
            except Exception:  # its own step raises it again, if it is its own
                self._seen[terms] = None
        return self._seen[terms] is not None

    def moments(self, group: Group) -> tuple[str, ...]:
        return self._remembered(self.terms(group)).names

    def terms(self, group: Group) -> tuple[Any, ...]:
        """All but the numbers, and which of these are zero."""
        key = tuple(_kind_of(value) for name, value in group.items() if name != "params")
        if key not in self._groups:
            self._groups[key] = {name: False if name in WAYS else group[name] for name in group if name != "params"}
        return key

    def coefficients(self, group: Group, steps: int, *products: float) -> tuple[float, ...]:
        """Raises ValueError where a step is not made here."""
        numbers = _numbers(group)
        if not (self.knows(group) and all(map(math.isfinite, numbers))):
            raise ValueError("it goes by itself")
        return steps, *numbers

    def change(self, terms: tuple[Any, ...], rows: OptimizerRows, factors: Any) -> None:
        """factors: the coefficients of each lane. Where it raises, as it does `Disagreement`, nothing is changed."""
        remembered, (steps, *numbers) = self._remembered(terms), zip(*factors, strict=True)
        values = rows.values.clone()
        values.grad = rows.grads.clone()
        state: dict[str, Any] = {name: rows.moments[name].clone() for name in remembered.names}
        if remembered.step is not None:
            state["step"] = LaneNumber(steps) if remembered.step is int else LaneScalar(steps)
        joint = self._over(values, _with(self._groups[terms], map(LaneNumber, numbers)))
        joint.state[values].update(state)
        elsewhere = {**vars(joint)}, {**joint.param_groups[0]}
        with torch.no_grad(), OnRows(values):
            joint.step()
        after = joint.state[values]
        if after.keys() != state.keys() or not all(map(_is_unchanged, elsewhere, (vars(joint), joint.param_groups[0]))):
            raise Misunderstood("it remembers something elsewhere")
        rows.values.copy_(values)
        for name in remembered.names:
            rows.moments[name].copy_(after[name])

    def _over(self, parameter: Tensor, group: Mapping[str, Any]) -> Optimizer:
        optimizer = shallow_copy(self._optimizer)
        optimizer.param_groups, optimizer.state = [{**group, "params": [parameter]}], defaultdict(dict)
        return optimizer

    def _tried(self, group: Mapping[str, Any], terms: Any) -> Remembered | None:
        """What it remembers, if its first steps are those of one parameter. Raises what the code does."""
        chance = torch.Generator().manual_seed(0)
        values, grads = (torch.randn(1, TRIED, generator=chance).to(self._like) for _ in range(2))
        parameter, before = nn.Parameter(values[0].clone()), values.clone()
        parameter.grad = grads[0].clone()
        own = self._over(parameter, group)
        own.defaults = dict(group)
        own.step()
        remembered = _remembered_in(own.state[parameter], parameter)
        self._seen[terms] = remembered
        rows = OptimizerRows(values, grads, {name: torch.zeros_like(values) for name in remembered.names}, ())
        for steps in range(STEPS):
            self.change(terms, rows, [(steps * bool(remembered.names), *_numbers(group))])
        for _ in range(STEPS - 1):
            own.step()
        far, way = (torch.linalg.vector_norm(each - parameter.detach()) for each in (values[0], before[0]))
        return remembered if bool(far <= NEAR[values.dtype] * way) else None

    def _remembered(self, terms: tuple[Any, ...]) -> Remembered:
        remembered = self._seen[terms]
        assert remembered is not None  # or there were no coefficients
        return remembered


def _remembered_in(state: Mapping[str, Any], parameter: Tensor) -> Remembered:
    """Raises `NotStackable` for what is neither of each number nor its steps."""
    names = tuple(name for name, each in state.items() if isinstance(each, Tensor) and each.shape == parameter.shape)
    step = type(state["step"]) if "step" in state else None
    if state.keys() - {*names, "step"} or "step" in names or step not in (None, int, Tensor):
        raise NotStackable
    return Remembered(names, step)


def _is_unchanged(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return before.keys() == after.keys() and all(after[name] is value for name, value in before.items())


def _kind_of(value: Any) -> object:
    """Of a hyper-parameter, in which lanes that go together are equal."""
    if type(value) is float:
        return "0" if value == 0 else "number"
    if type(value) is tuple:
        return tuple(map(_kind_of, value))
    return repr(value)


def _numbers(group: Mapping[str, Any]) -> list[float]:
    """Its hyper-parameters of which each lane may have its own, one after the other."""
    numbers: list[float] = []
    for name, value in group.items():
        each = value if isinstance(value, tuple) and value else (value,)
        if name != "params" and all(type(one) is float for one in each):
            numbers += each
    return numbers


def _like(number: float) -> float:
    """The one that is tried for it."""
    return 0.0 if number == 0 else 1 / 64


def _with(group: Mapping[str, Any], numbers: Iterator[Any]) -> dict[str, Any]:
    """The group with these in the place of its own."""
    made = dict(group)
    for name, value in group.items():
        if isinstance(value, tuple) and _numbers({name: value}):
            made[name] = tuple(next(numbers) for _ in value)
        elif _numbers({name: value}):
            made[name] = next(numbers)
    return made


_rules: WeakKeyDictionary[type[Optimizer], dict[Any, OwnCode]] = WeakKeyDictionary()


def rule_of(optimizer: Optimizer, like: Tensor) -> Rule | None:
    """How its steps are made on rows; None where they are not. like: of the kind that parameters are, on the device."""
    kind = type(optimizer)
    if kind in RULES:
        return RULES[kind]
    try:
        attributes = [(name, _attribute(value)) for name, value in vars(optimizer).items() if name not in OF_LANES]
    except NotStackable:
        return None
    of_kind = _rules.setdefault(kind, {})
    key = repr(attributes), like.dtype, like.device
    if key not in of_kind:
        of_kind[key] = OwnCode(optimizer, like[:1, :1])
    rule = of_kind[key]
    return rule if all(map(rule.knows, optimizer.param_groups)) else None


OF_LANES = frozenset({"defaults", "param_groups", "state"})
"""Attributes of which each lane has its own."""


def _attribute(value: Any) -> Any:
    """In which lanes of one rule are equal."""
    if isinstance(value, bool | int | float | str | None) or (isinstance(value, Sized) and not len(value)):
        return value
    raise NotStackable
