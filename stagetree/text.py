"""How a study is put into words, in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FINAL = ("completed", "failed", "cancelled")
"""The states of a study that is over."""


def duration(seconds: float) -> str:
    """3:05 or 2:03:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def decided(kind: str, trial: int, steps: int) -> str:
    """What a tuner decided about a trial: trial 3 goes on to step 40."""
    return f"trial {trial} " + (f"goes on to step {steps}" if kind == "promote" else "is stopped")


def rank_text(reason: Mapping[str, Any]) -> str:
    """Where a trial stood when that was decided: rank 5 of 9, the best 3 go on. Empty where it had no rank."""
    if not {"rank", "of"} <= reason.keys():
        return ""
    return f"rank {reason['rank']} of {reason['of']}" + (f", the best {reason['cut']} go on" if "cut" in reason else "")
