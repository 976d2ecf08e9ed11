"""What ended a study before its tuner did, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def ending_text(ending: Mapping[str, Any]) -> str | None:
    """A sentence for people; None where nothing did."""
    match ending:
        case {"by": "target", "target": target}:
            return f"target {target:g} reached: {_where(ending)}"
        case {"by": "patience", "patience": patience}:
            return f"patience at its end: no better result among the last {patience} than {_where(ending)}"
        case {"by": "max_time", "max_time": seconds}:
            return f"max_time is up: {seconds:g} seconds"
    return None


def _where(ending: Mapping[str, Any]) -> str:
    return f"{ending['value']:.6g} of trial {ending['trial']} after {ending['steps']} steps"
