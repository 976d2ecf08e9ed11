"""What would make a study cost less, or do what it was asked for: sentences for people, from the study file alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from stagetree.sequences import Sequence, SequenceError, end_of
from stagetree.space import LENGTH, Space
from stagetree.space.distinct import Distinct
from stagetree.space.distributions import Distribution, Range
from stagetree.spec import SpecError, StudySpec
from stagetree.spec.tuners import AshaTuner, AsyncHyperbandTuner, FixedTuner, HyperbandTuner, PbtTuner, ShaTuner
from stagetree.spec.tuners.early_stopping import CurveTuner
from stagetree.spec.tuners.halving import ENDLESS, LEAST_POINTS, boundary_of, most_points, sure_steps

__all__ = ["advice", "afterthoughts"]

_SAMPLES = 64
_LOOKED_AT = 1000
"""So many trials are looked at one by one."""

_RATES = ("lr", "learning_rate")
_LISTED = 4
"""How many values we propose to list in place of a drawn one."""

_BEGINNINGS = {"init", "value", "peak", "start", "then", "sequence", "parts", "values", "family"}
"""Fields of sequences that say how they begin; others say what comes later."""


CountSteps = Callable[[StudySpec], int | None]
"""The different steps that a study takes; None where they cannot be counted."""


def advice(spec: StudySpec, count_steps: CountSteps = lambda spec: None) -> list[str]:
    """What would let trials of the study share more of their beginnings, and how many steps that would save; and what
    a rule lacks that could never end a trial as it stands.

    Empty where there is no advice.
    """
    spec = spec.as_new()
    tuner: Any = spec.tuner
    has_cooldowns = getattr(tuner, "rung_value", None) is not None
    return [
        *_few_configurations(spec),
        *_never_to_the_end(spec),
        *_too_few_evaluations(spec),
        *(tuner.rung_value.fallen(spec, tuner.max_steps or tuner.min_steps) if has_cooldowns else ()),
        *_trained_at_zero(spec, count_steps),
        *_unshared(spec, count_steps),
    ]


def afterthoughts(spec: StudySpec, furthest: int) -> list[str]:
    """Advice on a study that is over, if no trial of it was trained past step `furthest`."""
    spec = spec.as_new()
    most = getattr(spec.tuner, "max_steps", None)
    if most is None or furthest >= most or not furthest > 0:
        return []
    finish = "; finish_best: 1 trains the best one to the end" if _can_finish(spec) else ""
    why = list(_never_to_the_end(spec))
    return [f"no trial was trained past step {furthest} of {most}{finish}", *why]


def _can_finish(spec: StudySpec) -> bool:
    return "finish_best" in type(spec.tuner).model_fields and not getattr(spec.tuner, "finish_best", None)


def _few_configurations(spec: StudySpec) -> Iterator[str]:
    """Where more trials are asked for than the space has different ones."""
    trials, different = _asked_for(spec), different_configurations(spec)
    if different is not None and trials is not None and different < trials:
        yield (
            f"{different} different, {trials} asked for: the space holds no more configurations, so the study has "
            f"{different} trials"
        )


def different_configurations(spec: StudySpec) -> int | None:
    """How many trials the space has for the study, none twice; None where there is no end, or repeats are drawn."""
    tuner: Any = spec.tuner
    if spec.space is None or not getattr(tuner, "distinct", None) or isinstance(tuner, PbtTuner):
        return None
    size = Distinct(spec.search_space, getattr(tuner, "max_steps", None), spec.first).size()
    return None if size is None else size + len(spec.first)


def _asked_for(spec: StudySpec) -> int | None:
    """How many trials the tuner begins, were there no end of configurations."""
    if isinstance(spec.tuner, HyperbandTuner):
        return sum(spec.tuner.widths()) * spec.tuner.loops
    number: int | None = getattr(spec.tuner, "num_trials", None)
    return number


def foretold_steps(spec: StudySpec) -> int | None:
    """The steps that some trial is sure to come to if none fails; None where the tuner makes no such promise.

    `sha`, `hyperband` and stopping rules bring one to `max_steps`; asynchronous promotion needs the trials for it.
    """
    trials, different = _asked_for(spec), different_configurations(spec)
    if spec.stop_hopeless is not None or trials is None:
        return None
    trials = trials if different is None else min(trials, different)
    return _reach(spec.tuner, trials)


def _reach(tuner: Any, trials: int) -> int | None:
    if isinstance(tuner, AsyncHyperbandTuner) or (isinstance(tuner, AshaTuner) and tuner.type == "promotion"):
        return sure_steps(trials, tuner.ladders(), tuner.reduction_factor) if tuner.max_steps else None
    is_sure = isinstance(tuner, ShaTuner | HyperbandTuner | AshaTuner)
    return tuner.max_steps if is_sure else None


def _never_to_the_end(spec: StudySpec) -> Iterator[str]:
    """Where a tuner has too few trials to be sure to bring one to `max_steps`, and what would do it."""
    tuner: Any = spec.tuner
    steps, most = foretold_steps(spec), int(getattr(tuner, "max_steps", None) or 0)
    if steps is None or steps >= most or tuner.finish_best:
        return
    trials = min(each for each in (_asked_for(spec), different_configurations(spec)) if each is not None)
    ways = [f"{_trials_needed(tuner, most):,} trials"] if different_configurations(spec) is None else []
    ways += [f"min_steps {least}" for least in _least_steps_needed(tuner, trials)]
    ways += ["type: stopping"] if _may_stop(tuner) else []
    yield (
        f"with {trials} trial{'s' if trials > 1 else ''} {tuner.kind} is sure to train one only to step {steps} of "
        f"{most}: for all {most} give {', or '.join([*ways, 'finish_best: 1'])}"
    )


def _trials_needed(tuner: Any, most: int) -> int:
    """The fewest trials with which one is sure to come to the end."""
    enough = 1
    while _reach(tuner, enough) != most:
        enough *= 2
    return bisect_left(range(1, enough + 1), True, key=lambda trials: _reach(tuner, trials) == most) + 1


def _least_steps_needed(tuner: Any, trials: int) -> Iterator[int]:
    """The lowest `min_steps` with which so many trials would do; nothing where only max_steps would."""
    for rungs in range(ENDLESS, 0, -1):
        least = -(-tuner.max_steps // tuner.reduction_factor ** (getattr(tuner, "early_stopping_rate", 0) + rungs))
        if (tuner.min_steps or 1) < least and _reach(
            tuner.model_copy(update={"min_steps": least}), trials
        ) == tuner.max_steps:
            yield least
            return


def _may_stop(tuner: Any) -> bool:
    return isinstance(tuner, AshaTuner) and tuner.brackets == 1 and tuner.promote_by != "predicted"


def _too_few_evaluations(spec: StudySpec) -> Iterator[str]:
    """Where trials come to the last decision about their curves with fewer evaluations than it needs."""
    tuner: Any = spec.tuner
    if spec.stop_hopeless is not None:
        name, chosen, most = "stop_hopeless", spec.stop_hopeless.boundary, spec.stop_hopeless.end(tuner)
    elif isinstance(spec.tuner, CurveTuner):
        name, chosen, most = tuner.kind, tuner.boundary, tuner.max_steps
    else:
        return
    points = most_points(boundary_of(chosen, most), spec.eval_every, most)
    if points < LEAST_POINTS < most:
        often = -(-most // 20)
        yield (
            f"{name} ends a trial by its curve from {LEAST_POINTS} evaluations on, and a trial has {points} when it is "
            f"last asked about, so none would end: give eval_every: {often} and boundary: {often * 2}"
        )


def _trained_at_zero(spec: StudySpec, count_steps: CountSteps) -> Iterator[str]:
    """Where the learning rate of trials has come to 0, and stays there, long before they end."""
    tuner = spec.tuner
    if spec.space is None or not isinstance(tuner, FixedTuner) or tuner.max_steps is None:
        return
    for name in _RATES:
        trials = [
            (configuration[name], steps)
            for configuration, steps in islice(tuner.with_steps(spec), _LOOKED_AT)
            if name in configuration
        ]
        ends = [(end_of(sequence), steps) for sequence, steps in trials if sequence.at(steps - 1) == 0]
        idle = [steps - end for end, steps in ends if end and end < steps]
        if idle:
            yield (
                f"{len(idle)} of {len(trials)} trials train at {name} 0 for {sum(idle)} steps: write max_steps: {{end: "
                f"{name}}} in the space and leave it out of the tuner{_with_ends(spec, name, count_steps)}"
            )


def _with_ends(spec: StudySpec, name: str, count_steps: CountSteps) -> str:
    """The steps saved by ending each trial with its learning rate; nothing where they cannot be counted."""
    written = spec.to_json()
    tuner = {field: value for field, value in written["tuner"].items() if field != LENGTH}
    try:
        ending = StudySpec.from_dict({**written, "tuner": tuner, "space": {**written["space"], LENGTH: {"end": name}}})
        now, then = count_steps(spec), count_steps(ending)
    except (SequenceError, SpecError):
        return ""
    return f": {then} steps instead of {now}, {1 - then / now:.0%} less" if now and then and then < now else ""


def _unshared(spec: StudySpec, count_steps: CountSteps) -> Iterator[str]:
    """What keeps trials from sharing beginnings, unless they shall not, or cross a grid."""
    is_grid = "grid" in (spec.tuner.kind, getattr(spec.tuner, "sampler", "random"))
    if spec.space is not None and spec.merge and not is_grid:
        yield from _drawn_beginnings(spec, count_steps)


def _drawn_beginnings(spec: StudySpec, count_steps: CountSteps) -> Iterator[str]:
    """Where hardly any two draws begin alike, what to write instead, and what that would save."""
    drawn = {name: _distinct(spec, name) for name in spec.space or {}}
    apart = [name for name, (beginnings, trials) in drawn.items() if trials > 1 and beginnings > trials / 2]
    if not apart:
        return
    places = [place for name in apart for place in _drawn(spec.search_space, name) if _is_beginning(place, name)]
    subject, number = " and ".join(places or apart), _num_trials(spec)
    listed = max(2, min(_LISTED, int((number / 2) ** (1 / len(apart)))))
    trained = listed ** len(apart)
    if trained >= number:
        return
    yield (
        f"{subject} {'is' if len(places or apart) == 1 else 'are'} drawn, so no two trials begin alike and nothing is "
        f"shared: list {listed} values{' each' if len(apart) > 1 else ''} and draw what comes later, such as a decay; "
        f"{number} trials then have {trained} beginnings to train, not {number}"
        f"{_in_steps(spec, apart, listed, count_steps)}"
    )


def _in_steps(spec: StudySpec, apart: list[str], listed: int, count_steps: CountSteps) -> str:
    """What the advice saves, if trials part half-way; nothing where that cannot be counted."""
    now, then = count_steps(spec), _parting_half_way(spec, apart, listed)
    fewer = None if then is None else count_steps(then)
    if not now or fewer is None or fewer >= now:
        return ""
    return f": if they part half-way, {fewer} steps instead of {now}, {1 - fewer / now:.0%} less"


def _parting_half_way(spec: StudySpec, apart: list[str], listed: int) -> StudySpec | None:
    """The study with a few listed beginnings, and what was drawn drawn from half of its steps on."""
    steps = getattr(spec.tuner, "max_steps", None)
    if not steps or steps < 2:
        return None
    written = {name: value for name, value in spec.to_json().items() if name != "where"}
    try:
        some = [spec.search_space.sample(spec.sampling_seed, number) for number in range(listed)]
        parting = {name: _half_way(written["space"][name], _written(some, name), steps // 2) for name in apart}
        return StudySpec.from_dict({**written, "space": written["space"] | parting})
    except (SequenceError, SpecError):
        return None


def _written(configurations: list[dict[str, Sequence]], name: str) -> list[Any]:
    """The different sequences of a hyper-parameter, where a configuration has it."""
    written = [configuration[name].to_json() for configuration in configurations if name in configuration]
    return [each for number, each in enumerate(written) if each not in written[:number]]


def _half_way(entry: Any, beginnings: list[Any], steps: int) -> Any:
    return {"family": "piecewise", "parts": [{"steps": steps, "sequence": {"choice": beginnings}}, {"sequence": entry}]}


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
    return {place: free for place, free in inside.items() if isinstance(free, Range)}


def _entry_of(place: str) -> str:
    if place.startswith("["):
        return place[2 : place.index("]") - 1]
    return place.split(".")[0].split("[")[0]


def _is_beginning(place: str, name: str) -> bool:
    place = place.partition(".mix.")[0]  # all weights are of one value
    last = place.rsplit(".", 1)[-1].split("[")[0]
    return place == name or last == name or last in _BEGINNINGS


def _num_trials(spec: StudySpec) -> int:
    tuner: Any = spec.tuner
    for field in ("num_trials", "population_size"):
        if (number := getattr(tuner, field, None)) is not None:
            return int(number)
    return _SAMPLES
