"""Results as answers: the best trial, the Pareto front, the metrics and constraints of each result, and its exactness.

The marks of trials say whose numbers are unchecked or known to differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from app.domain import inexact_results, results
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.trainer_check import unread_hp
from app.exactness import judge, trial_marks, verdict_text
from app.service.views.trial_order import json_safe
from stagetree.models.answer import constructor_without_validation
from stagetree.models.studies import Best, Exactness
from stagetree.models.trials import Outcome
from stagetree.text import mark_sentence, unread_text

Ranked = Sequence[tuple[Trial, results.MeasuredValue]]

_make_outcome = constructor_without_validation(Outcome)


def best(plan: SearchPlan, study: Study, ranked: Ranked | None = None) -> Best | None:
    """The best trial by the study's mode, ties to the lower number; None before any has a value.

    ranked: the trials by rank, if they are known.
    """
    order = results.rank_trials(plan, study) if ranked is None else ranked
    return _best(plan, study, marks(plan, study), *order[0]) if order else None


def mark_of_best(plan: SearchPlan, study: Study, best: Trial) -> str:
    """The mark of the best trial as a sentence that follows its result; empty without one."""
    text = marks(plan, study)(best)
    subject = "Its value" if len(study.spec.objectives.goals) == 1 else f"Trial {best.number}"
    return f" {mark_sentence(subject, text)}." if text else ""


def _best(
    plan: SearchPlan,
    study: Study,
    mark_of: Callable[[Trial], str],
    trial: Trial,
    result: results.MeasuredValue,
) -> Best:
    last, best = outcomes_of(plan, study, trial)
    more: dict[str, Any] = judged._asdict() if (judged := judged_result(plan, study, trial)) else {}
    if text := mark_of(trial):
        more["exactness"] = text
    best_so_far = Best(trial=trial.number, value=result.value, steps=result.step, hp=trial.hp, last=last, best=best)
    return best_so_far.with_fields(**more)


def idle_parameters_text(plan: SearchPlan, study: Study, equal: Sequence[Trial]) -> str:
    """A note on hyper-parameters without effect among trials with equal results; "" if all may have one."""
    names = dict.fromkeys(name for trial in equal for name in trial.hp)
    differing = [name for name in names if len({repr(trial.hp.get(name)) for trial in equal}) > 1]
    if idle := [name for name in unread_hp(plan, study) if name in differing]:
        return unread_text(idle)
    first, *others = (dict(plan.curve(trial)) for trial in study.trials)
    shared = [first.keys() & other.keys() for other in others]
    if len(equal) < len(study.trials) or not differing or not all(shared):
        return ""
    if any(first[step] != other[step] for other, steps in zip(others, shared, strict=True) for step in steps):
        return ""
    change = "changes" if len(differing) == 1 else "change"
    return f"{' and '.join(f'`{name}`' for name in differing)} {change} nothing so far: all trials have equal results"


def pareto_fields(plan: SearchPlan, study: Study) -> dict[str, Any]:
    """The fields of a study with several metrics or constraints."""
    if study.spec.objectives.is_plain:
        return {}
    mark_of = marks(plan, study)
    return {
        "metrics": list(study.spec.metrics),
        "constraints": list(study.spec.constraints),
        "front": [_best(plan, study, mark_of, *each) for each in results.pareto_front(plan, study)],
    }


class JudgedResult(NamedTuple):
    """A result by all metrics, and the size of its constraint violation."""

    metrics: dict[str, float]
    violation: float


def judged_result(plan: SearchPlan, study: Study, trial: Trial) -> JudgedResult | None:
    """None for a study with one metric and no constraints, and for a trial without a result."""
    result = None if study.spec.objectives.is_plain else results.result(plan, study, trial)
    if result is None:
        return None
    measured = plan.metrics(trial, result.step) or {}
    score = study.spec.objectives.score(measured)
    assert score is not None
    metrics = {name: float(measured[name] or 0.0) for name in study.spec.objectives.metrics}
    return JudgedResult(metrics, score.violation)


def pareto_trials(plan: SearchPlan, study: Study) -> frozenset[int]:
    """The trials of the Pareto front, if the study has one."""
    if study.spec.objectives.is_plain:
        return frozenset()
    return frozenset(trial.number for trial, _ in results.pareto_front(plan, study))


def outcomes_of(plan: SearchPlan, study: Study, trial: Trial) -> tuple[Outcome | None, Outcome | None]:
    """The trial's last and best results, each with its step."""
    return _outcome(results.last_value(plan, study, trial)), _outcome(results.best_of_curve(plan, study, trial))


def _outcome(result: results.MeasuredValue | None) -> Outcome | None:
    if result is None:
        return None
    step, value = result.step, float(result.value)
    if result.deviation is None:
        return _make_outcome(step=step, value=value)
    spread = {"deviation": result.deviation}
    return _make_outcome(step=step, value=value, repeats=result.repeats, repeats_from=result.repeats_from, **spread)


SHARED = "some chains trained in a process that another chain had trained in, as a fresh one would have taken too long"


def exactness(plan: SearchPlan, study: Study) -> Exactness:
    """The verdict on a study."""
    judgement = judge(plan, study)
    text = verdict_text(study, judgement)
    shared = f"; {SHARED}" if text and plan.shares_processes(study) else ""
    is_marked = bool(study.trials) and any(map(trial_marks(plan, study), study.trials))
    return Exactness(
        verdict=judgement.verdict,
        text=json_safe(text + shared),
        mark=json_safe(_join_reasons(text if is_marked else "", inexact_results.study_inexactness(plan, study))),
        reason=json_safe(judgement.reason),
        unchecked=list(judgement.unchecked),
        compared=judgement.compared,
        isolated=bool(study.isolated),
        audited=study.is_audited,
        proof_steps=study.proof_steps,
    )


def marks(plan: SearchPlan, study: Study) -> Callable[[Trial], str]:
    """The mark of a trial that was not compared or is inexact; else ""."""
    unchecked, inexact = trial_marks(plan, study), inexact_results.trial_inexactness_in(plan, study)
    return lambda trial: json_safe(_join_reasons(unchecked(trial), inexact(trial)))


def _join_reasons(unchecked: str, inexact: Sequence[str]) -> str:
    return "; ".join(filter(None, (unchecked, *inexact)))
