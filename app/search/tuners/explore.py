"""Other values near given ones: PBT's explore (ASHA paper, A.3), and how a trial's sequences change in the middle.

A value drawn from a distribution is multiplied by one of the factors and kept inside the bounds; a whole number, or one
of a range with steps, moves by one step at least, a choice to an option beside it; what the space holds fixed stays.
That goes for every distribution, wherever it stands in a sequence.
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
"""How often exploring is tried again where it gives no valid configuration, or the same one."""


class Explorer:
    """Explores around configurations of a study's space, with randomness from text keys alone."""

    def __init__(self, spec: StudySpec) -> None:
        tuner: Any = spec.tuner
        self._space, self._fixed = spec.search_space, frozenset(tuner.fixed)
        self._resample, self._factors = tuner.resample_probability, tuple(tuner.factors)

    def explore(self, hp: Mapping[str, Any], key: str) -> dict[str, Json]:
        """What to change in a configuration: for each name that changes, how, from what and to what."""
        for attempt in range(ATTEMPTS):
            try:
                changes = self._attempt(hp, f"{key}/{attempt}")
            except SequenceError:
                continue  # such as milestones that do not rise any more
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
        new = drawn(pattern, rng) if resampled else perturbed(pattern, value, rng, self._factors)
        return {
            "by": "resample" if resampled else "perturb",
            "from": value,
            "to": self._space.read(name, new).to_json(),
        }


def drawn(pattern: Any, rng: Random) -> Any:
    """A draw from a pattern of the space."""
    match pattern:
        case Choice():
            return drawn(pattern.options[pattern.at(rng.random())], rng)
        case Range():
            return pattern.at(rng.random())
        case dict():
            return {name: drawn(item, rng) for name, item in pattern.items()}
        case list():
            return [drawn(item, rng) for item in pattern]
    return pattern


def perturbed(pattern: Any, value: Any, rng: Random, factors: Sequence[float]) -> Any:
    """A value of the pattern near the given one; the same where nothing near is there."""
    value = bare(pattern, value)
    match pattern:
        case Choice():
            return _beside(pattern, value, rng, factors)
        case Range() if pattern.step is not None:
            return _stepped(pattern, value, factors[int(rng.random() * len(factors))])
        case Range():
            return pattern.near(value * factors[int(rng.random() * len(factors))])
        case dict() if is_fraction(pattern):
            return value  # so many steps, as when the trial began
        case dict():
            inside = [name for name in pattern if name in value]
            return {**value, **{name: perturbed(pattern[name], value[name], rng, factors) for name in inside}}
        case list():
            return [perturbed(item, old, rng, factors) for item, old in zip(pattern, value, strict=True)]
    return value


def _stepped(among: Range, value: Any, factor: float) -> Any:
    """Another of its values in the direction of the factor, or the one beside it on the other side of a bound."""
    up, down = among.near(value + among.step), among.near(value - among.step)
    moved = among.near(round(value * factor) if among.is_whole else value * factor)
    return next((near for near in (moved, *((up, down) if factor > 1 else (down, up))) if near != value), value)


def _beside(choice: Choice, value: Any, rng: Random, factors: Sequence[float]) -> Any:
    """The option before or after the one that the value comes from; of a single option, a value near."""
    fitting = (number for number, option in enumerate(choice.options) if values_of(option, "", value) is not None)
    if (number := next(fitting, None)) is None:
        return value
    if len(choice.options) == 1:
        return perturbed(choice.options[0], value, rng, factors)
    neighbours = [n for n in (number - 1, number + 1) if 0 <= n < len(choice.options)]
    return drawn(choice.options[neighbours[int(rng.random() * len(neighbours))]], rng)


# ------------------------------------------------------------------------------------------------ change in the middle


def spliced(before: Any, step: int, after: Any) -> Json:
    """The sequence `before` for the first `step` steps, then `after` as it would be there, in the absolute step.

    What the steps up to `step` are called in the search plan does not change, so whoever trained them has trained them
    for this sequence too.
    """
    skip = {} if after["family"] == "constant" else {"skip": step}
    return {"family": "piecewise", "parts": [*first_parts(before, step), {**skip, "sequence": after}]}
