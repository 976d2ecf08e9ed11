"""A study told in two lines, for people: why the best trial won, and what sharing and early stopping saved.

A third line says that others may be as good, where repeats show it, or where equal results leave it open.

This is the one place that makes these sentences: the page, the command line, the SDK and reports show them. Every
number in them is a field of the answer, or of the study's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from app.domain import accounting, results
from app.domain.results import MeasuredValue
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.terms import NodeId, StudyState, TrialState
from app.service.views.outcomes import idle_parameters_text, mark_of_best
from app.service.views.trial_order import json_safe
from stagetree.models.studies import StudyStory
from stagetree.text import RANKED_LAST, rough

NAMED = 5
"""So many trials are named; of more, how many there are."""

Ranked = Sequence[tuple[Trial, MeasuredValue]]


class SharedBeginning(NamedTuple):
    """What the best trial shares with others: with how many, and how many steps."""

    sharers: int = 0
    steps: int = 0


def story(plan: SearchPlan, study: Study) -> StudyStory:
    """The lines, and their numbers."""
    order = results.ranked(plan, study)
    ranked = results.in_question(order)
    beside, as_far = _equal_trials(plan, study, ranked), _count_as_far(plan, ranked)
    shared = _shared_beginning(plan, study, ranked[0][0]) if ranked else SharedBeginning()
    cost, pace = accounting.cost(plan, study), accounting.seconds_per_step(study)
    ways = ("sharing" if cost.shared else "sharing with other studies", "early stopping")
    saved = [(cost.spared, pace * cost.spared), (cost.stopped_early, pace * cost.stopped_early)]
    noise = _noise_text(plan, study, ranked, beside, close := _trials_within_noise(plan, study, ranked))
    won = _best_text(plan, study, ranked, beside, as_far) + _failed_text(ranked, len(order) - len(ranked))
    lines = [
        won + (mark_of_best(plan, study, ranked[0][0]) if ranked else ""),
        _savings_text(study, ranked, shared, zip(ways, saved, strict=True)),
        *([noise] if noise else []),
    ]
    return StudyStory(
        lines=[str(json_safe(line)) for line in lines],
        results=len(ranked),
        as_far=as_far,
        equal=beside,
        within_noise=close,
        noise=noise,
        sharers=shared.sharers,
        shared_beginning=shared.steps,
        steps_by_sharing=cost.spared,
        seconds_by_sharing=round(saved[0][1], 3),
        steps_by_stopping=cost.stopped_early,
        seconds_by_stopping=round(saved[1][1], 3),
    )


# -------------------------------------------------------------------------------------------------------- who won, why


def _equal_trials(plan: SearchPlan, study: Study, ranked: Ranked) -> list[int]:
    """The trials that are no worse than the best one: with the same value, or on the same front."""
    if len(study.objectives.goals) > 1:
        return [trial.number for trial, _ in results.front(plan, study)[1:]]
    if not ranked or _is_broken(plan, study, ranked[0][0]):
        return []
    value = ranked[0][1].value
    equal = (trial for trial, result in ranked[1:] if result.value == value)
    return [trial.number for trial in equal if not _is_broken(plan, study, trial)]


def _count_as_far(plan: SearchPlan, ranked: Ranked) -> int:
    return sum(accounting.last_step(plan, trial) >= ranked[0][1].step for trial, _ in ranked)


def _is_broken(plan: SearchPlan, study: Study, trial: Trial) -> bool:
    """Whether the trial's result breaks a constraint."""
    score = None if study.objectives.is_plain else results.score(plan, study, trial)
    return score is not None and not score.is_feasible


def _best_text(plan: SearchPlan, study: Study, ranked: Ranked, beside: list[int], as_far: int) -> str:
    if not ranked:
        return _no_result_text(study)
    best, result = ranked[0]
    if _is_broken(plan, study, best):
        return f"No trial keeps to {_all(study.spec['constraints'])}; trial {best.number} is nearest to that."
    if len(study.objectives.goals) > 1:
        return _pareto_text(study, best, beside, len(ranked))
    if len(ranked) == 1:
        only = "the only one" if len(study.trials) == 1 else f"the only one with a result{_so_far(study)}"
        return f"{_trial_name(best)} is {only}: its {study.metric} is {_value(result)} at step {_n(result.step)}."
    word = "lowest" if study.mode == "min" else "highest"
    of = f"{_n(len(ranked))} results"
    if study.spec.get("constraints"):
        of = f"the results that keep to {_all(study.spec['constraints'])}, of {_n(len(ranked))} in all"
    metric = f"best {study.metric}" if study.value == "best" else study.metric
    because = f"its {metric} of {_value(result)} at step {_n(result.step)} is the {word} of {of}"
    return f"{_trial_name(best)} {_verb(study)} {because}{_tie_text(ranked, beside, as_far)}."


def _failed_text(ranked: Ranked, others: int) -> str:
    """That trials with a result failed: they do not count, where some did not fail."""
    if others:
        failed = "1 trial that failed does" if others == 1 else f"{_trials(others)} that failed do"
        return f" The {'result' if others == 1 else 'results'} of {failed} not count."
    if ranked and ranked[0][0].state == RANKED_LAST:
        return " It failed later, as all with a result did." if len(ranked) > 1 else " It failed later."
    return ""


def _no_result_text(study: Study) -> str:
    """No trial has a result."""
    if not study.trials:
        return "The study has no trials" + (" yet." if not study.is_final else ".")
    failed = sum(trial.state == TrialState.FAILED for trial in study.trials)
    of = f"; {_n(failed)} of {_trials(len(study.trials))} failed" if failed else ""
    return f"No trial has a result{'' if study.is_final else ' yet'}{of}."


def _tie_text(ranked: Ranked, beside: list[int], as_far: int) -> str:
    """Who else has that value, and who in the fewest steps; or how many reached that step, where some did not."""
    if beside:
        have = "has" if len(beside) == 1 else "have"
        return f"; {_numbers(beside)} {have} the same value, and ties go to the lowest number{_fewest_steps_text(ranked, beside)}"
    if as_far == len(ranked):
        return ""
    return "; no other trial reached that step" if as_far == 1 else f"; {_trials(as_far)} reached that step"


def _fewest_steps_text(ranked: Ranked, beside: list[int]) -> str:
    """Which of equal trials had the value in the fewest steps, where they differ: a tie is not decided by that."""
    best = ranked[0][0].number
    steps = {trial.number: each.step for trial, each in ranked if trial.number in (best, *beside)}
    first = min(steps, key=lambda trial: (steps[trial], trial != best, trial))
    if len(set(steps.values())) == 1:
        return ""
    shortest = f"whatever the steps: trial {first} had it at step {_n(steps[first])}"
    return ", here with the fewest steps" if first == best else f", {shortest}"


def _pareto_text(study: Study, best: Trial, beside: list[int], of: int) -> str:
    """The trials that no other beats in all metrics."""
    metrics = _all(study.objectives.metrics[: len(study.objectives.goals)])
    if of == 1:
        return f"{_trial_name(best)} is the only one with a result{_so_far(study)}."
    if not beside:
        return f"{_trial_name(best)} {_verb(study)} none of {_n(of)} results is better in {metrics}."
    numbers = _numbers(sorted([best.number, *beside]))
    of_all = f"none of {_n(of)} results is as good in {metrics} and better in one of them"
    return f"{numbers[0].upper()}{numbers[1:]} {_verb(study, 'together ')} {of_all}."


def _trials_within_noise(plan: SearchPlan, study: Study, ranked: Ranked) -> list[int]:
    """The trials that their repeats do not tell from the best one; of several metrics nothing is said."""
    if len(study.objectives.goals) > 1 or not ranked or _is_broken(plan, study, ranked[0][0]):
        return []
    close = set(results.within_noise(ranked))
    return [trial.number for trial, _ in ranked if trial.number in close and not _is_broken(plan, study, trial)]


def _noise_text(plan: SearchPlan, study: Study, ranked: Ranked, equal: list[int], close: list[int]) -> str:
    """The sentence on chance where others are about as good; empty where there is none to say."""
    if close:
        named, differ = _numbers(close), "it differs" if len(close) == 1 else "they differ"
        than = f"less than {results.STANDARD_ERRORS} standard errors, by their repeats; more `repeats` would tell"
        return f"{named[0].upper()}{named[1:]} may be as good: {differ} from trial {ranked[0][0].number} by {than}."
    if len(study.objectives.goals) > 1 or not equal or study.spec.get("repeats"):
        return ""
    best = list(plan.ends(next(ranked[0][0].alone())))
    if all(list(plan.ends(next(study.trials[each].alone()))) == best for each in equal):
        return ""  # they are one training, and no chance is in that
    if idle := idle_parameters_text(plan, study, [study.trials[each] for each in (ranked[0][0].number, *equal)]):
        return f"{idle}."
    return "Which of the equal ones is better is not known: `repeats` in the study file would tell how much is chance."


def _verb(study: Study, how: str = "") -> str:
    match study.state:
        case StudyState.COMPLETED:
            return f"won {how}because"
        case StudyState.CANCELLED:
            return f"led {how}when the study was cancelled:"
        case StudyState.FAILED:
            return f"led {how}when the study failed:"
        case _:
            leads = "lead" if how else "leads"
            return f"{leads} {how}so far because"


def _trial_name(trial: Trial) -> str:
    """The trial, and which other ones it came of."""
    if trial.cooldown_of is not None:
        return f"Trial {trial.number}, a cooldown of trial {trial.cooldown_of},"
    if parts := trial.reason.get("average_of"):
        of = _numbers(list(dict.fromkeys(part["trial"] for part in parts)))
        return (
            f"Trial {trial.number}, the average of {of if of.startswith('trials') else f'{len(parts)} states of {of}'},"
        )
    return f"Trial {trial.number}"


def _value(result: MeasuredValue) -> str:
    value = f"{result.value:.6g}"
    return value if result.deviation is None else f"{value} ± {result.deviation:.2g} (mean of {result.repeats} repeats)"


# ------------------------------------------------------------------------------------------------------ the savings


def _shared_beginning(plan: SearchPlan, study: Study, best: Trial) -> SharedBeginning:
    """Of all beginnings of the trial that others share, the one by which most steps are shared.

    Those of an average are of its states.
    """
    ends = dict[NodeId, int]()
    for name, end in plan.sources(next(best.alone())):
        ends[name] = max(end, ends.get(name, 0))
    common = sorted((_common(plan, trial, ends) for trial in study.trials if trial is not best), reverse=True)
    beginnings = (SharedBeginning(sharers, steps) for sharers, steps in enumerate(common, start=1) if steps)
    return max(beginnings, key=lambda each: (each.sharers * each.steps, each.steps), default=SharedBeginning())


def _common(plan: SearchPlan, trial: Trial, ends: Mapping[NodeId, int]) -> int:
    """How many trained steps the first run of a trial has in common with a path, from its beginning on."""
    steps = 0
    for name, end in plan.ends(next(trial.alone())):
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
    of_best = "its" if len(study.objectives.goals) == 1 else f"trial {best.number}'s"
    if not study.merges:
        return "each trial is trained alone, as the study asks"
    if not shared.sharers:
        return f"no other trial shares {of_best} first steps"
    share = "trial shares" if shared.sharers == 1 else "trials share"
    steps = "step" if shared.steps == 1 else f"{_n(shared.steps)} steps"
    return f"{_n(shared.sharers)} other {share} {of_best} first {steps}"


def _amount(steps: int, seconds: float) -> str:
    """Steps, and the slot time of them where it is worth a word."""
    counted = f"{_n(steps)} {'step' if steps == 1 else 'steps'}"
    return f"about {rough(seconds)} of slot time ({counted})" if seconds >= 1 else counted


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
    return f"trials {_all([*map(str, named), *([f'{_n(rest)} more'] if len(trials) > NAMED else [])])}"


def _all(parts: Iterable[str]) -> str:
    """One, two and three."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
