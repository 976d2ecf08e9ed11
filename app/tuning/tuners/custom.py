"""Tuners from files that the operator of a server has registered, and the check of the actions that they suggest.

A study names such a tuner, and goes on with that version of it only. Its author may return anything from `suggest`: a
value that is no action, or that the log cannot hold, is refused here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.domain.commands import Extend, Prioritize, Start, Stop
from app.tuning.tuners.base import NewTrial, Next, Tuner
from stagetree.spec import Problem, SpecError, StudySpec
from stagetree.spec.tuners import CustomTuner


@dataclass(frozen=True, slots=True)
class Registered:
    """A tuner's class, and the version that a study records: what it declares, or a digest of its file."""

    tuner: type[Tuner]
    version: str


REGISTERED: dict[str, Registered] = {}
"""By name. `app.registry` fills it when a process starts, from files that its operator names."""


def custom(spec: StudySpec) -> Tuner:
    """The registered tuner that a study names. Raises `SpecError` where this server has none, or another version."""
    assert isinstance(spec.tuner, CustomTuner)
    found, wanted = _registered(spec.tuner.name), spec.tuner.version
    if wanted not in (None, found.version):
        problem = f"must be version {found.version}, which is the one that this server has, got {wanted}"
        raise SpecError([Problem("tuner.version", problem)])
    return found.tuner(spec)


def with_version(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The study file with the version of its registered tuner, if it names one. Raises `SpecError`."""
    tuner = spec["tuner"]
    if tuner["kind"] != "custom" or "version" in tuner:
        return dict(spec)
    return {**spec, "tuner": {**tuner, "version": _registered(tuner["name"]).version}}


def _registered(name: str) -> Registered:
    if name not in REGISTERED:
        known = ", ".join(sorted(REGISTERED)) or "none"
        raise SpecError(
            [Problem("tuner.name", f"must be a tuner that is registered on this server ({known}), got {name!r}")]
        )
    return REGISTERED[name]


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
