"""The optimizers of many lanes, as far as there are `rules` for them: one step over the rows of their stack.

Their state goes in and out as torch's. Rates and other hyper-parameters are read where the host has them, and go to the
device without waiting for it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stagetree.packing.fused_optimizer import FusedOptimizer, NotFusable, RowGroup, has_hooks
from stagetree.packing.lane import Lane
from stagetree.packing.rows import Selection, StackSegment
from stagetree.packing.rules import DTYPES, RULES, Group, OptimizerRows, Rule, is_torchs
from stagetree.packing.stack import Stack


class LaneState(RowGroup):
    """What one lane's optimizer remembers of one segment, in a row of tensors that all lanes have.

    steps: how many there were that remembered something. Raises `NotFusable` where the state is not torch's.
    """

    def __init__(self, memory: SegmentMemory, lane: int, model: nn.Module, optimizer: Optimizer, rule: Rule) -> None:
        super().__init__(memory.segment, lane, model, optimizer)
        self._rule, self._memory = rule, memory
        self._shown = frozenset[str]()
        self.coefficients: tuple[float, ...] = ()
        self.steps = self._taken_over()

    @property
    def place(self) -> tuple[torch.dtype, torch.device]:
        """Where its optimizer says how many steps there were."""
        return self._like.dtype, self._like.device

    def terms(self) -> tuple[bool, ...]:
        return self._rule.terms(self.group)

    def is_ready(self) -> bool:
        """Whether its coming step can be made here; its coefficients are known then."""
        group = self.group
        if group.get("capturable") or group.get("differentiable"):
            return False
        before = self.coefficients
        try:
            self.coefficients = self._rule.coefficients(group, self.steps)
        except (ArithmeticError, TypeError, ValueError):
            return False
        return self.coefficients == before or all(map(self._memory.has, self.coefficients))

    def passed(self) -> None:
        """The step was made."""
        names = self._rule.moments(self.group)
        self.steps += bool(names)
        if not self._shown.issuperset(names):
            self._show(self._shown.union(names))

    def _taken_over(self) -> int:
        """Have what there is in the lane's rows; how many steps it comes from."""
        states = [
            {key: value for key, value in self.optimizer.state.get(each, {}).items() if value is not None}
            for each in self.parameters.values()
        ]
        if any(state.keys() != states[0].keys() for state in states):
            raise NotFusable
        names = states[0].keys() - {"step"}
        if not names <= self._rule.remembered:
            raise NotFusable
        steps = int(states[0].get("step", bool(names)))
        if any(int(state.get("step", steps)) != steps for state in states):
            raise NotFusable
        self._like = states[0].get("step", _counter(self.group, self.parameters))
        self._memory.begin(self.lane, self._memory.counts(self.place), steps)
        for name in names:
            row = self._memory.moment(name)[self.lane]
            for (_, part), state in zip(self._memory.segment.parts(row), states, strict=True):
                part.copy_(state[name])
        if names:
            self._show(frozenset(names))
        return steps

    def _show(self, names: frozenset[str]) -> None:
        """The lane's optimizer has views of these rows as its state, so once is enough."""
        self._shown = names
        for name in names:
            for key, part in self._memory.segment.parts(self._memory.moment(name)[self.lane]):
                self.optimizer.state[self.parameters[key]][name] = part
        for each in self.parameters.values() if self._rule.counts else ():
            self.optimizer.state[each]["step"] = self._memory.counts(self.place)[self.lane]


def _counter(group: Group, parameters: Mapping[str, Tensor]) -> Tensor:
    """As torch's optimizers begin to count with."""
    if group.get("fused"):
        return torch.zeros((), dtype=torch.float32, device=next(iter(parameters.values())).device)
    is_double = torch.get_default_dtype() == torch.float64
    return torch.zeros((), dtype=torch.float64 if is_double else torch.float32)


class SegmentMemory:
    """What optimizers remember of a segment: tensors like its values, and how many steps there were."""

    def __init__(self, segment: StackSegment) -> None:
        self.segment = segment
        self._moments: dict[str, Tensor] = {}
        self._most = torch.finfo(segment.values.dtype).max if segment.values.dtype.is_floating_point else 0.0
        self._scratch = torch.empty_like(segment.values), torch.empty_like(segment.values)
        self._counts: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        self._tables: dict[Any, tuple[list[tuple[float, ...]], Sequence[Tensor]]] = {}

    def moment(self, name: str) -> Tensor:
        if name not in self._moments:
            self._moments[name] = torch.zeros_like(self.segment.values)
        return self._moments[name]

    def counts(self, place: tuple[torch.dtype, torch.device]) -> Tensor:
        """[lanes]: of steps, as the optimizers have it that count there."""
        if place not in self._counts:
            self._counts[place] = torch.zeros(len(self.segment.values), dtype=place[0], device=place[1])
        return self._counts[place]

    def begin(self, lane: int, counts: Tensor, steps: int) -> None:
        """A lane remembers nothing yet but how many steps there were."""
        counts[lane] = steps
        for each in self._moments.values():
            each[lane].zero_()

    def has(self, number: object) -> bool:
        """Whether it is a number, and not too large for one of the segment's kind."""
        return isinstance(number, float | int) and (abs(number) <= self._most or not math.isfinite(number))

    def step(self, rule: Rule, terms: tuple[bool, ...], lanes: Sequence[LaneState], of: Selection) -> None:
        """Make a step of these lanes. of: their rows."""
        values = of.of(self.segment.values)
        moments = {name: of.of(self.moment(name)) for name in rule.moments(lanes[0].group)}
        table = self._table((rule, terms, of.numbers), [each.coefficients for each in lanes])
        scratch = [each[: len(lanes)] for each in self._scratch]
        rule.change(terms, OptimizerRows(values, of.of(self.segment.grads), moments, scratch), table)
        of.write_back(self.segment.values, values)
        for name, rows in moments.items():
            of.write_back(self.moment(name), rows)
        for each in lanes:
            each.passed()

    def _table(self, key: Any, rows: list[tuple[float, ...]]) -> Sequence[Tensor]:
        """Coefficients on the device, [lanes, 1] each; as in the step before where nothing has changed."""
        entry = self._tables.get(key)
        if entry is None or entry[0] != rows:
            table, device = torch.tensor(rows, dtype=self.segment.values.dtype), self.segment.values.device
            if device.type != "cpu":
                table = table.pin_memory().to(device, non_blocking=True)
            entry = rows, table.unsqueeze(2).unbind(1)
            self._tables = {key: entry} if len(self._tables) > MOST_TABLES else self._tables | {key: entry}
        return entry[1]


MOST_TABLES = 16
"""Of coefficients are kept for a segment."""


class StackedOptimizer:
    """The optimizers of a stack's lanes, as far as there is a rule for them."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._memory = [SegmentMemory(each) for each in stack.segments]
        self._lanes: dict[int, list[LaneState]] = {}
        self._of: dict[int, Optimizer] = {}

    def join(self, lane: int, model: nn.Module, optimizer: Optimizer) -> bool:
        """Whether the coming step of a lane's optimizer is made here; its state is a view into rows then."""
        if self._of.get(lane) is not optimizer:
            self.leave(lane)
            self._of[lane] = optimizer
            try:
                self._lanes[lane] = self._joined(lane, model, optimizer)
            except NotFusable:
                return False
        if lane in self._lanes and not all(part.is_ready() for part in self._lanes[lane]):
            self.leave(lane)
        return lane in self._lanes

    def is_torchs(self, optimizer: Optimizer) -> bool:
        """Whether the steps that are made here for an optimizer are its own to the bit."""
        return is_torchs(optimizer, self._stack.segments[0].values)

    def leave(self, lane: int) -> None:
        self._of.pop(lane, None)
        for part in self._lanes.pop(lane, []):
            part.release()

    def step(self, lanes: Iterable[int]) -> None:
        """Change the parameters of these lanes by their gradients."""
        joined = {lane: (self._lanes[lane], RULES[type(self._of[lane])]) for lane in lanes}
        for number, memory in enumerate(self._memory):
            alike = defaultdict[Any, list[int]](list)
            for lane, (parts, rule) in joined.items():
                alike[rule, parts[number].terms(), parts[number].place].append(lane)
            for (rule, terms, place), members in alike.items():
                parts = [joined[lane][0][number] for lane in members]
                memory.step(rule, terms, parts, self._stack.selection(members))
                if rule.counts:
                    at, counts = self._stack.selection(members, place[1]), memory.counts(place)
                    at.write_back(counts, at.of(counts).add_(1))

    def rehearsed(self, model: nn.Module, optimizer: Optimizer, lanes: int) -> Callable[[], object] | None:
        """The step of so many lanes like one, on numbers of no meaning; None where it is not made here."""
        if not self._has_rule(optimizer):
            return None
        rule, steps = RULES[type(optimizer)], list[Callable[[], None]]()
        for segment in self._stack.segments:
            try:
                group = RowGroup(segment, 0, model, optimizer).group
                table = torch.tensor([rule.coefficients(group, 1)] * lanes).to(segment.values)
            except (ArithmeticError, NotFusable, TypeError, ValueError):
                return None
            like = segment.values[:1].expand(lanes, -1)
            moments = {name: torch.zeros_like(like) for name in rule.moments(group)}
            values, grads, *scratch = (torch.zeros_like(like) for _ in range(4))
            rows = OptimizerRows(values, grads, moments, scratch)
            steps.append(partial(rule.change, rule.terms(group), rows, table.unsqueeze(2).unbind(1)))
        return lambda: [step() for step in steps]

    def _has_rule(self, optimizer: Optimizer) -> bool:
        dtypes = {each.values.dtype for each in self._stack.segments}
        return type(optimizer) in RULES and not has_hooks(optimizer) and dtypes <= DTYPES

    def _joined(self, lane: int, model: nn.Module, optimizer: Optimizer) -> list[LaneState]:
        if not self._has_rule(optimizer):
            raise NotFusable
        return [LaneState(memory, lane, model, optimizer, RULES[type(optimizer)]) for memory in self._memory]


def joins(optimizer: StackedOptimizer | FusedOptimizer, lane: Lane) -> bool:
    """Whether the coming step of a lane's optimizer is made there."""
    return optimizer.join(lane.number, lane.model, lane.trainer.optimizer)
