"""Search spaces of Ray Tune, as the dict that is passed to `Tuner` as `param_space`.

Ray's own objects are read by their names and public attributes, so that Ray need not be installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagetree.importers.draft import Draft
from stagetree.importers.values import choice, constant, evenly, multiples
from stagetree.sequences import SequenceError
from stagetree.space import plain
from stagetree.space.notation import lograndint, loguniform, normal, randint

DOMAINS = ("Categorical", "Float", "Integer", "Function")
"""The classes of Ray's distributions."""


def is_domain(value: Any) -> bool:
    """Whether a value is one of Ray's distributions."""
    return type(value).__name__ in DOMAINS and "ray" in type(value).__module__.split(".")


def is_ray(content: Any) -> bool:
    """Whether a dict has one of Ray's distributions or a `grid_search`, at any depth."""
    if not isinstance(content, Mapping):
        return False
    return any(is_domain(each) or _is_grid(each) or is_ray(each) for each in content.values())


def _is_grid(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() == {"grid_search"}


def read_ray(content: Mapping[str, Any]) -> Draft:
    """The draft of a study from a space. A space of `grid_search` alone is a grid, and any other is drawn."""
    draft, kinds = Draft(), set[str]()
    _read(content, draft, "", kinds)
    if kinds == {"grid", "drawn"}:
        draft.refuse("", "crosses grid_search with draws: write one of both, grid_search as choice")
    draft.tuner["kind"] = "grid" if kinds == {"grid"} else "random"
    return draft


def _read(content: Mapping[str, Any], draft: Draft, before: str, kinds: set[str]) -> None:
    for name, value in content.items():
        at = f"{before}{name}"
        if _is_grid(value):
            kinds.add("grid")
            draft.add(at, at, lambda value=value, at=at: choice(value["grid_search"], f"{at}.grid_search"))  # type: ignore[misc]
        elif is_domain(value):
            kinds.add("drawn")
            draft.add(at, at, lambda value=value, at=at: _domain(value, at))  # type: ignore[misc]
        elif isinstance(value, Mapping):
            _read(value, draft, f"{at}.", kinds)
        else:
            draft.add(at, at, lambda value=value, at=at: constant(value, at))  # type: ignore[misc]


def _domain(domain: Any, at: str) -> Any:
    kind = type(domain).__name__
    if kind == "Categorical":
        return choice(list(domain.categories), at)
    if kind == "Function":
        raise SequenceError(
            at, "is sample_from, a function: write when for what exists only if, or where for combinations"
        )
    sampler, step = domain.get_sampler(), None
    if type(sampler).__name__ == "Quantized":
        sampler, step = sampler.get_sampler(), sampler.q
    name = type(sampler).__name__.strip("_")
    if kind == "Integer":
        return _integers(domain, step, name, at)
    if name == "Normal":
        return plain(normal(sampler.mean, sampler.sd, step=step))
    is_log = name == "LogUniform"
    if step is not None:
        return multiples(domain.lower, domain.upper, float(step), at, is_log=is_log)
    return plain(loguniform(domain.lower, domain.upper)) if is_log else evenly(domain.lower, domain.upper)


def _integers(domain: Any, step: Any, name: str, at: str) -> Any:
    """Ray's integers are without the upper bound, unless they are rounded to a step."""
    low, high = domain.lower, domain.upper
    if step not in (None, 1):
        return multiples(low, high, int(step), at, is_log=name == "LogUniform")
    return plain((lograndint if name == "LogUniform" else randint)(low, high - (step is None)))
