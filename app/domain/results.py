"""The result of a trial: its value, which trial is the best, and in what a result is not exact, in sentences.

The definition of the best is the one that everything shown goes by: trials that failed come last, whatever they had
measured, since what made one fail, such as the batch size that it would double to, is part of its configuration. A
trial's `last` result is the metric of its study at the last step that the trial was asked for and that has one; its
`best` is the best of those at the steps at which its study asks for it, ties to the earlier one. The study file's
`value` says which of the two is the trial's value. Tuners decide on the results they asked for, whatever `value` says.
What another study evaluates on its way changes neither. A trial that cooldowns were branched off is judged by these:
each of them is ranked, and it is not.

A sentence on exactness: 2 stages went on under another torch (2.13.0 after 2.12.0). Inputs count as well: results may
be of other inputs than it seems, see `app.domain.inputs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import hypot, sqrt
from statistics import stdev
from typing import Any, NamedTuple

from app.domain import inputs
from app.domain.events import Stage
from app.domain.objectives import ResultScore, Scored
from app.domain.pareto_fronts import best_first
from app.domain.pareto_fronts import pareto_front as best_front
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.terms import NodeId
from stagetree.text import RANKED_LAST


class MeasuredValue(NamedTuple):
    """The study's metric after a step; of a trial with repeats, the mean.

    repeats: how many different ones it is the mean of. deviation: theirs, of a sample; None for fewer than two.
    """

    step: int
    value: float
    deviation: float | None = None
    repeats: int = 1


def score(plan: SearchPlan, study: Study, trial: Trial) -> ResultScore | None:
    """The trial's value by the study's choice, with its other metrics and constraints; None where it has none."""
    value = result(plan, study, trial)
    return None if value is None else study.objectives.score(plan.metrics(trial, value.step) or {})


def sign(study: Study) -> int:
    """-1 where more is better, so that the smaller sign * value is better; 1 where less is."""
    return 1 if study.mode == "min" else -1


def last_value(plan: SearchPlan, study: Study, trial: Trial) -> MeasuredValue | None:
    """The metric at the last step the trial was asked for that has one."""
    for step in reversed(trial.requested_steps):
        if value := measured_value(plan, study, trial, step):
            return value
    return None


def best_of_curve(plan: SearchPlan, study: Study, trial: Trial) -> MeasuredValue | None:
    """The best of the metric at the steps where the study asks for it; what breaks no constraint is better."""
    asked = (step for step, _ in plan.curve(trial) if study.evaluates(step) or step in trial.requested_steps)
    scored = ((study.objectives.score(plan.metrics(trial, step) or {}), step) for step in asked)
    best = min(((score, step) for score, step in scored if score is not None), default=None)
    return None if best is None else measured_value(plan, study, trial, best[1])


def result(plan: SearchPlan, study: Study, trial: Trial) -> MeasuredValue | None:
    """The trial's value by the study's choice, with its step."""
    return (best_of_curve if study.value == "best" else last_value)(plan, study, trial)


def rank_trials(plan: SearchPlan, study: Study) -> list[tuple[Trial, MeasuredValue]]:
    """The trials that have a value, the best first, ties to the lower number; without the trunks of cooldowns.

    Failed trials come behind all others.
    """
    groups = _failed_last(study, _scored(plan, study))
    return [_measured(plan, study, number) for group in groups for _, number in best_first(group)]


def contenders(order: list[tuple[Trial, MeasuredValue]]) -> list[tuple[Trial, MeasuredValue]]:
    """Of `ranked`, the trials that the best one is the best of: no failed one, unless all of them are."""
    return [each for each in order if each[0].state != RANKED_LAST] or order


def best_trial(study: Study, measured: Mapping[int, Mapping[str, float | None]]) -> int | None:
    """Of trials with their metrics, the number of the best; None where none has a result."""
    scores = ((study.objectives.score(metrics), trial) for trial, metrics in measured.items())
    groups = _failed_last(study, ((score, trial) for score, trial in scores if score is not None))
    return next((trial for group in groups for _, trial in best_first(group)), None)


def pareto_front(plan: SearchPlan, study: Study) -> list[tuple[Trial, MeasuredValue]]:
    """The trials whose results break no constraint and that none dominates; the first k of them are spread over it.

    Failed trials are not looked at, unless all with a result failed.
    """
    group = next(filter(None, _failed_last(study, _scored(plan, study))), [])
    return [_measured(plan, study, number) for _, number in best_front(group)]


def _failed_last(study: Study, scored: Iterable[Scored]) -> tuple[list[Scored], list[Scored]]:
    """In two groups, the failed ones behind."""
    groups: tuple[list[Scored], list[Scored]] = ([], [])
    for each in scored:
        groups[study.trials[each[1]].state == RANKED_LAST].append(each)
    return groups


def _scored(plan: SearchPlan, study: Study) -> Iterator[Scored]:
    trunks = {trial.cooldown_of for trial in study.trials if trial.cooldown_of is not None}
    for trial in study.trials:
        if trial.number not in trunks and (own := score(plan, study, trial)) is not None:
            yield own, trial.number


def _measured(plan: SearchPlan, study: Study, number: int) -> tuple[Trial, MeasuredValue]:
    trial = study.trials[number]
    value = result(plan, study, trial)
    assert value is not None
    return trial, value


STANDARD_ERRORS = 2
"""The best trial is told from another one where their means differ by so many standard errors of that difference."""


def ties_with_best(order: Sequence[tuple[Trial, MeasuredValue]]) -> list[int]:
    """Of `ranked`, the trials that their repeats do not tell from the best one, by the error of the difference.

    Trials without repeats are never among them: nothing is known of their noise.
    """
    return [trial.number for trial, value in order[1:] if _is_within_noise(order[0][1], value)]


def _is_within_noise(one: MeasuredValue, other: MeasuredValue) -> bool:
    if one.deviation is None or other.deviation is None:
        return False
    error = hypot(one.deviation / sqrt(one.repeats), other.deviation / sqrt(other.repeats))
    return abs(one.value - other.value) < STANDARD_ERRORS * error


def best(plan: SearchPlan, study: Study) -> tuple[Trial, MeasuredValue] | None:
    """The best trial with its value; None as long as none has one."""
    return next(iter(rank_trials(plan, study)), None)


def measured_value(plan: SearchPlan, study: Study, trial: Trial, step: int) -> MeasuredValue | None:
    """The metric after a step, a mean where the trial has repeats; None until all of them are measured there."""
    score = study.objectives.score(plan.metrics(trial, step) or {})
    if score is None:
        return None
    each = [number for metrics in plan.metrics_by_run(trial, step) if (number := metrics.get(study.metric)) is not None]
    value, deviation = sign(study) * score.losses[0], stdev(each) if len(each) > 1 else None
    return MeasuredValue(step, value, deviation, len(each))


Json = dict[str, Any]

WITHOUT_PACK = "trained without their pack, which had failed"
"""Why stages of a plan with packs may differ in their last bits from others: see `ExactnessLost`."""


def is_without_pack(plan: SearchPlan, stage: Stage) -> bool:
    """Whether some of a stage was trained alone after its pack had failed."""
    noted = plan.nodes[stage.node].not_exact if stage.node in plan.nodes else ()
    return any(reason == WITHOUT_PACK and stage.start < step <= stage.end for step, reason in noted)


def study_inexactness(plan: SearchPlan, study: Study) -> list[str]:
    """Of all stages that its trials pass, whoever they were trained for."""
    stages = _sentences(plan, study.max_step_by_node.items())
    return [*stages, *_equal_repeats(plan, study.trials), *inputs.input_warnings(plan, study)]


def trial_inexactness(plan: SearchPlan, trial: Trial) -> list[str]:
    """Of the stages on its way."""
    return trial_inexactness_in(plan, plan.studies[trial.study])(trial)


def trial_inexactness_in(plan: SearchPlan, study: Study) -> Callable[[Trial], list[str]]:
    """The same of each trial of a study."""
    of_all, is_noted = list(inputs.input_warnings(plan, study)), any(node.not_exact for node in plan.nodes.values())

    def of(trial: Trial) -> list[str]:
        stages = _sentences(plan, plan.sources(trial)) if is_noted else []
        return [*stages, *_equal_repeats(plan, [trial]), *of_all]

    return of


def _equal_repeats(plan: SearchPlan, trials: Iterable[Trial]) -> Iterator[str]:
    """That repeats do not differ where they should."""
    alike = [trial.number for trial in trials if len(trial.runs) > 1 and _has_equal_repeats(plan, trial)]
    if alike:
        number = f"{len(alike)} {'trial' if len(alike) == 1 else 'trials'}"
        yield f"the repeats of {number} have equal values, as if the trainer did not read data_seed"


def _has_equal_repeats(plan: SearchPlan, trial: Trial) -> bool:
    repeats = plan.metrics_by_run(trial, trial.steps)
    is_measured = all(value is not None for each in repeats for value in each.values())
    return len(repeats) > 1 and is_measured and all(each == repeats[0] for each in repeats)


def _sentences(plan: SearchPlan, ends: Iterable[tuple[NodeId, int]]) -> list[str]:
    noted = (step_and_reason for name, end in ends for step_and_reason in _up_to(plan, name, end))
    counts = Counter(reason for _, reason in noted)
    return [f"{count} {'stage' if count == 1 else 'stages'} {reason}" for reason, count in counts.items()]


def _up_to(plan: SearchPlan, name: NodeId, end: int) -> Iterable[tuple[int, str]]:
    return ((step, reason) for step, reason in plan.nodes[name].not_exact if step <= end)
