"""Advice that lets trials share more steps, or that prevents wasted ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Any

from stagetree.advice.tuning import RATES, num_trials, sample_configurations, tuner_advice, warmup_end
from stagetree.advice.values import value_advice
from stagetree.sequences import Sequence, SequenceError, Wsd, last_change, unique_values
from stagetree.space import LENGTH
from stagetree.space.distributions import Range
from stagetree.spec import SpecError, StudySpec
from stagetree.spec.tuners import FixedTuner
from stagetree.spec.tuners.fixed import TrialsTuner

_MAX_TRIALS = 1000
"""How many trials are examined individually, and counted where a study is compared with another way to write it.

Studies of more trials get no advice on their horizons."""

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
        *_drawn_beginnings(spec, count_steps),
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


def _drawn_beginnings(spec: StudySpec, count_steps: CountSteps) -> Iterator[str]:
    """Warn if almost no two samples begin alike, with an alternative and its savings."""
    is_grid = "grid" in (spec.tuner.kind, spec.sampler)
    if spec.space is None or not spec.merge or is_grid:
        return
    drawn = {name: _count_distinct(spec, name) for name in spec.space}
    apart = [name for name, (beginnings, trials) in drawn.items() if trials > 1 and beginnings > trials / 2]
    if not apart:
        return
    ranges = [place for place, free in spec.search_space.parameters().items() if isinstance(free, Range)]
    places = [each for name in apart for each in ranges if _entry(each) == name and _is_beginning(each, name)]
    subject, number = " and ".join(places or apart), num_trials(spec)
    listed = max(2, min(_LISTED, int((number / 2) ** (1 / len(apart)))))
    trained = listed ** len(apart)
    if trained >= number:
        return
    then = _branching_half_way(spec, apart, listed)
    compared = "" if then is None else _compare(spec, then, count_steps)
    shared = "no two trials begin alike and nothing is shared"
    if spec.sampler == "trunks":
        shared = "no two random trials begin alike, and only branches that the sampler trunks proposes share steps"
    yield (
        f"{subject} {'is' if len(places or apart) == 1 else 'are'} drawn, so {shared}: "
        f"list {listed} values{' each' if len(apart) > 1 else ''} and draw what comes later, such as a decay; "
        f"{number} trials then have {trained} beginnings to train, not {number}"
        f"{f': if they part half-way, {compared}' if compared else ''}"
    )


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


def _entry(place: str) -> str:
    """The hyper-parameter that a place in the space belongs to."""
    if place.startswith("["):
        return place[2 : place.index("]") - 1]
    return place.split(".")[0].split("[")[0]


def _is_beginning(place: str, name: str) -> bool:
    place = place.partition(".mix.")[0]  # all weights are of one value
    last = place.rsplit(".", 1)[-1].split("[")[0]
    return place == name or last == name or last in _BEGINNINGS


TAIL = 0.2
"""The decay that we propose, as a share of the length: Hägele et al. (2024) find 0.2 as good as a cosine. See also
docs/which-decay.md.
"""

WORTHWHILE = 0.1
"""The least share of the steps that a proposal must save."""

NEAR_ZERO = 0.01
"""A schedule that ends at this share of its peak or below falls to 0: in its last step it is not there yet."""

_SHOWN = 4
"""The most peaks that are written out in a proposal."""

Trial = tuple[dict[str, Sequence], int]
"""A configuration and the length of its trial."""


def horizon_advice(spec: StudySpec, count_steps: CountSteps) -> Iterator[str]:
    """Advise `wsd` for a learning rate that falls over the whole length, if trials have several lengths.

    A schedule that falls over the whole length differs from step 0 on between lengths. `wsd` with a short decay shares
    all but the decays, and ends as well (Hägele et al. 2024). The steps of the study are counted, and so are the steps
    of the same trials with `wsd`.
    """
    may_differ = spec.merge and getattr(spec.tuner, "max_steps", None) is None
    trials = list(islice(_trials(spec), _MAX_TRIALS + 1)) if may_differ else []
    lengths = sorted({steps for _, steps in trials})
    if len(lengths) < 2 or len(trials) > _MAX_TRIALS:
        return
    for name in RATES:
        stretched = [each for hp, steps in trials if name in hp and (each := falls_throughout(hp[name], steps))]
        if len(stretched) < len(trials):
            continue
        flat: list[Trial] = [({**hp, name: each}, steps) for (hp, steps), each in zip(trials, stretched, strict=True)]
        now, then = count_steps(spec), _count(spec, flat, count_steps)
        if now and then and then <= (1 - WORTHWHILE) * now:
            yield (
                f"{name} falls over the whole length of its trial, so trials of {len(lengths)} lengths share next to "
                f"nothing: as wsd with a tail of a fifth they take {then} steps instead of {now}, {1 - then / now:.0%} "
                f"less: write {name}: {_proposal(stretched)}"
            )


def _trials(spec: StudySpec) -> Iterator[Trial]:
    if isinstance(spec.tuner, TrialsTuner):
        yield from ((trial.configuration(), trial.steps) for trial in spec.tuner.trials)
    elif isinstance(spec.tuner, FixedTuner):
        yield from spec.tuner.configurations_with_steps(spec)


def falls_throughout(sequence: Sequence, steps: int) -> Wsd | None:
    """The `wsd` to propose for a schedule that falls from the end of its warm-up to the end of its trial, else None."""
    begin, tail = warmup_end(sequence), round(TAIL * steps)
    span = steps - 1 - begin
    if span < 4 or tail < 1 or begin > steps - tail:
        return None
    some = [sequence.at(begin + span * part // 4) for part in range(5)]
    values = [float(value) for value in some if isinstance(value, int | float)]
    if len(values) < len(some) or not _is_falling(values):
        return None
    peak, *_, final = values
    return Wsd(peak, begin, steps - tail, tail, final)


def _is_falling(values: list[float]) -> bool:
    """Whether each quarter of the way ends lower than it begins, and the whole at half or less."""
    return all(after < before for before, after in pairwise(values)) and 0 <= 2 * values[-1] <= values[0]


def _count(spec: StudySpec, trials: list[Trial], count_steps: CountSteps) -> int | None:
    """The unique steps of the study if it listed these trials."""
    written = {name: value for name, value in spec.to_json().items() if name not in ("space", "where", "tuner")}
    listed = [{"hp": {name: each.to_json() for name, each in hp.items()}, "steps": steps} for hp, steps in trials]
    try:
        return count_steps(StudySpec.from_dict({**written, "tuner": {"kind": "trials", "trials": listed}}))
    except (SequenceError, SpecError):
        return None


def _proposal(proposed: list[Wsd]) -> str:
    """How the space would write these schedules: to 0, unless all fall to the same other value."""
    peak, warmup = (_written([getattr(each, field) for each in proposed]) for field in ("peak", "warmup"))
    finals = {_written([each.final]) for each in proposed if each.final > NEAR_ZERO * each.peak}
    end = f", final: {finals.pop()}" if len(finals) == 1 else ""
    return f"{{family: wsd, peak: {peak}, warmup: {warmup}, decay: {{ratio: {TAIL}}}{end}}}"


def _written(values: list[float]) -> str:
    unique = [f"{value:.6g}" for value in unique_values(values)]
    if len(unique) == 1:
        return unique[0]
    return f"{{choice: [{', '.join(unique[:_SHOWN])}{', ...' if len(unique) > _SHOWN else ''}]}}"
