"""Runs a study on virtual slots, with one second a step. No step is trained, and all results are equal.

Where nothing depends on results and little on the order of requests, the run is planned instead of simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.domain import commands as c
from app.domain import events as e
from app.domain.accounting import Waterfall, cost, planned_cost
from app.domain.decide import decide
from app.domain.evolve import collector_paused, fold
from app.domain.search_plan import Node, SearchPlan, StoredSpec, Study
from app.domain.terms import Refused, StudyId
from app.scheduling.costs import Costs
from app.search.samplers import NEEDED
from app.search.tuners import TunerDriver, TunerFailed
from app.simulation.list_scheduling import ListScheduling
from app.simulation.simulator import Simulator, Unit, submission
from stagetree.limits import Limits
from stagetree.spec import StudySpec


def request_all(study: c.SubmitStudy, limits: Limits, watch: Callable[[int], None]) -> SearchPlan:
    """The plan after the study's tuner has requested all that it wants without any result.

    watch: called with the number of events; an exception ends it. Raises `Refused` and `TunerFailed`, too.
    """
    plan = SearchPlan()
    fold(decide(plan, study, limits), plan)
    asking = plan.studies[study.study]
    driver = TunerDriver(asking.spec.json)
    while actions := driver.suggest(limits.trials):
        fold(decide(plan, c.ApplyTunerActions(study=study.study, actions=actions), limits), plan)
        driver.observe(asking)
        watch(plan.version)
    return plan


MOST_EVENTS = 2_000_000
ENDINGS = ("target", "patience", "max_time", "max_slot_seconds")
STUDY = StudyId("preview")

_SINGLE = {"ranks": 1}

ORDER_SHARE = 0.01
"""The largest error of a makespan because trials were not requested in the order of the scheduler."""


@dataclass(frozen=True, slots=True)
class VirtualRun:
    """The result of a run: the plan, and the makespan, the cost and the slot time of its only study, in seconds."""

    plan: SearchPlan
    makespan: float
    cost: Waterfall
    slot_seconds: float

    @property
    def study(self) -> Study:
        return self.plan.studies[STUDY]


class PreviewTooLong(Exception):
    """The study is too large to be simulated; the message is one sentence."""


def run_virtually(
    spec: StudySpec,
    slots: int,
    limits: Limits,
    is_over: Callable[[], bool],
    profile: e.PackingProfiled | None = None,
    gangs: e.RanksProfiled | None = None,
    costs: Costs | None = None,
) -> VirtualRun:
    """Run the study: without packs unless `profile` is given, on single devices unless `gangs` is.

    is_over: called now and then; true if it has taken too long. Raises `PreviewTooLong`.
    """
    planned = plan_at_once(spec, limits, is_over) if profile is None and gangs is None else None
    if planned is not None and (scheduled := _schedule(planned, slots, costs or Unit())) is not None:
        return scheduled
    study, watch = remove_guidance(spec.to_json()) | ({} if gangs else _SINGLE), _watching(is_over)
    packing = 0 if profile is None else spec.lanes
    return _simulate(study, packing, slots, costs, limits=limits, watch=watch, profile=profile, ranks=gangs)


def is_known_at_once(spec: StudySpec) -> bool:
    """Whether the study requests all its steps before it has any result."""
    requests_all = StoredSpec.from_json(spec.to_json()).requests_all_at_once
    return requests_all and spec.stop_hopeless is None and spec.max_total_steps is None


def plan_at_once(spec: StudySpec, limits: Limits, is_over: Callable[[], bool]) -> SearchPlan | None:
    """The plan of a study that requests all its steps before it has any result, on single devices; None for others.

    Raises `PreviewTooLong`.
    """
    if not is_known_at_once(spec):
        return None
    study = remove_guidance(spec.to_json()) | _SINGLE
    try:
        with collector_paused():
            return request_all(submission(STUDY, study), limits, _watching(is_over))
    except (Refused, TunerFailed) as problem:
        raise _ended_early(problem) from problem


def _schedule(plan: SearchPlan, slots: int, costs: Costs) -> VirtualRun | None:
    """The run of a whole plan by list scheduling; None if its makespan depends much on the order of requests."""
    with collector_paused():
        schedule = ListScheduling(plan, costs.seconds_per_step)
        if schedule.longest * (slots - 1) > ORDER_SHARE * schedule.total:
            return None
        return VirtualRun(plan, schedule.makespan(slots), planned_cost(plan, plan.studies[STUDY]), schedule.total)


def _simulate(spec: dict[str, Any], packing: int | None, slots: int, costs: Costs | None, **how: Any) -> VirtualRun:
    """Play the scheduler. how: more arguments of `Simulator`. Raises `PreviewTooLong`."""
    pace = costs or Unit()

    def seconds(stage: e.Stage, number: int) -> float:
        return (stage.end - stage.start) * pace.seconds_per_step(simulator.plan.nodes[stage.node])

    make_costs = Unit if costs is None else Costs
    simulator = Simulator(slots=slots, measure=_measuring(spec), seconds=seconds, make_costs=make_costs, **how)
    simulator.submit(STUDY, spec, packing)
    simulator.run()
    plan, study = simulator.plan, simulator.plan.studies[STUDY]
    if study.error is not None:
        raise _ended_early(study.error)
    return VirtualRun(plan, simulator.now, cost(plan, study), study.gpu_seconds)


def _ended_early(why: object) -> PreviewTooLong:
    return PreviewTooLong(f"the study would come to an end before its tuner is done: {why}")


def remove_guidance(spec: dict[str, Any]) -> dict[str, Any]:
    """The study without the fields that depend on results or time, of which a preview has none.

    A sampler that learns becomes a random one, and only the tuner ends the study.
    """
    spec = {name: value for name, value in spec.items() if name not in (*ENDINGS, "learn_from")}
    tuner = {name: value for name, value in spec["tuner"].items() if name != "per_rung"}
    return {**spec, "tuner": {**tuner, "sampler": "random"}} if tuner.get("sampler") in NEEDED else spec


def _measuring(spec: dict[str, Any]) -> Any:
    metrics: e.Metrics = dict.fromkeys(required_metrics(spec), 1.0)

    def measure(node: Node, step: int) -> e.Metrics:
        return metrics

    return measure


def required_metrics(spec: dict[str, Any]) -> tuple[str, ...]:
    return StoredSpec.from_json(spec).objectives.metrics


def _watching(is_over: Callable[[], bool]) -> Callable[[int], None]:
    def watch(events: int) -> None:
        if events > MOST_EVENTS or is_over():
            raise PreviewTooLong("the study must be smaller to be previewed: it takes too long, try fewer trials")

    return watch
