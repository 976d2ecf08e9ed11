"""JSON bodies, read with care: no NaN, no key written twice, nothing that a database cannot keep."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Depends, Request

from app.api.errors import Invalid, Problem
from app.api.services import Use
from app.domain import commands as c
from app.registry import Catalogue, TrainerFileError, TrainerSource
from app.scheduling.tuners.samplers import unavailable
from stagetree.limits import Limits
from stagetree.sequences import did_you_mean
from stagetree.spec import Problem as SpecProblem
from stagetree.spec import SpecError, StudySpec, TrialSpec, shown


async def raw_body(request: Request, use: Use) -> bytes:
    """The bytes of the body. Raises `Problem` 413 as soon as there are too many."""
    body, most = bytearray(), use.limits.bytes
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise Problem(413, f"The body is larger than {most:,} bytes.")
    return bytes(body)


Raw = Annotated[bytes, Depends(raw_body)]


def json_body(request: Request, raw: Raw, use: Use) -> Any:
    """The JSON value in the body. Raises `Problem` 400, 415 or 422."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Problem(415, "The body must be JSON, and the Content-Type must say so: application/json.")
    try:
        value = json.loads(raw, parse_constant=_refuse_constant, object_pairs_hook=_unique)
        _check(value, use.limits.depth)
    except RecursionError:
        raise _too_deep(use.limits.depth) from None
    except ValueError as error:
        raise Problem(400, f"The body is not JSON: {error}.") from None
    return value


Body = Annotated[Any, Depends(json_body)]


def study_of(body: Any, trainers: Catalogue, limits: Limits) -> StudySpec:
    """The study that a body writes. Raises `SpecError`; also where this server has not what it needs."""
    spec = StudySpec.from_dict(body, limits)
    trainer_of(spec, trainers)
    if (problem := unavailable(spec)) is not None:
        raise SpecError([SpecProblem("tuner.sampler", problem)])
    return spec


def trainer_of(spec: StudySpec, trainers: Catalogue) -> TrainerSource:
    """The trainer of a study, as its file is now. Raises `SpecError`."""
    try:
        source = trainers.find(spec.trainer)
    except TrainerFileError as error:
        raise SpecError([SpecProblem("trainer", f"cannot be used as its file is now: {error}")]) from None
    if source is None:
        raise SpecError([SpecProblem("trainer", _unknown_trainer(spec.trainer, sorted(trainers.describe())))])
    return source


def _unknown_trainer(name: str, known: list[str]) -> str:
    if not known:
        return f"must be registered on this server, which has no trainers, got {name!r}"
    return f"must be one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}"


def trial_of(body: Any) -> TrialSpec:
    """The trial that a body writes. Raises `SpecError`."""
    inside = "tuner.trials[0]"
    study = {"name": "x", "trainer": "x", "metric": "x", "mode": "max", "tuner": {"kind": "trials", "trials": [body]}}
    try:
        return StudySpec.from_dict(study, limits=None).tuner.trials[0]  # type: ignore[union-attr]
    except SpecError as error:
        problems = [SpecProblem(each.field.removeprefix(inside).lstrip("."), each.problem) for each in error.problems]
        raise SpecError(problems) from None


def asks_of(body: Any) -> list[c.Start | c.Extend]:
    """The trials that a body asks for, new ones and longer ones. Raises `SpecError`."""
    if not isinstance(body, dict) or body.keys() != {"trials"} or not isinstance(body["trials"], list):
        raise SpecError([SpecProblem("trials", "must be the one field: a list of {hp, steps} and {trial, steps}")])
    asks, problems = list[c.Start | c.Extend](), list[SpecProblem]()
    for number, item in enumerate(body["trials"]):
        try:
            asks.append(_ask_of(item))
        except SpecError as error:
            problems += [SpecProblem(f"trials[{number}].{p.field}".rstrip("."), p.problem) for p in error.problems]
    if problems:
        raise SpecError(problems)
    return asks


def _ask_of(item: Any) -> c.Start | c.Extend:
    if isinstance(item, dict) and "trial" in item:
        return extension_of({name: value for name, value in item.items() if name != "trial"}, item["trial"])
    trial = trial_of(item)
    hp = {name: sequence.to_json() for name, sequence in trial.configuration().items()}
    return c.Start(hp=hp, steps=trial.steps)


def extension_of(body: Any, trial: Any) -> c.Extend:
    """More steps for a trial, as a body asks for them. Raises `SpecError`."""
    given = body if isinstance(body, dict) else {}
    problems = []
    if not _is_count(trial, 0):
        problems.append(SpecProblem("trial", f"must be the number of a trial, from 0 on, got {shown(trial)}"))
    if not _is_count(given.get("steps"), 1) or len(given) != 1:
        problems.append(SpecProblem("steps", "must be the one field: the number of steps in all, at least 1"))
    if problems:
        raise SpecError(problems)
    return c.Extend(trial=trial, steps=given["steps"])


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _refuse_constant(constant: str) -> Any:
    raise Problem(422, f"Numbers must be finite, and the body holds {constant}.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Problem(422, f"The key {key!r} is written twice in one object.")
        found[key] = value
    return found


def _check(value: Any, most: int) -> None:
    """Raise `Problem` for what is JSON, and cannot be kept."""
    for path, item in _walk(value, most):
        if isinstance(item, float) and not math.isfinite(item):
            raise Invalid(path, "must be a finite number; this one is too large")
        if isinstance(item, str) and ("\0" in item or any("\ud800" <= char <= "\udfff" for char in item)):
            raise Invalid(path, "must be text that can be kept, without NUL characters and lone surrogates")


def _walk(value: Any, most: int, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """All keys and all values that hold no others, each with its place."""
    if depth > most:
        raise _too_deep(most)
    if isinstance(value, dict):
        for key, item in value.items():
            yield path, key
            yield from _walk(item, most, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _walk(item, most, f"{path}[{number}]", depth + 1)
    else:
        yield path, value


def _too_deep(most: int) -> Problem:
    return Problem(422, f"The body must not be nested deeper than {most} levels.")
