"""What the optimizers of all lanes remember of one segment of their stack, and how their steps change it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stagetree.packing.rows import Selection, StackSegment
from stagetree.packing.rules import Group, OptimizerRows, Rule

Place = tuple[torch.dtype, torch.device]

Pieces = tuple[OptimizerRows, list[tuple[slice, OptimizerRows]]]
"""Rows, and what they are changed in, one piece after the other, with the lanes of each."""

MOST_TABLES = 16
"""Of coefficients, and of pieces, are kept for a segment."""


class SegmentMemory:
    """What optimizers remember of a segment: tensors like its values, and how many steps there were."""

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
        """[lanes]: of steps, or a product by its name, as the optimizers have it that count there."""
        if (name, place) not in self._counts:
            self._counts[name, place] = torch.zeros(len(self.segment.values), dtype=place[0], device=place[1])
        return self._counts[name, place]

    def begin(self, lane: int, counts: Tensor, steps: int) -> None:
        """A lane remembers nothing yet but how many steps there were."""
        counts[lane] = steps
        for each in self._moments.values():
            each[lane].zero_()

    def has(self, number: object) -> bool:
        """Whether it is a number, and not too large for one of the segment's kind."""
        return isinstance(number, float | int) and (abs(number) <= self._most or not math.isfinite(number))

    def step(
        self, rule: Rule, terms: tuple[bool, ...], group: Group, numbers: list[tuple[float, ...]], of: Selection
    ) -> None:
        """Make a step of some lanes. group: of one of them. numbers: the coefficients of each. of: their rows."""
        key = rule, terms, of.numbers
        rows, pieces = self._pieces.get(key) or self._cut(key, rule, rule.moments(group), of)
        factors = [numbers] if rule.is_own_code else self._factors(key, numbers, pieces)
        for (_, piece), some in zip(pieces, factors, strict=True):
            rule.change(terms, piece, some)
        of.write_back(self.segment.values, rows.values)
        for name, each in rows.moments.items():
            of.write_back(self.moment(name), each)

    def _cut(self, key: Any, rule: Rule, names: Sequence[str], of: Selection) -> Pieces:
        """Of the rows of some lanes; they are kept where they are views."""
        values, grads = of.of(self.segment.values), of.of(self.segment.grads)
        scratch = [each[: len(values)] for each in self._scratch]
        rows = OptimizerRows(values, grads, {name: of.of(self.moment(name)) for name in names}, scratch)
        made = rows, rule.pieces(rows)
        if of.is_run and not rule.is_own_code:
            self._pieces = {key: made} if len(self._pieces) > MOST_TABLES else self._pieces | {key: made}
        return made

    def _factors(
        self, key: Any, rows: list[tuple[float, ...]], pieces: Sequence[tuple[slice, OptimizerRows]]
    ) -> list[Any]:
        """Of each piece the coefficients on the device, [lanes, 1] each; the same while nothing has changed."""
        entry = self._tables.get(key)
        if entry is None or entry[0] != rows:
            table, device = torch.tensor(rows, dtype=self.segment.values.dtype), self.segment.values.device
            if device.type != "cpu":
                table = table.pin_memory().to(device, non_blocking=True)
            entry = rows, [table[lanes].unsqueeze(2).unbind(1) for lanes, _ in pieces]
            self._tables = {key: entry} if len(self._tables) > MOST_TABLES else self._tables | {key: entry}
        return entry[1]
