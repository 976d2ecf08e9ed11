"""Whether what a tuner wants can be put on record: a tuner from a file says whatever its author wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from app.domain.commands import Extend, Prioritize, Start, Stop
from app.scheduling.tuners.base import NewTrial, Next

ACTIONS = (NewTrial, Start, Extend, Stop, Prioritize)


class NotAnAction(Exception):
    """A tuner wants what can be no decision; the message is one sentence."""


def check_action(action: Next) -> None:
    """Raise `NotAnAction` for what is none, or holds what no log does; what may be asked for, `decide` says."""
    if not isinstance(action, ACTIONS):
        raise NotAnAction(f"it must suggest an action, or None, got {action!r:.100}")
    for field in ("trial", "steps"):
        _check_int(field, getattr(action, field, 0))
    if isinstance(action, Prioritize) and not isinstance(action.priority, int | float):
        raise NotAnAction(f"priority: must be a number, got {action.priority!r:.100}")
    if isinstance(action, Start):
        _check_json("hp", action.hp, allow_nan=True)
    _check_json("reason", action.reason, allow_nan=False)
    if "by" in action.reason:
        raise NotAnAction("reason: must not hold 'by', which says that it was the tuner")
    for name in {"rung", "bracket"} & action.reason.keys():
        _check_int(f"reason.{name}", action.reason[name])


def _check_int(field: str, value: Any) -> None:
    if type(value) is not int:
        raise NotAnAction(f"{field}: must be a whole number of Python's int, got {value!r:.100}")


def _check_json(field: str, value: Any, *, allow_nan: bool) -> None:
    if not isinstance(value, Mapping):
        raise NotAnAction(f"{field}: must be a dict, got {value!r:.100}")
    try:
        json.dumps(value, allow_nan=allow_nan)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotAnAction(f"{field}: must be JSON with finite numbers, got {value!r:.100}: {error}") from None
