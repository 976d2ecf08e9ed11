"""The optimizers of many lanes, if an update rule supports them: one step over the rows of their stack.

The state is imported from and exported to torch's optimizers. Hyper-parameters are read on the host and copied to the
device without synchronizing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stagetree.packing.lane import Lane
from stagetree.packing.lane_numbers import LaneDisagreement, UnsupportedOperation
from stagetree.packing.lane_optimizer import NotStackable, RowGroup, has_hooks
from stagetree.packing.rows import Selection, StackSegment
from stagetree.packing.stack import Stack
from stagetree.packing.traced_optimizer import rule_of
from stagetree.packing.update_rules import DTYPES, PROBE_SIZE, RULES, Group, OptimizerRows, UpdateRule

Place = tuple[torch.dtype, torch.device]

Pieces = tuple[OptimizerRows, list[tuple[slice, OptimizerRows]]]
"""Rows, and the pieces in which they are updated, with the lanes of each."""

MAX_TABLES = 16
"""Tables of coefficients, and of pieces, kept for a segment."""


class SegmentState:
    """Optimizer state of a segment: tensors like its values, and step counts."""

    def __init__(self, segment: StackSegment) -> None:
        self.segment = segment
        self._moments: dict[str, Tensor] = {}
        self._most = torch.finfo(segment.values.dtype).max if segment.values.dtype.is_floating_point else 0.0
        self._scratch = torch.empty_like(segment.values), torch.empty_like(segment.values)
        self._counts: dict[tuple[str, Place], Tensor] = {}
        self._pieces: dict[Any, Pieces] = {}
        self._tables: dict[Any, tuple[list[tuple[float, ...]], list[Any]]] = {}

    def moment(self, name: str) -> Tensor:
        if name not in self._moments:
            self._moments[name] = torch.zeros_like(self.segment.values)
        return self._moments[name]

    def counts(self, place: Place, name: str = "step") -> Tensor:
        """[lanes]: step counts, or the named product, in the dtype and on the device that the optimizers use."""
        if (name, place) not in self._counts:
            self._counts[name, place] = torch.zeros(len(self.segment.values), dtype=place[0], device=place[1])
        return self._counts[name, place]

    def begin(self, lane: int, counts: Tensor, steps: int) -> None:
        """Reset a lane's state, with its step count."""
        counts[lane] = steps
        for each in self._moments.values():
            each[lane].zero_()

    def can_hold(self, number: object) -> bool:
        """Whether it is a number that the segment's dtype can represent."""
        return isinstance(number, float | int) and (abs(number) <= self._most or not math.isfinite(number))

    def step(
        self,
        rule: UpdateRule,
        terms: tuple[bool, ...],
        group: Group,
        numbers: list[tuple[float, ...]],
        selection: Selection,
    ) -> None:
        """Make a step of some lanes. group: of one of them. numbers: each lane's coefficients. of: their rows."""
        key = rule, terms, selection.numbers
        rows, pieces = self._pieces.get(key) or self._split(key, rule, rule.moments(group), selection)
        factors = [numbers] if rule.is_traced else self._factors(key, numbers, pieces)
        for (_, piece), some in zip(pieces, factors, strict=True):
            rule.change(terms, piece, some)
        selection.write_back(self.segment.values, rows.values)
        for name, each in rows.moments.items():
            selection.write_back(self.moment(name), each)

    def _split(self, key: Any, rule: UpdateRule, names: Sequence[str], selection: Selection) -> Pieces:
        """The pieces of some lanes' rows; cached if they are views."""
        values, grads = selection.select(self.segment.values), selection.select(self.segment.grads)
        scratch = [each[: len(values)] for each in self._scratch]
        rows = OptimizerRows(values, grads, {name: selection.select(self.moment(name)) for name in names}, scratch)
        made = rows, rule.pieces(rows)
        if selection.is_run and not rule.is_traced:
            self._pieces = {key: made} if len(self._pieces) > MAX_TABLES else self._pieces | {key: made}
        return made

    def _factors(
        self, key: Any, rows: list[tuple[float, ...]], pieces: Sequence[tuple[slice, OptimizerRows]]
    ) -> list[Any]:
        """Each piece's coefficients on the device, [lanes, 1] each; cached while they do not change."""
        entry = self._tables.get(key)
        if entry is None or entry[0] != rows:
            table, device = torch.tensor(rows, dtype=self.segment.values.dtype), self.segment.values.device
            if device.type != "cpu":
                table = table.pin_memory().to(device, non_blocking=True)
            entry = rows, [table[lanes].unsqueeze(2).unbind(1) for lanes, _ in pieces]
            self._tables = {key: entry} if len(self._tables) > MAX_TABLES else self._tables | {key: entry}
        return entry[1]


StepKind = tuple[UpdateRule, tuple[bool, ...], Place]
"""Lanes with an equal kind are updated together: rule, terms, and where step counts are kept."""


class LaneState(RowGroup):
    """One lane's optimizer state for one segment, in a row of tensors that all lanes share.

    steps: the number of steps that changed the state. Raises `NotStackable` for a state that is not torch's.
    """

    def __init__(
        self, memory: SegmentState, lane: int, model: nn.Module, optimizer: Optimizer, rule: UpdateRule
    ) -> None:
        super().__init__(memory.segment, lane, model, optimizer)
        self.rule, self._memory = rule, memory
        self._exported = frozenset[str]()
        self._seen: list[Any] = []
        self._names: tuple[str, ...] = ()
        self.coefficients: tuple[float, ...] = ()
        self.products = self._products = tuple(rule.products.values())  # after the coming step, and before it
        self.steps = self._import_state()
        self.kind: StepKind = (rule, (), self.place)

    @property
    def place(self) -> Place:
        """The dtype and device of its optimizer's step count."""
        return self._like.dtype, self._like.device

    def is_ready(self) -> bool:
        """Whether the coming step can be made here. Sets its coefficients and its kind."""
        group, before = self.group, self.coefficients
        is_new = len(group) != len(self._seen) or not all(map(is_, group.values(), self._seen))
        if is_new and (group.get("capturable") or group.get("differentiable")):
            return False
        try:
            if self._products:
                self.products = self.rule.next_products(group, self.steps, self._products, self.place[0])
            self.coefficients = self.rule.coefficients(group, self.steps, *self.products)
        except (ArithmeticError, TypeError, ValueError):
            return False
        if is_new:
            self.kind, self._names = (self.rule, self.rule.terms(group), self.place), self.rule.moments(group)
            self._seen = [*group.values()]
        return self.coefficients == before or all(map(self._memory.can_hold, self.coefficients))

    def advance(self) -> None:
        """Update the counts after a step."""
        self.steps += bool(self._names)
        self._products = self.products
        for each in self.parameters.values() if self.rule.counts_with_int else ():
            self.optimizer.state[each]["step"] = self.steps
        if not self._exported.issuperset(self._names):
            self._export_state(self._exported.union(self._names))

    def _import_state(self) -> int:
        """Copy the optimizer's state into the lane's rows. Returns its step count."""
        states = [
            {key: value for key, value in self.optimizer.state.get(each, {}).items() if value is not None}
            for each in self.parameters.values()
        ]
        if any(state.keys() != states[0].keys() for state in states):
            raise NotStackable
        names = states[0].keys() - {"step", *self.rule.products}
        if not names <= self.rule.state_names:
            raise NotStackable
        if any(state.get(name) != states[0].get(name) for state in states for name in self.rule.products):
            raise NotStackable
        self._products = tuple(float(states[0].get(name, begin)) for name, begin in self.rule.products.items())
        steps = int(states[0].get("step", bool(names)))
        if any(int(state.get("step", steps)) != steps for state in states):
            raise NotStackable
        counter = states[0].get("step")
        self._like = counter if isinstance(counter, Tensor) else _counter(self.group, self.parameters)
        self._memory.begin(self.lane, self._memory.counts(self.place), steps)
        for product, value in zip(self.rule.products, self._products, strict=True):
            self._memory.counts(self.place, product)[self.lane] = value
        for name in names:
            row = self._memory.moment(name)[self.lane]
            for (_, part), state in zip(self._memory.segment.parts(row), states, strict=True):
                part.copy_(state[name])
        if names:
            self._export_state(frozenset(names))
        return steps

    def _export_state(self, names: frozenset[str]) -> None:
        """Make the optimizer's state views of these rows; they stay valid."""
        self._exported = names
        for name in names:
            for key, part in self._memory.segment.parts(self._memory.moment(name)[self.lane]):
                self.optimizer.state[self.parameters[key]][name] = part
        is_shown = self.rule.counts_steps and not self.rule.counts_with_int
        for each in self.parameters.values() if is_shown else ():
            for count in ("step", *self.rule.products):
                self.optimizer.state[each][count] = self._memory.counts(self.place, count)[self.lane]


def _counter(group: Group, parameters: Mapping[str, Tensor]) -> Tensor:
    """A step count as torch's optimizers create it."""
    if group.get("fused"):
        return torch.zeros((), dtype=torch.float32, device=next(iter(parameters.values())).device)
    is_double = torch.get_default_dtype() == torch.float64
    return torch.zeros((), dtype=torch.float64 if is_double else torch.float32)


class StackedOptimizer:
    """The optimizers of a stack's lanes that have an update rule."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._memory = [SegmentState(each) for each in stack.segments]
        self._lanes: dict[int, list[LaneState]] = {}
        self._optimizers: dict[int, Optimizer] = {}

    def join(self, lane: int, model: nn.Module, optimizer: Optimizer) -> bool:
        """Whether the coming step of a lane's optimizer is made here; its state is then a view of rows."""
        if self._optimizers.get(lane) is not optimizer:
            self.leave(lane)
            self._optimizers[lane] = optimizer
            try:
                rule = self._rule_of(optimizer)
                if rule is None:
                    raise NotStackable
                self._lanes[lane] = [LaneState(memory, lane, model, optimizer, rule) for memory in self._memory]
            except NotStackable:
                return False
        if lane in self._lanes and not all(part.is_ready() for part in self._lanes[lane]):
            self.leave(lane)
        return lane in self._lanes

    def matches_torch(self, optimizer: Optimizer) -> bool:
        """Whether steps made here equal the optimizer's own bit for bit, on the numbers that are tried."""
        return type(optimizer) in RULES and _matches_torch(optimizer, self._stack.segments[0].values)

    def leave(self, lane: int) -> None:
        self._optimizers.pop(lane, None)
        for part in self._lanes.pop(lane, []):
            part.release()

    def step(self, lanes: Iterable[int]) -> dict[int, Exception]:
        """Update the parameters of these lanes. Returns the errors of lanes whose optimizer failed."""
        joined = {lane: self._lanes[lane] for lane in lanes}
        errors: dict[int, Exception] = {}
        for number, memory in enumerate(self._memory):
            alike = defaultdict[StepKind, dict[int, LaneState]](dict)
            for lane in joined.keys() - errors.keys():
                part = joined[lane][number]
                alike[part.kind][lane] = part
            for kind, members in alike.items():
                errors |= self._step_members(memory, kind, dict(sorted(members.items())))
        return {lane: error for lane, error in errors.items() if not self._step_separately(lane, error)}

    def _step_members(
        self, memory: SegmentState, alike: StepKind, lanes: Mapping[int, LaneState]
    ) -> dict[int, Exception]:
        """Make the step of lanes of one kind. Splits them if they take different branches or one of them raises."""
        members, (rule, terms, place) = list(lanes), alike
        try:
            numbers = [each.coefficients for each in lanes.values()]
            memory.step(rule, terms, lanes[members[0]].group, numbers, self._stack.selection(members))
        except LaneDisagreement as other:
            answers = list(zip(members, other.answers, strict=True))
            ways = [[lane for lane, way in answers if way is go] for go in (True, False)]
        except Exception as error:
            if len(members) == 1:
                return {members[0]: error}
            ways = [[lane] for lane in members]
        else:
            if rule.counts_steps:
                at, counts = self._stack.selection(members, place[1]), memory.counts(place)
                at.write_back(counts, at.select(counts).add_(1))
            products = zip(*(each.products for each in lanes.values()), strict=True)
            for name, numbers_after in zip(rule.products, products, strict=True):
                at = self._stack.selection(members, place[1])
                at.write(memory.counts(place, name), torch.tensor(numbers_after, dtype=place[0]))
            for each in lanes.values():
                each.advance()
            return {}
        made = [self._step_members(memory, alike, {lane: lanes[lane] for lane in way}) for way in ways]
        return {lane: error for errors in made for lane, error in errors.items()}

    def _step_separately(self, lane: int, error: Exception) -> bool:
        """Make the step by the lane's own optimizer if its code does not work on rows. Returns whether it was made."""
        optimizer = self._optimizers[lane]
        self.leave(lane)
        if not isinstance(error, UnsupportedOperation):
            return False
        optimizer.step()
        return True

    def rehearse_step(self, model: nn.Module, optimizer: Optimizer, lanes: int) -> Callable[[], object] | None:
        """A step of `lanes` lanes on dummy numbers, for measurements; None if it is not made here."""
        rule, steps = self._rule_of(optimizer), list[Callable[[], None]]()
        if rule is None:
            return None
        for segment in self._stack.segments:
            try:
                group = RowGroup(segment, 0, model, optimizer).group
                numbers = [rule.coefficients(group, 1, *[0.5] * len(rule.products))] * lanes
                table = torch.tensor(numbers).to(segment.values).unsqueeze(2).unbind(1)
            except (ArithmeticError, NotStackable, TypeError, ValueError):
                return None
            like = segment.values[:1].expand(lanes, -1)
            moments = {name: torch.zeros_like(like) for name in rule.moments(group)}
            values, grads, *scratch = (torch.zeros_like(like) for _ in range(4))
            rows = OptimizerRows(values, grads, moments, scratch)
            factors: Any = numbers if rule.is_traced else table
            steps.append(partial(rule.step, rule.terms(group), rows, factors))
        return lambda: [step() for step in steps]

    def _rule_of(self, optimizer: Optimizer) -> UpdateRule | None:
        dtypes = {each.values.dtype for each in self._stack.segments}
        is_left = has_hooks(optimizer) or not dtypes <= DTYPES
        return None if is_left else rule_of(optimizer, self._stack.segments[0].values)


def joins(optimizer: StackedOptimizer, lane: Lane) -> bool:
    """Whether the coming step of a lane's optimizer is made in the stack."""
    return optimizer.join(lane.number, lane.model, lane.trainer.optimizer)


def _matches_torch(optimizer: Optimizer, like: Tensor) -> bool:
    """Whether the rule gives the optimizer's own steps bit for bit, on random numbers of the dtype and device of
    `like`."""
    rule, chance = RULES[type(optimizer)], torch.Generator().manual_seed(0)
    kind: Any = type(optimizer)
    for group in optimizer.param_groups:
        values, grads = (torch.randn(1, PROBE_SIZE, generator=chance).to(like) for _ in range(2))
        parameter = nn.Parameter(values[0].clone())
        parameter.grad = grads[0].clone()
        stock = kind([parameter], lr=group["lr"])
        stock.param_groups[0].update({name: group[name] for name in optimizer.defaults})
        moments = {name: torch.zeros_like(values) for name in rule.moments(group)}
        products = tuple(rule.products.values())
        for steps in range(2):
            stock.step()
            products = rule.next_products(group, steps, products, torch.get_default_dtype())
            table = torch.tensor([rule.coefficients(group, steps, *products)]).to(like).unsqueeze(2).unbind(1)
            scratch = torch.empty_like(values), torch.empty_like(values)
            rule.change(rule.terms(group), OptimizerRows(values, grads, moments, scratch), table)
        if not parameter.equal(values[0]):
            return False
    return True
