"""Where the sequences of a trial change their course, as curves are told of it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, pairwise, takewhile
from typing import Any

from app.domain.schedule import Segment, segments
from app.scheduling.curves import Bend
from stagetree.sequences import Scalar

MOST = 64
"""So many changes are looked at. A trial that changes more often does so all the time, and has no bends to speak of."""


def bends_of(hp: Mapping[str, Any], horizon: int) -> tuple[Bend, ...]:
    """The steps before the horizon at which a hyper-parameter jumps, each with what it does there: "lr x 0.1".

    Numbers by their ratio, so that two trials bend alike that decay alike, wherever they began.
    """
    before = takewhile(lambda segment: segment.start < horizon, segments(hp))
    changes = (_bend(*pair) for pair in pairwise(islice(before, MOST)))
    return tuple(bend for bend in changes if bend[1])


def _bend(before: Segment, after: Segment) -> Bend:
    was, now = before.values(after.start - 1), after.values(after.start)
    changes = (_change(name, was[name], now[name]) for name in now if was[name] != now[name])
    return after.start, ", ".join(changes)


def _change(name: str, was: Scalar, now: Scalar) -> str:
    if _is_number(was) and _is_number(now) and was:
        return f"{name} x {float(now) / float(was):.3g}"  # type: ignore[arg-type]
    return f"{name} = {now}"


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
