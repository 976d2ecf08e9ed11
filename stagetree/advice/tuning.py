"""Advice on tuners that cannot do their task as configured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Any

from stagetree.sequences import InverseSqrt, OneCycle, Sequence, SequenceError, Warmup, Wsd, last_change
from stagetree.sequences.forms import Piece
from stagetree.space.distinct import UniqueSamples
from stagetree.spec import StudySpec
from stagetree.spec.suggestions import sampled_count
from stagetree.spec.tuners import AshaTuner, AsyncHyperbandTuner, FixedTuner, HyperbandTuner, PbtTuner, ShaTuner
from stagetree.spec.tuners.base import DRAWN_FIRST
from stagetree.spec.tuners.early_stopping import CurveTuner
from stagetree.spec.tuners.halving import (
    ENDLESS,
    MIN_EVALUATIONS,
    boundary_steps,
    guaranteed_steps,
    max_evaluations,
    rung_steps,
)

SAMPLES = 64
"""How many configurations are sampled for comparison."""
RATES = ("lr", "learning_rate")
_MAX_PIECES = 200


def tuner_advice(spec: StudySpec) -> Iterator[str]:
    """Advice on the fields of the tuner."""
    yield from _few_configurations(spec)
    yield from _unreachable_max_steps(spec)
    yield from _too_few_evaluations(spec)
    yield from _never_learns(spec)
    yield from _idle_at_the_end(spec)
    yield from _compares_equals(spec)
    yield from _compares_in_warmups(spec)


def afterthoughts(spec: StudySpec, furthest: int) -> list[str]:
    """Advice on a study that is over, if none of its trials was trained past step `furthest`."""
    most = getattr(spec.tuner, "max_steps", None)
    if most is None or furthest >= most or not furthest > 0:
        return []
    can_finish = "finish_best" in type(spec.tuner).model_fields and not getattr(spec.tuner, "finish_best", None)
    finish = "; finish_best: 1 trains the best one to the end" if can_finish else ""
    return [f"no trial was trained past step {furthest} of {most}{finish}", *_unreachable_max_steps(spec)]


def _few_configurations(spec: StudySpec) -> Iterator[str]:
    """Warn if the study requests more trials than the space has unique configurations."""
    trials, different = sampled_count(spec.tuner), count_unique_configurations(spec)
    if different is not None and trials is not None and different < trials:
        yield (
            f"{different} different, {trials} asked for: the space holds no more configurations, so the study has "
            f"{different} trials"
        )


def count_unique_configurations(spec: StudySpec) -> int | None:
    """How many unique trials the space has; None if infinite, or if repeats are allowed."""
    tuner: Any = spec.tuner
    if spec.space is None or not getattr(tuner, "distinct", None) or isinstance(tuner, PbtTuner):
        return None
    size = UniqueSamples(spec.search_space, getattr(tuner, "max_steps", None), spec.first).size()
    return None if size is None else size + len(spec.first)


def reachable_steps(spec: StudySpec) -> int | None:
    """The steps that at least one trial reaches if none fails; None if the tuner does not guarantee any.

    `sha`, `hyperband` and stopping rules bring one trial to `max_steps`. Asynchronous promotion needs enough trials.
    """
    trials, different = sampled_count(spec.tuner), count_unique_configurations(spec)
    if spec.stop_hopeless is not None or trials is None:
        return None
    trials = trials if different is None else min(trials, different)
    return _reach(spec.tuner, trials)


def _reach(tuner: Any, trials: int) -> int | None:
    if isinstance(tuner, AsyncHyperbandTuner) or (isinstance(tuner, AshaTuner) and tuner.type == "promotion"):
        return guaranteed_steps(trials, tuner.ladders(), tuner.reduction_factor) if tuner.max_steps else None
    is_sure = isinstance(tuner, ShaTuner | HyperbandTuner | AshaTuner)
    return tuner.max_steps if is_sure else None


def _unreachable_max_steps(spec: StudySpec) -> Iterator[str]:
    """Warn if the tuner has too few trials to bring one to `max_steps`, and say how many it needs."""
    tuner: Any = spec.tuner
    steps, most = reachable_steps(spec), int(getattr(tuner, "max_steps", None) or 0)
    if steps is None or steps >= most or tuner.finish_best:
        return
    trials = min(each for each in (sampled_count(spec.tuner), count_unique_configurations(spec)) if each is not None)
    ways = [f"{_trials_needed(tuner, most):,} trials"] if count_unique_configurations(spec) is None else []
    ways += [f"min_steps {least}" for least in _min_steps_needed(tuner, trials)]
    if isinstance(tuner, AshaTuner) and tuner.brackets == 1 and tuner.promote_by != "predicted":
        ways.append("type: stopping")
    yield (
        f"with {trials} trial{'s' if trials > 1 else ''} {tuner.kind} is sure to train one only to step {steps} of "
        f"{most}: for all {most} give {', or '.join([*ways, 'finish_best: 1'])}"
    )


def _trials_needed(tuner: Any, most: int) -> int:
    """The fewest trials that guarantee one trial at the end."""
    enough = 1
    while _reach(tuner, enough) != most:
        enough *= 2
    return bisect_left(range(1, enough + 1), True, key=lambda trials: _reach(tuner, trials) == most) + 1


def _min_steps_needed(tuner: Any, trials: int) -> Iterator[int]:
    """The lowest `min_steps` for which this many trials suffice; empty if it would be max_steps."""
    for rungs in range(ENDLESS, 0, -1):
        least = -(-tuner.max_steps // tuner.reduction_factor ** (getattr(tuner, "early_stopping_rate", 0) + rungs))
        if (tuner.min_steps or 1) < least and _reach(
            tuner.model_copy(update={"min_steps": least}), trials
        ) == tuner.max_steps:
            yield least
            return


def _too_few_evaluations(spec: StudySpec) -> Iterator[str]:
    """Warn if trials have too few evaluations at the last decision about their curves."""
    tuner: Any = spec.tuner
    if spec.stop_hopeless is not None:
        name, chosen, most = "stop_hopeless", spec.stop_hopeless.boundary, spec.stop_hopeless.end(tuner)
    elif isinstance(spec.tuner, CurveTuner):
        name, chosen, most = tuner.kind, tuner.boundary, tuner.max_steps
    else:
        return
    points = max_evaluations(boundary_steps(chosen, most), spec.eval_every, most)
    if points < MIN_EVALUATIONS < most:
        often = -(-most // 20)
        yield (
            f"{name} ends a trial by its curve from {MIN_EVALUATIONS} evaluations on, and a trial has {points} when it "
            f"is last asked about, so none would end: give eval_every: {often} and boundary: {often * 2}"
        )


def _never_learns(spec: StudySpec) -> Iterator[str]:
    """Warn if the study ends before its sampler has enough results for its model."""
    name, trials = getattr(spec.tuner, "sampler", None) or "", sampled_count(spec.tuner)
    enough = DRAWN_FIRST.get(name, 0)
    if trials is not None and trials <= enough:
        yield (
            f"{name} draws by chance until it has {enough} results, and the study has {trials} "
            f"trial{'s' if trials > 1 else ''}, so it learns nothing: sampler: sobol covers the space better then"
        )


def _idle_at_the_end(spec: StudySpec) -> Iterator[str]:
    """Warn if trials that reach the last rung have been training at a learning rate of 0."""
    most = getattr(spec.tuner, "max_steps", None)
    if spec.space is None or isinstance(spec.tuner, FixedTuner) or not most:
        return
    drawn = sample_configurations(spec)
    for name in RATES:
        rates = [configuration[name] for configuration in drawn if name in configuration]
        ends = [last_change(rate) for rate in rates if rate.at(most - 1) == 0]
        idle = [end for end in ends if end is not None and end < most - 1]
        if idle:
            yield (
                f"{name} is 0 from step {min(idle)} on in {len(idle)} of {len(rates)} configurations, and a trial that "
                f"comes to step {most} trains on without learning: let its schedule end there, such as period: {most}"
            )


def _compares_equals(spec: StudySpec) -> Iterator[str]:
    """Warn if trials do not differ yet at the lowest rung."""
    step, factor = _lowest_rung(spec.tuner), getattr(spec.tuner, "reduction_factor", 0)
    trials = sampled_count(spec.tuner)
    if spec.space is None or step is None or not trials:
        return
    drawn = sample_configurations(spec, trials)
    if len(drawn) < factor or _count_different(drawn, step) >= factor:
        return
    last = getattr(spec.tuner, "max_steps", None) or step * factor**ENDLESS
    later = next((at for at in _changes(drawn, step, last) if _count_different(drawn, at + 1) >= factor), None)
    if later is None:  # the space has no more: that is another remark
        return
    number = _count_different(drawn, step)
    they = "all trials are equal" if number == 1 else f"there are only {number} different trials"
    yield (
        f"at the rung at step {step} {they}, since values change later, and one of {factor} is promoted, so "
        f"chance decides which of equal ones is: give min_steps: {later + 1} or more"
    )


def _compares_in_warmups(spec: StudySpec) -> Iterator[str]:
    """Warn if trials are compared at the lowest rung before their warm-up ends."""
    step = _lowest_rung(spec.tuner)
    if spec.space is None or step is None:
        return
    drawn = sample_configurations(spec)
    for name in dict.fromkeys(name for configuration in drawn for name in configuration):
        ends = [warmup_end(configuration[name]) for configuration in drawn if name in configuration]
        if late := [end for end in ends if end > step]:
            most = getattr(spec.tuner, "max_steps", None)
            cure = "shorten it" if most and max(late) >= most else f"give min_steps: {max(late)} or more"
            until = f"{min(late)}" if min(late) == max(late) else f"{min(late)} to {max(late)}"
            yield (
                f"at the rung at step {step} {name} still warms up, until step {until}, in {len(late)} of {len(ends)} "
                f"configurations: results there say little of those after it: {cure}"
            )


def warmup_end(sequence: Sequence) -> int:
    """The step at which a sequence reaches its warm-up target; 0 without warm-up."""
    match sequence:
        case Warmup():
            return sequence.steps
        case Wsd() | InverseSqrt():
            return sequence.warmup
        case OneCycle() if sequence.init < sequence.max:
            return sequence.up
    return 0


def _lowest_rung(tuner: Any) -> int | None:
    """The first step at which trials are compared; None if they are not."""
    if isinstance(tuner, AshaTuner | AsyncHyperbandTuner | HyperbandTuner):
        return tuner.ladders()[0][0]
    if isinstance(tuner, ShaTuner):
        return rung_steps(tuner.min_steps, tuner.max_steps, tuner.reduction_factor, tuner.early_stopping_rate)[0]
    return None


def sample_configurations(spec: StudySpec, most: int = SAMPLES) -> list[dict[str, Sequence]]:
    """Some configurations of the space; empty if it cannot be sampled."""
    try:
        return [spec.search_space.sample(spec.sampling_seed, number) for number in range(min(most, SAMPLES))]
    except SequenceError:
        return []


def _count_different(drawn: list[dict[str, Sequence]], step: int) -> int:
    """How many configurations differ before a step, by the pieces that begin until then."""
    return len({tuple((name, *_pieces_until(each[name], step)) for name in sorted(each)) for each in drawn})


def _pieces_until(sequence: Sequence, step: int) -> list[Piece]:
    return list(islice(takewhile(lambda piece: piece.start < step, sequence.pieces()), _MAX_PIECES))


def _changes(drawn: list[dict[str, Sequence]], begin: int, end: int) -> list[int]:
    """The steps in [`begin`, `end`) at which a value of some configuration changes its form."""
    pieces = (piece for each in drawn for sequence in each.values() for piece in _pieces_until(sequence, end))
    return sorted({piece.start for piece in pieces if piece.start >= begin})


def num_trials(spec: StudySpec) -> int:
    """How many trials the tuner begins, or the number of samples if that is open."""
    asked, different = sampled_count(spec.tuner), count_unique_configurations(spec)
    number = getattr(spec.tuner, "population_size", SAMPLES) if asked is None else asked
    return int(number if different is None else min(number, different))
