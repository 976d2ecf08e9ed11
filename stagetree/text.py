"""How a study is put into words, in a terminal and in a notebook."""

from __future__ import annotations

FINAL = ("completed", "failed", "cancelled")
"""The states of a study that is over."""


def duration(seconds: float) -> str:
    """3:05 or 2:03:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
