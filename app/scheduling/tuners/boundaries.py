"""When tuners that predict curves decide, and when they have trials evaluated: HyperDrive's "evaluation boundary"."""

from __future__ import annotations

BOUNDARIES = 10
"""Of a trial where the study names no boundary: "5-10 % of the max epoch" (Rasley et al. 2017, §9)."""


def boundary_of(chosen: int | None, most: int) -> int:
    """The steps between two decisions: those that were chosen, if any."""
    return chosen or -(-most // BOUNDARIES)


def steps_asked(boundary: int, eval_every: int | None, most: int) -> list[int]:
    """The steps that trials are asked for: every boundary, every evaluation between them, and the last."""
    return sorted({*range(boundary, most, boundary), *range(eval_every or most, most, eval_every or most), most})
