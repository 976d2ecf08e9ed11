"""What pydantic found wrong with a study, said as our own problems."""

from __future__ import annotations

from typing import get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from stagetree.sequences import SequenceError, did_you_mean
from stagetree.space.where import WhereError
from stagetree.spec.errors import Problem, joined
from stagetree.spec.sentences import sentence
from stagetree.spec.tuners import KINDS
from stagetree.spec.tuners.fixed import TrialSpec


def problem_in(detail: ErrorDetails, study: type[BaseModel]) -> Problem:
    """What pydantic found in the fields of a study, as a path and a sentence."""
    owner, names = _owner(detail["loc"], study)
    path = joined(*(part for number, part in enumerate(detail["loc"]) if not _is_tag(detail["loc"], number)))
    error = detail.get("ctx", {}).get("error")
    if isinstance(error, SequenceError):
        return Problem("where" if isinstance(error, WhereError) else joined(path, error.field), error.problem)
    if detail["type"].startswith("union_tag"):
        path = f"{path}.kind"
    return Problem(path, _sentence(detail, owner, str(names[0]) if names else ""))


def _sentence(detail: ErrorDetails, owner: type[BaseModel], name: str) -> str:
    match detail["type"]:
        case "union_tag_not_found":
            return f"is missing: one of {', '.join(KINDS)}"
        case "union_tag_invalid":
            kind = detail["ctx"]["tag"]
            return f"must be one of {', '.join(KINDS)}, got {kind!r}{did_you_mean(kind, KINDS)}"
    return sentence(detail, owner, name)


def _owner(loc: tuple[int | str, ...], study: type[BaseModel]) -> tuple[type[BaseModel], tuple[int | str, ...]]:
    """The model that a place belongs to, and the rest of the path in it."""
    if len(loc) > 1 and (part := _part(study, str(loc[0]))) is not None:
        return part, loc[1:]
    if loc[:1] != ("tuner",) or len(loc) == 1:
        return study, loc
    if loc[1:3] == ("trials", "trials") and len(loc) > 4:
        return TrialSpec, loc[4:]
    return KINDS[str(loc[1])], loc[2:]


def _part(study: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The model of a field that is one object, or nothing."""
    kinds = get_args(study.model_fields[name].annotation) if name in study.model_fields else ()
    parts = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return parts[0] if len(parts) == 1 else None


def _is_tag(loc: tuple[int | str, ...], number: int) -> bool:
    """Whether a part of a place is not in the user's object, but pydantic's own: the kind of the tuner."""
    return (number == 1 and loc[0] == "tuner") or loc[number] == "[key]"
