"""Tuners that the operator of a server has registered: a study names one, and goes on with that version of it only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.scheduling.tuners.base import Tuner
from stagetree.spec import Problem, SpecError, StudySpec
from stagetree.spec.tuners import CustomTuner


@dataclass(frozen=True, slots=True)
class Registered:
    """A tuner's class, and the version that a study records: what it declares, or a digest of its file."""

    tuner: type[Tuner]
    version: str


REGISTERED: dict[str, Registered] = {}
"""By name. `app.tuner_files` fills it when a process starts, from files that its operator names."""


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
