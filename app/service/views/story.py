"""A study in two lines of text: its best trial, and what sharing and early stopping saved.

A third line names trials that may be as good, by their repeats, or notes that equal results may be chance. The page,
the command line, the SDK and reports all show these lines. Each number in them is also a field of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from app.domain import accounting, results
from app.domain.accounting import Waterfall
from app.domain.results import MeasuredValue
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.search_plan.spec import StoredSpec
from app.domain.terms import NodeId, StudyState, TrialState
from app.service.views.outcomes import idle_parameters_text, mark_of_best
from app.service.views.trial_order import json_safe
from stagetree.models.studies import StudyStory
from stagetree.text import RANKED_LAST, rough_duration

NAMED = 5
"""The most trials that are listed by number. Of more, the rest is counted."""

MANY = 10
"""From this many means on, a note says that the best was selected: of ten equal ones it is 1.5 standard errors up."""

Ranked = Sequence[tuple[Trial, MeasuredValue]]


class SharedBeginning(NamedTuple):
    """The beginning that the best trial shares with others: how many others, and how many steps."""

    sharers: int = 0
    steps: int = 0


def story(
    plan: SearchPlan,
    study: Study,
    order: list[tuple[Trial, MeasuredValue]] | None = None,
    cost: Waterfall | None = None,
) -> StudyStory:
    """The lines, and their numbers. order: the trials by rank, and cost: that of the study, if they are known."""
    order = results.rank_trials(plan, study) if order is None else order
    cost, ranked = cost or accounting.cost(plan, study), results.contenders(order)
    beside = _equal_trials(plan, study, ranked)
    as_far = sum(accounting.last_step(plan, trial) >= ranked[0][1].step for trial, _ in ranked)
    shared = _shared_beginning(plan, study, ranked[0][0]) if ranked else SharedBeginning()
    pace = accounting.seconds_per_step(study)
    ways = ("sharing" if cost.shared else "sharing with other studies", "early stopping")
    saved = [(cost.steps_saved, pace * cost.steps_saved), (cost.stopped_early, pace * cost.stopped_early)]
    noise = _noise_text(plan, study, ranked, beside, close := _trials_within_noise(plan, study, ranked))
    won = _best_text(plan, study, ranked, beside, as_far) + _failed_text(ranked, len(order) - len(ranked))
    lines = [
        won + (mark_of_best(plan, study, ranked[0][0]) if ranked else ""),
        _savings_text(study, ranked, shared, zip(ways, saved, strict=True)),
        *([noise] if noise else []),
    ]
    return StudyStory(
        lines=[str(json_safe(line)) for line in lines],
        question=str(json_safe(question(study.spec))),
        results=len(ranked),
        as_far=as_far,
        equal=beside,
        within_noise=close,
        noise=noise,
        sharers=shared.sharers,
        shared_beginning=shared.steps,
        steps_by_sharing=cost.steps_saved,
        seconds_by_sharing=round(saved[0][1], 3),
        steps_by_stopping=cost.stopped_early,
        seconds_by_stopping=round(saved[1][1], 3),
    )


def question(spec: StoredSpec) -> str:
    """What a study asks: which of the hyper-parameters that vary in its space are best, by its metrics."""
    space = spec.json.get("space") or {}
    searched = [name for name, values in space.items() if isinstance(values, dict | list)]
    subject = _join(searched) if 0 < len(searched) <= NAMED else "configuration"
    is_one = len(searched) == 1 or subject == "configuration"
    if len(spec.objectives.goals) > 1:
        metrics = spec.objectives.metrics[: len(spec.objectives.goals)]
        return f"Which {subject} {'is' if is_one else 'are'} best in {_join(metrics)}?"
    word = "lowest" if spec.mode == "min" else "highest"
    return f"Which {subject} {'gives' if is_one else 'give'} the {word} {spec.metric}?"


# ------------------------------------------------------------------------------------------------------- the best trial


def _equal_trials(plan: SearchPlan, study: Study, ranked: Ranked) -> list[int]:
    """The trials with the same value as the best one, or on its Pareto front."""
    if len(study.spec.objectives.goals) > 1:
        return [trial.number for trial, _ in results.pareto_front(plan, study)[1:]]
    if not ranked or _violates(plan, study, ranked[0][0]):
        return []
    value = ranked[0][1].value
    equal = (trial for trial, result in ranked[1:] if result.value == value)
    return [trial.number for trial in equal if not _violates(plan, study, trial)]


def _violates(plan: SearchPlan, study: Study, trial: Trial) -> bool:
    """Whether the trial's result violates a constraint."""
    score = None if study.spec.objectives.is_plain else results.score(plan, study, trial)
    return score is not None and not score.is_feasible


def _best_text(plan: SearchPlan, study: Study, ranked: Ranked, equal: list[int], as_far: int) -> str:
    if not ranked:
        return _no_result_text(study)
    best, result = ranked[0]
    if _violates(plan, study, best):
        return f"No trial satisfies {_join(study.spec.constraints)}; trial {best.number} is closest."
    if len(study.spec.objectives.goals) > 1:
        return _pareto_text(study, sorted([best.number, *equal]), len(ranked))
    what = f"{_trial_name(best)}, {study.spec.metric} {_value(result)} at step {_n(result.step)}"
    if len(ranked) == 1:
        return f"{_heading(study)}: {what}, the only {'trial' if len(study.trials) == 1 else 'result'}."
    word = "lowest" if study.spec.mode == "min" else "highest"
    of = f"{_n(len(ranked))} results"
    if study.spec.constraints:
        of = f"the results that satisfy {_join(study.spec.constraints)}, {_n(len(ranked))} in all"
    text = f"{_heading(study)}: {what}, the {word} of {of}{_tie_text(ranked, equal, as_far)}"
    if result.deviation is None or len(ranked) < MANY:
        return f"{text}."
    chance = f"the {word} of many means is likely too good by chance, and repeats with new seeds would confirm it"
    return f"{text}; {chance}."


def _failed_text(ranked: Ranked, others: int) -> str:
    """A note on failed trials with a result, which are not ranked unless all of them failed."""
    if others:
        failed = "1 trial that failed does" if others == 1 else f"{_trials(others)} that failed do"
        return f" The {'result' if others == 1 else 'results'} of {failed} not count."
    if ranked and ranked[0][0].state == RANKED_LAST:
        return " It failed later, as all with a result did." if len(ranked) > 1 else " It failed later."
    return ""


def _no_result_text(study: Study) -> str:
    if not study.trials:
        return "The study has no trials" + (" yet." if not study.is_final else ".")
    failed = sum(trial.state == TrialState.FAILED for trial in study.trials)
    of = f"; {_n(failed)} of {_trials(len(study.trials))} failed" if failed else ""
    return f"No trial has a result{'' if study.is_final else ' yet'}{of}."


def _tie_text(ranked: Ranked, equal: list[int], as_far: int) -> str:
    """The other trials with that value, and which took the fewest steps; or how many reached that step, if not all."""
    if equal:
        have = "has" if len(equal) == 1 else "have"
        tie = f"{_numbers(equal)} {have} the same value (ties go to the lowest number)"
        return f"; {tie}{_fewest_steps_text(ranked, equal)}"
    if as_far == len(ranked):
        return ""
    return "; no other trial reached that step" if as_far == 1 else f"; {_trials(as_far)} reached that step"


def _fewest_steps_text(ranked: Ranked, equal: list[int]) -> str:
    """Which of equal trials had the value after the fewest steps, if they differ. It does not decide a tie."""
    best = ranked[0][0].number
    steps = {trial.number: each.step for trial, each in ranked if trial.number in (best, *equal)}
    first = min(steps, key=lambda trial: (steps[trial], trial != best, trial))
    if len(set(steps.values())) == 1:
        return ""
    return ", none in fewer steps" if first == best else f", and trial {first} had it at step {_n(steps[first])}"


def _pareto_text(study: Study, front: list[int], count: int) -> str:
    metrics = _join(study.spec.objectives.metrics[: len(study.spec.objectives.goals)])
    trials = "1 Pareto-optimal trial" if len(front) == 1 else f"{_n(len(front))} Pareto-optimal trials"
    of = f"{metrics}, {'1 result' if count == 1 else f'{_n(count)} results'}"
    return f"{trials}{_moment(study)}: {_numbers(front).partition(' ')[2]} ({of})."


def _trials_within_noise(plan: SearchPlan, study: Study, ranked: Ranked) -> list[int]:
    """The trials that their repeats do not separate from the best one. Empty for several metrics."""
    if len(study.spec.objectives.goals) > 1 or not ranked or _violates(plan, study, ranked[0][0]):
        return []
    close = set(results.ties_with_best(ranked))
    return [trial.number for trial, _ in ranked if trial.number in close and not _violates(plan, study, trial)]


def _noise_text(plan: SearchPlan, study: Study, ranked: Ranked, equal: list[int], close: list[int]) -> str:
    """The sentence about chance where others are about as good; empty otherwise."""
    if close:
        named, differ = _numbers(close), "it differs" if len(close) == 1 else "they differ"
        than = f"less than {results.STANDARD_ERRORS} standard errors, by their repeats; more `repeats` would tell"
        return f"{named[0].upper()}{named[1:]} may be as good: {differ} from trial {ranked[0][0].number} by {than}."
    if len(study.spec.objectives.goals) > 1 or not equal or study.spec.repeats[0] > 1:
        return ""
    best = list(plan.path_ends(next(ranked[0][0].single_runs())))
    if all(list(plan.path_ends(next(study.trials[each].single_runs()))) == best for each in equal):
        return ""  # they are one training, so the tie is no chance
    if idle := idle_parameters_text(plan, study, [study.trials[each] for each in (ranked[0][0].number, *equal)]):
        return f"{idle}."
    return "Equal results may be chance: `repeats` in the study file measures that."


def _heading(study: Study) -> str:
    return f"Best{_moment(study)}"


def _moment(study: Study) -> str:
    match study.state:
        case StudyState.COMPLETED:
            return ""
        case StudyState.CANCELLED:
            return " when the study was cancelled"
        case StudyState.FAILED:
            return " when the study failed"
        case _:
            return " so far"


def _trial_name(trial: Trial) -> str:
    """The trial, and the trials that it was made of."""
    if trial.cooldown_of is not None:
        return f"trial {trial.number} (cooldown of trial {trial.cooldown_of})"
    if parts := trial.reason.get("average_of"):
        of = _numbers(list(dict.fromkeys(part["trial"] for part in parts)))
        return f"trial {trial.number} (average of {of if of.startswith('trials') else f'{len(parts)} states of {of}'})"
    return f"trial {trial.number}"


def _value(result: MeasuredValue) -> str:
    value, begin = f"{result.value:.6g}", result.repeats_from
    if result.deviation is None:
        return value
    branch = f" from step {_n(begin)}, the noise of the branch alone" if begin else ""
    return f"{value} ± {result.deviation:.2g} (mean of {result.repeats} repeats{branch})"


# ------------------------------------------------------------------------------------------------------ the savings


def _shared_beginning(plan: SearchPlan, study: Study, best: Trial) -> SharedBeginning:
    """Of all beginnings of the trial that others share, the one that saves most steps.

    An average begins as the states do that it is made of.
    """
    ends = dict[NodeId, int]()
    for name, end in plan.sources(next(best.single_runs())):
        ends[name] = max(end, ends.get(name, 0))
    common = sorted((_common(plan, trial, ends) for trial in study.trials if trial is not best), reverse=True)
    beginnings = (SharedBeginning(sharers, steps) for sharers, steps in enumerate(common, start=1) if steps)
    return max(beginnings, key=lambda each: (each.sharers * each.steps, each.steps), default=SharedBeginning())


def _common(plan: SearchPlan, trial: Trial, ends: Mapping[NodeId, int]) -> int:
    """How many trained steps the first run of a trial shares with a path, counted from its beginning."""
    steps = 0
    for name, end in plan.path_ends(next(trial.single_runs())):
        if name not in ends:
            break
        node = plan.nodes[name]
        steps += max(0, min(end, ends[name], node.reached) - node.start)
    return steps


def _savings_text(
    study: Study, ranked: Ranked, shared: SharedBeginning, saved: Iterable[tuple[str, tuple[int, float]]]
) -> str:
    """The steps shared with the best trial, and the savings in both ways, by name."""
    ways = [(how, _amount(*amount)) for how, amount in saved if amount[0]]
    sentences = [_shared_text(study, ranked[0][0], shared)] if ranked and len(study.trials) > 1 else []
    if ways:
        (how, much), *more = ways
        also = "".join(f", and {other} {amount}" for other, amount in more)
        sentences.append(f"{how} {'saved' if study.is_final else 'has saved'} {much}{also}{_so_far(study)}")
    text = "; ".join(sentences) or f"nothing was saved by sharing or early stopping{_so_far(study)}"
    return f"{text[0].upper()}{text[1:]}."


def _shared_text(study: Study, best: Trial, shared: SharedBeginning) -> str:
    of_best = "its" if len(study.spec.objectives.goals) == 1 else f"trial {best.number}'s"
    if not study.spec.merge:
        return "each trial is trained alone, as the study asks"
    if not shared.sharers:
        return f"no other trial shares {of_best} first steps"
    share = "trial shares" if shared.sharers == 1 else "trials share"
    steps = "step" if shared.steps == 1 else f"{_n(shared.steps)} steps"
    return f"{_n(shared.sharers)} other {share} {of_best} first {steps}"


def _amount(steps: int, seconds: float) -> str:
    """Steps, with their slot time if it is a second or more."""
    counted = f"{_n(steps)} {'step' if steps == 1 else 'steps'}"
    return f"about {rough_duration(seconds)} of slot time ({counted})" if seconds >= 1 else counted


# --------------------------------------------------------------------------------------------------------------- words


def _so_far(study: Study) -> str:
    return "" if study.is_final else " so far"


def _n(number: int) -> str:
    return f"{number:,}"


def _trials(number: int) -> str:
    return f"{_n(number)} {'trial' if number == 1 else 'trials'}"


def _numbers(trials: Sequence[int]) -> str:
    """Trial 3; trials 3, 5 and 7; or trials 3, 5, 7, 8 and 12 more."""
    if len(trials) == 1:
        return f"trial {trials[0]}"
    named, rest = trials[: NAMED - 1] if len(trials) > NAMED else trials, len(trials) - NAMED + 1
    return f"trials {_join([*map(str, named), *([f'{_n(rest)} more'] if len(trials) > NAMED else [])])}"


def _join(parts: Iterable[str]) -> str:
    """One, two and three."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
