"""How many slots promising trials have for themselves, and which trials are promising (HyperDrive, §3.2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, inf


@dataclass(frozen=True, slots=True)
class Pools:
    """threshold: trials whose p is at least this are promising. effective: S_effective there, of all slots.

    slots: how many of them promising trials have for themselves, the nearest whole number.
    """

    threshold: float
    effective: float
    slots: int


NOBODY = Pools(inf, 0.0, 0)


def divide(confidences: Iterable[float], slots: int) -> Pools:
    """The threshold that gives promising trials the most slots which they both desire and deserve.

    confidences: p of all trials that go on. S_desired(p) is how many of them have at least p, with a slot each (k = 1);
    S_deserved(p) = S p; S_effective(p) is the lesser. Between two of the p of trials only S_deserved changes, and
    grows: so the maximum is at one of them. Of equal ones the highest threshold counts. Where the paper leaves half a
    slot over, it is rounded, upwards; and where there is no slot for them, nobody is promising.
    """
    ranked = sorted(confidences, reverse=True)
    best, threshold = 0.0, inf
    for number, p in enumerate(ranked, start=1):
        effective = min(float(number), slots * p)
        if effective > best:
            best, threshold = effective, p
    own = floor(best + 0.5)
    return Pools(threshold, best, own) if own else NOBODY


BEST_PART = 0.1
"""Beyond the best tenth of those that came to its step, a trial's rank speaks for it no more."""


def by_rank(rank: int, number: int) -> float:
    """How much the rank of a trial, from 1, among so many at its step speaks for it: what p is, where none is proven.

    It falls from 1, of the best, to 0 beyond the best tenth.
    """
    return round(max(0.0, 1 - (rank - 1) / number / BEST_PART), 4)
