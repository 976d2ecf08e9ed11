"""The JSON of studies that are written in Python, and the lookup of studies by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagetree.errors import NotFound

if TYPE_CHECKING:
    from stagetree.client.http import Http, Json
    from stagetree.spec import StudySpec
    from stagetree.spec.errors import Problem

Folder = str | PathLike[str]

LAST = "last"
"""The newest study, as on the command line."""


def body_of(spec: StudySpec | Mapping[str, Any]) -> Json:
    """The JSON of a study, with absolute paths: relative ones begin in this process's folder.

    Raises `SpecError` for a function instead of a trainer's name, and for objects that are not JSON.
    """
    from stagetree.space.distributions import plain
    from stagetree.spec import StudySpec
    from stagetree.spec.errors import Problem, SpecError, trainer_name_hint
    from stagetree.spec.trainer_inputs import absolute

    if isinstance(spec, Mapping) and (problem := trainer_name_hint(spec.get("trainer"))):
        raise SpecError([Problem("trainer", problem)])
    if isinstance(spec, Mapping) and callable(spec.get("where")):
        spec = StudySpec(**spec)
    body = plain(spec) if isinstance(spec, Mapping) else spec.to_json()
    if problems := list(_not_json(body, "")):
        raise SpecError(problems)
    return absolute(body, Path.cwd())


def study_body(spec: StudySpec | Mapping[str, Any] | None, fields: Mapping[str, Any]) -> Json:
    """The JSON of a study given as a spec, by fields, or as a spec with some fields replaced. Raises `SpecError`."""
    from stagetree.spec.errors import Problem, SpecError

    given = {} if spec is None else dict(spec) if isinstance(spec, Mapping) else spec.to_json()
    merged = {**given, **fields}
    if merged.get("space") is not None and merged.get("tuner") is None:
        how = "it says how to search the space, such as GridTuner(max_steps=10); without both, `eval` asks for trials"
        raise SpecError([Problem("tuner", f"is missing: {how}")])
    return body_of({"tuner": {"kind": "external"}, **merged})


def _not_json(value: Any, path: str) -> Iterator[Problem]:
    """A problem for each value that cannot be sent."""
    from stagetree.spec.errors import Problem, shorten

    if value is None or isinstance(value, bool | int | float | str):
        return
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _not_json(item, f"{path}[{number}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _not_json(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, type):
        name = value.__name__
        yield Problem(path, f"must be JSON or an object such as {name}(...), got the class {name} itself")
    elif isinstance(value, set | frozenset):
        yield Problem(path, f"must be a list, since a set has no order, got {shorten(value)}")
    else:
        yield Problem(path, f"must be JSON, a sequence, a distribution or a tuner, got {shorten(value)}")


async def find_study_id(http: Http, meant: str) -> str:
    """The id of the newest study of this name, or of the newest study for `last`. Raises `NotFound`."""
    listed = await http.get("/studies", limit=1, name=None if meant == LAST else meant)
    if not listed["items"]:
        raise NotFound(404, "Not Found", f"there is no study with the id or the name {meant}")
    return str(listed["items"][0]["study"])
