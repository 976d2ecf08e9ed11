"""The cost of a study, and its cost without sharing: a waterfall of training steps that adds up.

    alone - stopped_early - unfinished - shared - known + repeated + retried + lost + struck = run

alone          every started trial, and every repeat of it, trained alone to the end. The end is the tuner's
               `max_steps`. Without one, and for users' trials, it is the number of requested steps.
stopped_early  steps beyond a trial's requested steps, once the tuner has stopped the trial or the study is completed.
               While a trial may still be extended, its remaining steps do not count as saved.
unfinished     steps that were neither trained nor saved: future steps and, in a study that has ended, steps of trials
               that failed, were cancelled or could have been extended.
               `alone` minus these two is `steps_taken`: the trained steps of each trial, counted alone.
shared         steps that several trials of the study share, counted for all but one of them.
known          steps of the study that another study was charged for.
repeated       steps run again because a later trial branches off where no state was kept.
retried        steps run again because the user's code raised before their state was kept.
lost           steps run again because their state was lost with a worker.
struck         steps run before the trainer turned out not to be exact. All of them were run again.
run            steps that workers ran for the study. The study pays for these.

Sharing and early stopping save against different baselines, so the two are never added up. `saved_by_sharing`: without
sharing, the same tuner would run `steps_taken`. Sharing saves shared + known of them, minus the steps that it caused to
run again, repeated + struck (`steps_saved`). `saved_by_stopping`: training every trial to the end would take
`steps_taken` + stopped_early. A study that ended without a result saved nothing by sharing.

Everything here is computed from the folded plan, and so from the log.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from app.domain.search_plan import BUDGETS, SearchPlan, Study, Trial
from app.domain.terms import NodeId, StudyState, TrialState
from stagetree.space import LENGTH


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The waterfall of one study, in steps. has_no_result: whether it ended without a result."""

    alone: int
    stopped_early: int
    unfinished: int
    shared: int
    known: int
    repeated: int
    retried: int
    lost: int
    struck: int
    run: int
    has_no_result: bool = False

    @property
    def steps_taken(self) -> int:
        """The trained steps of each trial, counted alone. The same tuner would run them without sharing."""
        return self.alone - self.stopped_early - self.unfinished

    @property
    def saved_by_sharing(self) -> float | None:
        """The part of `steps_taken` that sharing saved; None before any training."""
        return self.steps_saved / self.steps_taken if self.steps_taken else None

    @property
    def steps_saved(self) -> int:
        """The steps that sharing saved, less the steps that it caused to run again."""
        return 0 if self.has_no_result else max(0, self.shared + self.known - self.repeated - self.struck)

    @property
    def saved_by_stopping(self) -> float | None:
        """The part that early stopping saved of training every trial to the end; None before any training."""
        whole = self.steps_taken + self.stopped_early
        return self.stopped_early / whole if whole else None


def cost(plan: SearchPlan, study: Study) -> Waterfall:
    """The cost of the study to date."""
    ends = [horizon(study, trial) * len(trial.runs) for trial in study.trials]
    begins = [plan.start_step(trial) * len(trial.runs) for trial in study.trials]
    served = [sum(_steps_reached(plan, name, end) for name, end in plan.path_ends(trial)) for trial in study.trials]
    ended = [(end, trial) for end, trial in zip(ends, study.trials, strict=True) if _is_over(study, trial)]
    stopped = sum(end - trial.steps * len(trial.runs) for end, trial in ended)
    distinct = sum(_steps_reached(plan, name, end) for name, end in study.max_step_by_node.items())
    return Waterfall(
        alone=sum(ends) - sum(begins),
        stopped_early=stopped,
        unfinished=sum(ends) - sum(begins) - sum(served) - stopped,
        shared=sum(served) - distinct,
        known=distinct - study.first,
        repeated=study.executed - study.first - study.retried - study.lost - study.struck,
        retried=study.retried,
        lost=study.lost,
        struck=study.struck,
        run=study.executed,
        has_no_result=study.is_final and not study.num_results,
    )


def planned_cost(plan: SearchPlan, study: Study) -> Waterfall:
    """The cost of the only study of a plan, once all its requests are trained and nothing was stopped or repeated."""
    alone = sum((horizon(study, trial) - plan.start_step(trial)) * len(trial.runs) for trial in study.trials)
    taken, run = study.requested, study.unique
    return Waterfall(alone, alone - taken, 0, taken - run, 0, 0, 0, 0, 0, run)


ENOUGH_STEPS = 10
"""The fewest steps, run in processes that had started before, for an estimate of the pace of a study."""


def seconds_per_step(study: Study) -> float:
    """Slot seconds per step, without process starts, verification and failures; 0 below `ENOUGH_STEPS` steps."""
    return study.paced_seconds / study.paced_steps if study.paced_steps >= ENOUGH_STEPS else 0.0


def horizon(study: Study, trial: Trial) -> int:
    """The steps of each run of the trial if it is not stopped."""
    is_open = trial.reason.get("by") == "tuner" and trial.trunk is None
    return max(trial.steps, (study.spec.max_steps or 0) if is_open else 0)


def last_step(plan: SearchPlan, trial: Trial) -> int:
    """The last requested step that all runs of the trial have reached, no matter which study trained it."""
    return min(_last_step(plan, run) for run in trial.single_runs())


def _last_step(plan: SearchPlan, trial: Trial) -> int:
    furthest = 0
    for name, end in plan.path_ends(trial):
        node = plan.nodes[name]
        if node.reached > node.start:
            furthest = max(furthest, min(end, node.reached))
        if furthest < end:  # the steps of a running stage may be measured before they are charged
            furthest = max(furthest, max((step for step in node.metrics if step <= end), default=0))
    return furthest


def recorded_steps(plan: SearchPlan, study: Study) -> int:
    """The unique steps of the study that are trained and whose state was not lost before it was saved."""
    nodes = ((plan.nodes[name], end) for name, end in study.max_step_by_node.items())
    return sum(max(0, min(end, node.trained) - node.start) for node, end in nodes)


def _steps_reached(plan: SearchPlan, name: NodeId, end: int) -> int:
    """The trained steps of a node up to step `end`."""
    node = plan.nodes[name]
    return max(0, min(end, node.reached) - node.start)


def _is_over(study: Study, trial: Trial) -> bool:
    """Whether the tuner has decided not to train the trial further."""
    if trial.state == TrialState.STOPPED:
        return True
    return trial.state == TrialState.COMPLETED and study.state == StudyState.COMPLETED


# ------------------------------------------------------------------------------------------------------------ budgets


class Forecast(NamedTuple):
    """The expected number of trials of a study, and of their unique steps."""

    trials: int
    steps: int


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """The steps run for a study, and its slot seconds including running chains."""

    steps: int = 0
    slot_seconds: float = 0.0

    def exhausted_budget(self, budgets: Mapping[str, float]) -> str | None:
        """The name of the budget that is used up, if any."""
        used = dict(zip(BUDGETS, (self.steps, self.slot_seconds), strict=True))
        return next((name for name, most in budgets.items() if used[name] >= most), None)


def budget_use(plan: SearchPlan, study: Study, at: float) -> BudgetUse:
    """The budget that a study has used at a time; zero for a study without budgets.

    A chain is charged for its slots from its assignment to its end.
    """
    if not study.spec.budgets:
        return BudgetUse()
    return BudgetUse(
        study.executed, study.gpu_seconds + sum(seconds for seconds, _ in _running_chains(plan, study, at))
    )


def budget_left(plan: SearchPlan, study: Study, at: float) -> dict[str, float]:
    """The rest of each budget of the study at a time; empty for a study without budgets."""
    use = budget_use(plan, study, at)
    used = dict(zip(BUDGETS, (use.steps, use.slot_seconds), strict=True))
    return {name: round(max(0.0, most - used[name]), 3) for name, most in study.spec.budgets.items()}


def seconds_to_budget(plan: SearchPlan, study: Study, at: float) -> float:
    """Seconds until the running chains use up `max_slot_seconds`; infinite without that budget."""
    most = study.spec.max_slot_seconds
    if most is None:  # avoids a loop over hundreds of chains
        return math.inf
    pace = sum(slots for _, slots in _running_chains(plan, study, at))
    return max(0.0, most - budget_use(plan, study, at).slot_seconds) / pace if pace else math.inf


def _running_chains(plan: SearchPlan, study: Study, at: float) -> Iterator[tuple[float, float]]:
    """For each chain that trains for the study, its uncharged slot seconds and its number of slots.

    Chains in one pack have equal shares of the slot.
    """
    training = [chain for chain in plan.chains.values() if not chain.is_trained]
    lanes = Counter(chain.slot for chain in training)
    for chain in training:
        if chain.stages[chain.index].study == study.id:
            slots = chain.ranks / lanes[chain.slot]
            yield max(0.0, (at - chain.at) * slots - chain.seconds * chain.ranks), slots


def steps_left(plan: SearchPlan, study: Study) -> float:
    """The steps of `max_total_steps` that no chain has run or been assigned; infinite without that budget.

    Assigned steps count as run because a chain runs to its end. So a study never exceeds its budget.
    """
    most = study.spec.max_total_steps
    if most is None:
        return math.inf
    chains = (chain for chain in plan.chains.values() if chain.proof is None)
    stages = (stage for chain in chains for stage in chain.stages[chain.index :] if stage.study == study.id)
    return float(max(0, most - study.executed - sum(stage.end - stage.start for stage in stages)))


# ---------------------------------------------------------------------------------------------- the price of a choice

MOST_OPTIONS = 12
"""A field with more values is not priced as a choice."""


def choices(plan: SearchPlan, study: Study) -> list[dict[str, Any]]:
    """For each value of each field in which trials differ: its trials, and the steps that only they train.

    Without that value the study would train that many steps less. Empty for tuners that decide by results.
    """
    if not study.spec.requests_all_at_once:
        return []
    columns = [{**_fields(trial.hp), LENGTH: trial.steps} for trial in study.trials]
    priced = list[dict[str, Any]]()
    for field in dict.fromkeys(name for column in columns for name in column):
        chosen = [None if (value := column.get(field)) is None else repr(value) for column in columns]
        if 1 < len({*chosen} - {None}) <= MOST_OPTIONS:
            priced += _price_options(plan, study, field, chosen, [column.get(field) for column in columns])
    return priced


def _price_options(
    plan: SearchPlan, study: Study, field: str, chosen: list[str | None], values: list[Any]
) -> Iterator[dict[str, Any]]:
    """The options of a field in order. chosen: the option of each trial. values: its value."""
    ends = [[*plan.path_ends(trial)] for trial in study.trials]
    steps, trials = _steps_of_options(plan, chosen, ends), Counter(chosen)
    options = {option: value for option, value in zip(chosen, values, strict=True) if option is not None}
    for option, value in sorted(options.items(), key=lambda item: _option_order(item[1])):
        yield {"field": field, "value": value, "trials": trials[option], "steps": steps[option]}


def _fields(written: Any, name: str = "") -> dict[str, Any]:
    """The values in hyper-parameters by path, such as `lr.init`. Lists are values."""
    if not isinstance(written, dict):
        return {name: written}
    if written.get("family") == "constant":
        return {name: written["value"], f"{name}.family": "constant"}
    fields = dict[str, Any]()
    for field, value in written.items():
        path = f"{name}.{field}".strip(".")
        if isinstance(value, dict):
            fields |= _fields(value, path)
        else:
            fields[path] = value
    return fields


def _option_order(value: Any) -> tuple[bool, float, str]:
    is_number = isinstance(value, int | float)
    return (not is_number, value if is_number else 0.0, json.dumps(value))


def _steps_of_options(
    plan: SearchPlan, chosen: list[str | None], ends: list[list[tuple[NodeId, int]]]
) -> Counter[str | None]:
    """The steps that only the trials of each option train. chosen, ends: of each trial, its option and its nodes."""
    furthest: dict[NodeId, dict[str | None, int]] = defaultdict(dict)
    for option, path in zip(chosen, ends, strict=True):
        for node, end in path:
            by_option = furthest[node]
            by_option[option] = max(end, by_option.get(option, 0))
    steps = Counter[str | None]()
    for node, by_option in furthest.items():
        option = max(by_option, key=by_option.__getitem__)
        others = (end for other, end in by_option.items() if other != option)
        steps[option] += by_option[option] - max(others, default=plan.nodes[node].start)
    return steps
