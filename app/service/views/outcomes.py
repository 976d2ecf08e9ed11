"""Results as answers: the best trial, the Pareto front, and the metrics and constraints of each result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict

from app.domain import results, search_plan
from app.domain.search_plan import SearchPlan, Study
from app.domain.trainer_check import unread_hp
from app.service.views.exactness import marks
from stagetree.models.answer import constructor_without_validation
from stagetree.models.studies import Best
from stagetree.models.trials import Outcome
from stagetree.text import mark_sentence, unread_text

Ranked = Sequence[tuple[search_plan.Trial, results.MeasuredValue]]

_make_outcome = constructor_without_validation(Outcome)


def best(plan: SearchPlan, study: Study, ranked: Ranked | None = None) -> Best | None:
    """The best trial by the study's mode, ties to the lower number; None before any has a value.

    ranked: the trials by rank, if they are known.
    """
    order = results.rank_trials(plan, study) if ranked is None else ranked
    return _best(plan, study, marks(plan, study), *order[0]) if order else None


def result_step(plan: SearchPlan, study: Study, trial: search_plan.Trial) -> int | None:
    """The step of a trial's value; None before it has one."""
    result = results.result(plan, study, trial)
    return None if result is None else result.step


def mark(plan: SearchPlan, study: Study, trial: search_plan.Trial) -> str:
    """The mark of a trial; empty without one."""
    return marks(plan, study)(trial)


def mark_of_best(plan: SearchPlan, study: Study, best: search_plan.Trial) -> str:
    """The mark of the best trial as a sentence that follows its result; empty without one."""
    text = mark(plan, study, best)
    subject = "Its value" if len(study.spec.objectives.goals) == 1 else f"Trial {best.number}"
    return f" {mark_sentence(subject, text)}." if text else ""


def _best(
    plan: SearchPlan,
    study: Study,
    mark_of: Callable[[search_plan.Trial], str],
    trial: search_plan.Trial,
    result: results.MeasuredValue,
) -> Best:
    last, best = outcomes_of(plan, study, trial)
    more: dict[str, Any] = judged._asdict() if (judged := judged_result(plan, study, trial)) else {}
    if text := mark_of(trial):
        more["exactness"] = text
    best_so_far = Best(trial=trial.number, value=result.value, steps=result.step, hp=trial.hp, last=last, best=best)
    return best_so_far.with_fields(**more)


def idle_parameters_text(plan: SearchPlan, study: Study, equal: Sequence[search_plan.Trial]) -> str:
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


def judged_result(plan: SearchPlan, study: Study, trial: search_plan.Trial) -> JudgedResult | None:
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


def outcomes_of(plan: SearchPlan, study: Study, trial: search_plan.Trial) -> tuple[Outcome | None, Outcome | None]:
    """The trial's last and best results, each with its step."""
    return _outcome(results.last_value(plan, study, trial)), _outcome(results.best_of_curve(plan, study, trial))


def _outcome(result: results.MeasuredValue | None) -> Outcome | None:
    if result is None:
        return None
    return _make_outcome(step=result.step, value=float(result.value), **_spread(result))


class _Spread(TypedDict, total=False):
    """The fields beside a mean."""

    deviation: float
    repeats: int
    repeats_from: int


def _spread(result: results.MeasuredValue) -> _Spread:
    if result.deviation is None:
        return {}
    return {"deviation": result.deviation, "repeats": result.repeats, "repeats_from": result.repeats_from}
