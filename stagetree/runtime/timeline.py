"""The values of a trial's hyper-parameters, step by step, from the same canonical pieces that nodes are named by."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from stagetree.sequences import Form, Scalar, parse


class HpTimeline:
    """All hyper-parameters of a trial. hp: the JSON of its sequences. Raises `stagetree.sequences.SequenceError`."""

    def __init__(self, hp: Mapping[str, Any]) -> None:
        self._tracks = {name: _Track(hp[name]) for name in sorted(hp)}

    def at(self, step: int) -> dict[str, Scalar]:
        """All values in force at a step."""
        return {name: track.at(step) for name, track in self._tracks.items()}

    def changes(self, step: int) -> dict[str, Scalar]:
        """The values that are new at a step: all of them at the first."""
        values = self.at(step)
        if step == 0:
            return values
        before = self.at(step - 1)
        return {name: value for name, value in values.items() if value != before[name]}


class _Track:
    """One hyper-parameter. Its pieces may be endless, so they are computed as far as they are needed."""

    def __init__(self, sequence: Any) -> None:
        self._pieces = parse(sequence).pieces()
        self._starts, self._forms = list[int](), list[Form]()
        self._next = next(self._pieces, None)

    def at(self, step: int) -> Scalar:
        while self._next is not None and self._next.start <= step:
            self._starts.append(self._next.start)
            self._forms.append(self._next.form)
            self._next = next(self._pieces, None)
        return self._forms[bisect_right(self._starts, step) - 1].at(step)
