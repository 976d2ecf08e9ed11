"""What pydantic found wrong with a field, as a sentence of our own; and models that say so when they are made."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from stagetree.sequences import SequenceError, did_you_mean
from stagetree.spec.errors import Problem, SpecError, joined, shown
from stagetree.spec.fields import OTHER_NAMES, SpecModel


class SpecPart(SpecModel):
    """A part of a study, which is made by itself in Python. Raises `SpecError` with every problem there is."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SpecError([_problem(detail, type(self)) for detail in error.errors()]) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # within a study, the study says what is wrong


def _problem(detail: ErrorDetails, part: type[BaseModel]) -> Problem:
    loc, error = detail["loc"], detail.get("ctx", {}).get("error")
    if isinstance(error, SequenceError):
        return Problem(joined(*loc, error.field), error.problem)
    owner, names = _inside(part, loc)
    return Problem(joined(*(part for part in loc if part != "[key]")), sentence(detail, owner, str(names[0])))


def _inside(part: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[type[BaseModel], tuple[int | str, ...]]:
    """The model that a place belongs to, where the part has a list of models, and the rest of the path in it."""
    field = part.model_fields.get(str(loc[0]))
    inner = next(iter(get_args(field.annotation)), None) if field else None
    if len(loc) > 2 and isinstance(inner, type) and issubclass(inner, BaseModel):
        return inner, loc[2:]
    return part, loc


def sentence(detail: ErrorDetails, owner: type[BaseModel], name: str) -> str:
    """What would be right for the field `name` of a model."""
    got = shown(detail["input"])
    known = [field for field in owner.model_fields if field != "kind"]
    match detail["type"]:
        case "extra_forbidden" if field := next((field for field in known if name in OTHER_NAMES.get(field, ())), ""):
            return f"is another name for {field}, which is there already"
        case "extra_forbidden":
            return f"is not a field here: there are {', '.join(known)}{did_you_mean(name, known)}"
        case "missing":
            return f"is missing: {_description(owner, name)}"
        case "model_type" if not _description(owner, name).startswith("an object"):
            return f"must be an object with hp and steps, got {got}"
        case _ if detail["loc"][-1] == "[key]":
            return f"must be a string, as all keys, got {got}"
        case _:
            return f"must be {_description(owner, name)}, got {got}"


def _description(owner: type[BaseModel], name: str) -> str:
    for field, info in owner.model_fields.items():
        if name in (field, *OTHER_NAMES.get(field, ())):
            return str(info.description)
    raise AssertionError(f"{owner.__name__} has no field {name}")
