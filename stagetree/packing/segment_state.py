"""The optimizer state of all lanes for one segment of their stack, and the steps that change it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stagetree.packing.rows import Selection, StackSegment
from stagetree.packing.update_rules import Group, OptimizerRows, UpdateRule

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
