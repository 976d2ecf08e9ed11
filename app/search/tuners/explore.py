"""PBT's explore (ASHA paper, A.3): new values near given ones, and changing a trial's sequences midway.

A value of a distribution is multiplied by one of the factors and kept inside its bounds. A whole number, or a value of
a range with steps, moves by at least one step, a choice to a neighbouring option. Values that the space fixes stay.
This holds for every distribution, also inside a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from stagetree.sequences import SequenceError, first_parts, is_fraction, is_same_value, parse
from stagetree.space import Choice, Range
from stagetree.space.patterns import bare, values_of
from stagetree.spec import StudySpec

Hp = dict[str, Any]
Json = dict[str, Any]

ATTEMPTS = 20
"""How often exploring is retried if it gives no valid configuration, or the same one."""


class Explorer:
    """Explores around configurations of a study's space. Its random numbers are seeded by text keys only."""

    def __init__(self, spec: StudySpec) -> None:
        tuner: Any = spec.tuner
        self._space, self._fixed = spec.search_space, frozenset(tuner.fixed)
        self._resample, self._factors = tuner.resample_probability, tuple(tuner.factors)

    def explore(self, hp: Mapping[str, Any], key: str) -> dict[str, Json]:
        """The changes of a configuration: for each changed name, how, from which value and to which."""
        for attempt in range(ATTEMPTS):
            try:
                changes = self._attempt(hp, f"{key}/{attempt}")
            except SequenceError:
                continue  # such as milestones that no longer ascend
            explored = {**hp, **{name: change["to"] for name, change in changes.items()}}
            if changes and self._space.allows({name: parse(value) for name, value in explored.items()}):
                return changes
        return {}

    def _attempt(self, hp: Mapping[str, Any], key: str) -> dict[str, Json]:
        free = [name for name in hp if name not in self._fixed]
        tried = {name: self._change(name, hp[name], Random(f"{key}/{name}")) for name in free}
        return {name: change for name, change in tried.items() if not is_same_value(change["to"], change["from"])}

    def _change(self, name: str, value: Any, rng: Random) -> Json:
        pattern = self._space.patterns[name]
        resampled = rng.random() < self._resample
        new = sample_pattern(pattern, rng) if resampled else perturb(pattern, value, rng, self._factors)
        return {
            "by": "resample" if resampled else "perturb",
            "from": value,
            "to": self._space.read(name, new).to_json(),
        }


def sample_pattern(pattern: Any, rng: Random) -> Any:
    """A random value of a pattern of the space."""
    match pattern:
        case Choice():
            return sample_pattern(pattern.options[pattern.at(rng.random())], rng)
        case Range():
            return pattern.at(rng.random())
        case dict():
            return {name: sample_pattern(item, rng) for name, item in pattern.items()}
        case list():
            return [sample_pattern(item, rng) for item in pattern]
    return pattern


def perturb(pattern: Any, value: Any, rng: Random, factors: Sequence[float]) -> Any:
    """A value of the pattern near the given one; the same if there is none."""
    value = bare(pattern, value)
    match pattern:
        case Choice():
            return _neighbour(pattern, value, rng, factors)
        case Range() if pattern.step is not None:
            return _step(pattern, value, factors[int(rng.random() * len(factors))])
        case Range():
            return pattern.near(value * factors[int(rng.random() * len(factors))])
        case dict() if is_fraction(pattern):
            return value  # a fraction of the trial's length stays
        case dict():
            inside = [name for name in pattern if name in value]
            return {**value, **{name: perturb(pattern[name], value[name], rng, factors) for name in inside}}
        case list():
            return [perturb(item, old, rng, factors) for item, old in zip(pattern, value, strict=True)]
    return value


def _step(among: Range, value: Any, factor: float) -> Any:
    """Another value in the direction of the factor, or the neighbour on the other side at a bound."""
    up, down = among.near(value + among.step), among.near(value - among.step)
    moved = among.near(round(value * factor) if among.is_whole else value * factor)
    return next((near for near in (moved, *((up, down) if factor > 1 else (down, up))) if near != value), value)


def _neighbour(choice: Choice, value: Any, rng: Random, factors: Sequence[float]) -> Any:
    """The option before or after the current one; for a single option, a value near."""
    fitting = (number for number, option in enumerate(choice.options) if values_of(option, "", value) is not None)
    if (number := next(fitting, None)) is None:
        return value
    if len(choice.options) == 1:
        return perturb(choice.options[0], value, rng, factors)
    neighbours = [n for n in (number - 1, number + 1) if 0 <= n < len(choice.options)]
    return sample_pattern(choice.options[neighbours[int(rng.random() * len(neighbours))]], rng)


def splice(before: Any, step: int, after: Any) -> Json:
    """The sequence `before` for the first `step` steps, then `after` as if it had begun at step 0.

    The names of the nodes up to `step` do not change, so their training is shared.
    """
    skip = {} if after["family"] == "constant" else {"skip": step}
    return {"family": "piecewise", "parts": [*first_parts(before, step), {**skip, "sequence": after}]}
