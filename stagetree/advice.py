"""What would make a study cost less: sentences for people, from the study file alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stagetree.distributions import Distribution, LogUniform, RandInt, Uniform
from stagetree.sequences import SequenceError
from stagetree.space import Space
from stagetree.spec import StudySpec

__all__ = ["advice"]

_SAMPLES = 64
_LISTED = 4
"""How many values we propose to list in place of a drawn one."""

_BEGINNINGS = {"init", "value", "peak", "start", "then", "sequence", "parts", "values", "family"}
"""Fields of sequences that say how they begin; others say what comes later."""


def advice(spec: StudySpec) -> list[str]:
    """What would let trials of the study share more of their beginnings; empty where nothing is to be said."""
    if spec.space is None or not spec.merge or getattr(spec.tuner, "sampler", "random") == "grid":
        return []
    if spec.tuner.kind == "grid":
        return []
    return list(_drawn_beginnings(spec))


def _drawn_beginnings(spec: StudySpec) -> Iterator[str]:
    """Where hardly any two draws begin alike, what to write instead, and what that would save."""
    drawn = {name: _distinct(spec, name) for name in spec.space or {}}
    apart = [name for name, (beginnings, trials) in drawn.items() if trials > 1 and beginnings > trials / 2]
    if not apart:
        return
    places = [place for name in apart for place in _drawn(spec.search_space, name) if _is_beginning(place, name)]
    what, number = " and ".join(places or apart), _num_trials(spec)
    listed = max(2, min(_LISTED, int((number / 2) ** (1 / len(apart)))))
    trained = min(number, listed ** len(apart))
    yield (
        f"{what} {'is' if len(places or apart) == 1 else 'are'} drawn, so no two trials begin alike and nothing is "
        f"shared: list {listed} values{' each' if len(apart) > 1 else ''} and draw what comes later, such as a decay; "
        f"{number} trials then have {trained} beginnings to train, not {number}"
    )


def _distinct(spec: StudySpec, name: str) -> tuple[int, int]:
    """(different values at step 0, configurations that have the hyper-parameter) among some draws."""
    try:
        drawn = [spec.search_space.sample(spec.sampling_seed, number) for number in range(_SAMPLES)]
    except SequenceError:
        return 0, 0
    values = [configuration[name].at(0) for configuration in drawn if name in configuration]
    return len(set(values)), len(values)


def _drawn(space: Space, name: str) -> Mapping[str, Distribution]:
    """What is drawn from a range in the entry of a hyper-parameter."""
    inside = {place: free for place, free in space.parameters().items() if _entry_of(place) == name}
    return {place: free for place, free in inside.items() if isinstance(free, Uniform | LogUniform | RandInt)}


def _entry_of(place: str) -> str:
    if place.startswith("["):
        return place[2 : place.index("]") - 1]
    return place.split(".")[0].split("[")[0]


def _is_beginning(place: str, name: str) -> bool:
    last = place.rsplit(".", 1)[-1].split("[")[0]
    return place == name or last == name or last in _BEGINNINGS


def _num_trials(spec: StudySpec) -> int:
    tuner: Any = spec.tuner
    for field in ("num_trials", "population_size"):
        if (number := getattr(tuner, field, None)) is not None:
            return int(number)
    return _SAMPLES
