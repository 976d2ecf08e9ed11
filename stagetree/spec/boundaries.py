"""When tuners that predict curves decide, and when they have trials evaluated: HyperDrive's "evaluation boundary"."""

from __future__ import annotations

BOUNDARIES = 10
"""Of a trial where the study names no boundary: "5-10 % of the max epoch" (Rasley et al. 2017, §9)."""

LEAST_POINTS = 4
"""A curve with fewer evaluations has no shape yet: what is foretold of it is hardly more than what it is now. (In the
papers there are ten, or thirty, before anything is decided.)"""


def boundary_of(chosen: int | None, most: int) -> int:
    """The steps between two decisions: those that were chosen, if any."""
    return chosen or -(-most // BOUNDARIES)


def steps_asked(boundary: int, eval_every: int | None, most: int) -> list[int]:
    """The steps that trials are asked for: every boundary, every evaluation between them, and the last."""
    return sorted({*range(boundary, most, boundary), *range(eval_every or most, most, eval_every or most), most})


def most_points(boundary: int, eval_every: int | None, most: int) -> int:
    """How many evaluations a trial has had when it comes to its last decision; 0 where there is none before its end."""
    last = (most - 1) // boundary * boundary
    return sum(step <= last for step in steps_asked(boundary, eval_every, most))
