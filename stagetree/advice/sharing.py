"""Advice that lets trials share more steps, or that prevents wasted ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from stagetree.advice.horizons import horizon_advice
from stagetree.advice.tuning import RATES, num_trials, sample_configurations, tuner_advice
from stagetree.advice.values import value_advice
from stagetree.sequences import Sequence, SequenceError, last_change
from stagetree.space import LENGTH, Space
from stagetree.space.distributions import Distribution, Range
from stagetree.spec import SpecError, StudySpec
from stagetree.spec.tuners import FixedTuner

__all__ = ["advice"]

_MAX_TRIALS = 1000
"""How many trials are examined individually, and counted where a study is compared with another way to write it."""

_LISTED = 4
"""How many values we propose instead of a range."""

_BEGINNINGS = {"init", "value", "peak", "start", "then", "sequence", "parts", "values", "family"}
"""Fields of sequences that determine their first steps. The others take effect later."""


CountSteps = Callable[[StudySpec], int | None]
"""Counts the unique steps of a study; None if they cannot be counted."""


def advice(spec: StudySpec, count_steps: CountSteps = lambda spec: None) -> list[str]:
    """Advice on a study that has not run: how its trials could share more steps and what that saves, and rules that can
    never take effect.

    Empty if there is none.
    """
    tuner: Any = spec.tuner
    has_cooldowns = getattr(tuner, "rung_value", None) is not None
    return [
        *value_advice(spec),
        *_best_state_unkept(spec),
        *tuner_advice(spec),
        *(tuner.rung_value.decay_warnings(spec, tuner.max_steps or tuner.min_steps) if has_cooldowns else ()),
        *_steps_at_zero(spec, count_steps),
        *horizon_advice(spec, count_steps),
        *_reasons_against_sharing(spec, count_steps),
    ]


def _best_state_unkept(spec: StudySpec) -> Iterator[str]:
    """Warn if the state after a trial's best step is kept only by chance."""
    every, kept = spec.eval_every, spec.keep_every
    knows_none = every % kept > 0 if every and kept else spec.repeats != 1
    if spec.value == "best" and spec.keep_best and every and knows_none:
        yield (
            f"with value: best a trial's weights are those of its best step, and "
            f"{f'keep_every: {kept}' if kept else 'with repeats'} keeps the state there only by chance: "
            f"keep_every: {every} keeps one at each evaluation"
        )


def _steps_at_zero(spec: StudySpec, count_steps: CountSteps) -> Iterator[str]:
    """Warn if learning rates reach 0 long before trials end."""
    tuner = spec.tuner
    if spec.space is None or not isinstance(tuner, FixedTuner) or tuner.max_steps is None:
        return
    if not (rates := [name for name in RATES if name in spec.space]):
        return
    first = list(islice(tuner.configurations_with_steps(spec), _MAX_TRIALS))
    for name in rates:
        trials = [(configuration[name], steps) for configuration, steps in first if name in configuration]
        ends = [(last_change(sequence), steps) for sequence, steps in trials if sequence.at(steps - 1) == 0]
        idle = [steps - end for end, steps in ends if end and end < steps - 1]  # a schedule may end in its last step
        if idle:
            yield (
                f"{len(idle)} of {len(trials)} trials train at {name} 0 for {sum(idle)} steps: write max_steps: {{end: "
                f"{name}}} in the space and leave it out of the tuner{_savings_by_ending(spec, name, count_steps)}"
            )


def _savings_by_ending(spec: StudySpec, name: str, count_steps: CountSteps) -> str:
    """The steps saved by ending each trial when its learning rate reaches 0; empty if they cannot be counted."""
    written = spec.to_json()
    tuner = {field: value for field, value in written["tuner"].items() if field != LENGTH}
    try:
        ending = StudySpec.from_dict({**written, "tuner": tuner, "space": {**written["space"], LENGTH: {"end": name}}})
        compared = _compare(spec, ending, count_steps)
    except (SequenceError, SpecError):
        return ""
    return f": {compared}" if compared else ""


def _compare(spec: StudySpec, other: StudySpec, count_steps: CountSteps) -> str:
    """How much fewer steps another way to write a study takes; empty if not fewer, or if they cannot be counted."""
    first = _first_trials(spec)
    now, then = count_steps(first), count_steps(_first_trials(other))
    if not now or then is None or then >= now:
        return ""
    among = "" if first is spec else f" among the first {_MAX_TRIALS} trials"
    return f"{then} steps instead of {now}, {1 - then / now:.0%} less{among}"


def _first_trials(spec: StudySpec) -> StudySpec:
    """The study of its first trials, if it has many: people wait while they are counted."""
    if getattr(spec.tuner, "num_trials", 0) <= 2 * _MAX_TRIALS:
        return spec
    written = spec.to_json()
    return StudySpec.from_dict({**written, "tuner": {**written["tuner"], "num_trials": _MAX_TRIALS}})


def _reasons_against_sharing(spec: StudySpec, count_steps: CountSteps) -> Iterator[str]:
    """Reasons why trials do not share steps, unless sharing is disabled or the tuner is a grid."""
    is_grid = "grid" in (spec.tuner.kind, getattr(spec.tuner, "sampler", "random"))
    if spec.space is not None and spec.merge and not is_grid:
        yield from _drawn_beginnings(spec, count_steps)


def _drawn_beginnings(spec: StudySpec, count_steps: CountSteps) -> Iterator[str]:
    """Warn if almost no two samples begin alike, with an alternative and its savings."""
    drawn = {name: _count_distinct(spec, name) for name in spec.space or {}}
    apart = [name for name, (beginnings, trials) in drawn.items() if trials > 1 and beginnings > trials / 2]
    if not apart:
        return
    places = [place for name in apart for place in _ranges(spec.search_space, name) if _is_beginning(place, name)]
    subject, number = " and ".join(places or apart), num_trials(spec)
    listed = max(2, min(_LISTED, int((number / 2) ** (1 / len(apart)))))
    trained = listed ** len(apart)
    if trained >= number:
        return
    yield (
        f"{subject} {'is' if len(places or apart) == 1 else 'are'} drawn, so no two trials begin alike and nothing is "
        f"shared: list {listed} values{' each' if len(apart) > 1 else ''} and draw what comes later, such as a decay; "
        f"{number} trials then have {trained} beginnings to train, not {number}"
        f"{_savings_text(spec, apart, listed, count_steps)}"
    )


def _savings_text(spec: StudySpec, apart: list[str], listed: int, count_steps: CountSteps) -> str:
    """The savings if trials branch half-way; empty if they cannot be counted."""
    then = _branching_half_way(spec, apart, listed)
    compared = "" if then is None else _compare(spec, then, count_steps)
    return f": if they part half-way, {compared}" if compared else ""


def _branching_half_way(spec: StudySpec, apart: list[str], listed: int) -> StudySpec | None:
    """The study with a few listed beginnings, and the sampled values used only from half of its steps on."""
    steps = getattr(spec.tuner, "max_steps", None)
    if not steps or steps < 2:
        return None
    written = {name: value for name, value in spec.to_json().items() if name != "where"}
    try:
        some = [spec.search_space.sample(spec.sampling_seed, number) for number in range(listed)]
        parting = {name: _half_way(written["space"][name], _unique_sequences(some, name), steps // 2) for name in apart}
        return StudySpec.from_dict({**written, "space": written["space"] | parting})
    except (SequenceError, SpecError):
        return None


def _unique_sequences(configurations: list[dict[str, Sequence]], name: str) -> list[Any]:
    """The unique sequences of a hyper-parameter among configurations that have it."""
    written = [configuration[name].to_json() for configuration in configurations if name in configuration]
    return [each for number, each in enumerate(written) if each not in written[:number]]


def _half_way(entry: Any, beginnings: list[Any], steps: int) -> Any:
    return {"family": "piecewise", "parts": [{"steps": steps, "sequence": {"choice": beginnings}}, {"sequence": entry}]}


def _count_distinct(spec: StudySpec, name: str) -> tuple[int, int]:
    """(unique values at step 0, configurations that have the hyper-parameter) among some samples."""
    values = [configuration[name].at(0) for configuration in sample_configurations(spec) if name in configuration]
    return len(set(values)), len(values)


def _ranges(space: Space, name: str) -> Mapping[str, Distribution]:
    """The ranges in the entry of a hyper-parameter."""
    inside = {place: free for place, free in space.parameters().items() if _entry(place) == name}
    return {place: free for place, free in inside.items() if isinstance(free, Range)}


def _entry(place: str) -> str:
    if place.startswith("["):
        return place[2 : place.index("]") - 1]
    return place.split(".")[0].split("[")[0]


def _is_beginning(place: str, name: str) -> bool:
    place = place.partition(".mix.")[0]  # all weights are of one value
    last = place.rsplit(".", 1)[-1].split("[")[0]
    return place == name or last == name or last in _BEGINNINGS
