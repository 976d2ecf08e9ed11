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
