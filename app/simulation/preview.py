"""Previews the costs and savings of a study by running it on virtual slots, with one second a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from app.domain import events as e
from app.domain.accounting import Waterfall, choices, cost, planned_cost
from app.domain.search_plan import Node, SearchPlan, StoredSpec, Study
from app.domain.terms import Refused, StudyId, TrialState
from app.scheduling.costs import Costs
from app.scheduling.widths import Peaks, batch_of, batch_sizes
from app.search.samplers import NEEDED
from app.search.tuners.driver import TunerFailed
from app.simulation.list_scheduling import ListScheduling
from app.simulation.pace import even_packs, even_ranks, faster
from app.simulation.rewrites import savings
from app.simulation.simulator import Simulator, Unit
from stagetree.limits import LIMITS, Limits
from stagetree.spec import StudySpec

MOST_EVENTS = 2_000_000
ENDINGS = ("target", "patience", "max_time", "max_slot_seconds")
STUDY = StudyId("preview")
BY_RESULTS = ("sha", "asha", "hyperband", "async_hyperband", "median", "bandit", "early_term", "pop", "pbt")
"""Tuners whose steps depend on results; the others request all their steps at once."""

KNOWN_AT_ONCE = ("trials", "grid", "random")
"""Tuners that request all their trials to the end, whatever the results."""

ORDER_SHARE = 0.01
"""The largest error of a makespan because trials were not requested in the order of the scheduler."""

DOUBLING_EFFICIENCY = 0.9
"""The assumed efficiency of doubling the ranks, 1.8 times as fast, where nothing was measured."""


class Measurements(Protocol):
    """Measurements of packs, or of several devices, with batches of these hyper-parameters."""

    def __call__(self, batch: e.Json, kind: type[e.Profile]) -> e.Profile | None: ...


def nothing(batch: e.Json, kind: type[e.Profile]) -> e.Profile | None:
    return None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A study after its run on virtual slots. makespan, slot_seconds: in seconds."""

    plan: SearchPlan
    makespan: float
    cost: Waterfall
    slot_seconds: float

    @property
    def study(self) -> Study:
        return self.plan.studies[STUDY]

    @classmethod
    def of(cls, simulator: Simulator) -> Outcome:
        """What a simulation has come to."""
        plan = simulator.plan
        return cls(plan, simulator.now, cost(plan, plan.studies[STUDY]), plan.studies[STUDY].gpu_seconds)


class PreviewTooLong(Exception):
    """The study is too large to be simulated; the message is one sentence."""


def preview(
    spec: StudySpec,
    *,
    slots: int,
    limits: Limits = LIMITS,
    is_over: Callable[[], bool] = lambda: False,
    measured: Measurements = nothing,
    costs: Costs | None = None,
    peaks: Peaks | None = None,
) -> dict[str, Any]:
    """The requested and unique steps, the critical path, and the time on `slots` slots, all counted in steps.

    With several devices a stage, `ranks` has the speed-ups, the kind of device on which they were measured (or None),
    and the numbers of ranks for which they are `assumed`.

    For a study that packs, `packed_makespan_steps` is the time with packs, and `packing` has their width and the device
    on which they were measured; None if they were not, and a pack is assumed to take no longer than one trial.

    costs: of steps, as measured on the plan that the study would join. They give `time`: the seconds, and the error of
    such estimates. peaks: of the memory there; they give `memory`: the largest, with batches as large, by kind of GPU,
    if the study does not pack.

    is_over: called now and then; true if the preview has taken too long. Raises `PreviewTooLong`.
    """

    if (least := spec.ranks if isinstance(spec.ranks, int) else spec.ranks["least"]) > slots:
        raise PreviewTooLong(f"a study of {least} ranks is previewed on {least} slots or more, not on {slots}")
    run = partial(_run, spec, slots, limits, is_over)
    outcome, ranks = _run_gangs(spec, measured, run)
    plan, previewed = outcome.plan, outcome.study
    packed = {}
    if spec.packing:
        profile = measured(batch_of(plan.nodes[plan.roots[0]]), e.PackingProfiled) if plan.roots else None
        packed = _packing_fields(spec, profile, run)
    return {
        **_steps(outcome),
        "slots": slots,
        **_rung_values(plan, previewed),
        **_budget(spec, previewed),
        **packed,
        **ranks,
        **_time(costs, run),
        "memory": [] if spec.packing else _memory(peaks or {}, plan),
        "choices": choices(plan, previewed),
        **savings(spec, previewed, partial(plan_study, limits=limits, is_over=is_over)),
    }


def _steps(outcome: Outcome) -> dict[str, Any]:
    """The steps of the trials, and the shares that are saved. Times are in steps."""
    previewed, saved = outcome.study, outcome.cost
    return {
        "trials": len(previewed.trials),
        "requested": previewed.requested,
        "unique": previewed.unique,
        "merge_rate": round(previewed.requested / previewed.unique, 3) if previewed.unique else 1.0,
        "by_results": previewed.spec.kind in BY_RESULTS or previewed.spec.stop_hopeless is not None,
        "alone": saved.alone,
        "saved_by_sharing": saved.saved_by_sharing and round(saved.saved_by_sharing, 4),
        "saved_by_stopping": saved.saved_by_stopping and round(saved.saved_by_stopping, 4),
        "critical_path_steps": max((trial.steps for trial in previewed.trials), default=0),
        "makespan_steps": round(outcome.makespan),
    }


def _time(costs: Costs | None, run: Callable[..., Outcome]) -> dict[str, Any]:
    """The seconds with one device a stage and no packs, if steps were measured."""
    if costs is None or costs.error is None:
        return {}
    outcome = run(costs=costs)
    return {
        "time": {
            "slot_seconds": float(f"{outcome.slot_seconds:.3g}"),
            "makespan_seconds": float(f"{outcome.makespan:.3g}"),
            "error": float(f"{costs.error.median:.2g}"),
            "settings": costs.error.settings,
        }
    }


def _memory(peaks: Peaks, plan: SearchPlan) -> list[dict[str, Any]]:
    """The largest memory, by kind of GPU, of the study's batch sizes that were trained before."""
    last = {node: end - 1 for node, end in plan.studies[STUDY].max_step_by_node.items()}
    nodes = plan.nodes.values()
    sizes = {batch_sizes(node, step) for node in nodes for step in {node.start, max(node.start, last.get(node.id, 0))}}
    seen = {gpu: [peak for size, peak in of_gpu.items() if size in sizes] for gpu, of_gpu in sorted(peaks.items())}
    return [
        {"gpu": gpu, "bytes": max(each), "seen": len(each), "sizes": len(sizes)} for gpu, each in seen.items() if each
    ]


def _rung_values(plan: SearchPlan, previewed: Study) -> dict[str, Any]:
    return _cooldowns(previewed) | _merges(plan, previewed)


def _cooldowns(previewed: Study) -> dict[str, Any]:
    """The number of cooldowns at rungs, and their steps beyond their trunks, each counted alone."""
    cooldowns = (trial for trial in previewed.trials if trial.cooldown_of is not None)
    steps = [(trial.steps - trial.reason["at"]) * len(trial.runs) for trial in cooldowns]
    return {"cooldowns": {"trials": len(steps), "steps": sum(steps)}} if steps else {}


def _merges(plan: SearchPlan, previewed: Study) -> dict[str, Any]:
    """The number of merges at rungs, and of the states that are saved for them."""
    merges = [trial for trial in previewed.trials if trial.merge_of is not None]
    means = {name for trial in merges for name in trial.passes}
    states = {(share.node, share.step) for name in means for share in plan.means[name]}
    return {"merges": {"trials": len(merges), "states": len(states)}} if merges else {}


def _budget(spec: StudySpec, previewed: Study) -> dict[str, Any]:
    """The step at which a budget ends the study. For a budget of seconds: the seconds per step from which it does."""
    ending = previewed.ending
    if not ending and spec.max_slot_seconds is None:
        return {}
    done = sum(trial.state == TrialState.COMPLETED for trial in previewed.trials)
    slow = spec.max_slot_seconds and spec.max_slot_seconds / max(1, previewed.executed)
    ends = {"by": ending["by"], "steps": previewed.executed, "trials": done} if ending else None
    return {"budget": {"ends": ends, "seconds_per_step": slow and float(f"{slow:.3g}")}}


def _packing_fields(
    spec: StudySpec, profile: e.PackingProfiled | None, run: Callable[[e.PackingProfiled], Outcome]
) -> dict[str, Any]:
    """profile: a measurement, which may be of another width than the study's."""
    if profile is not None and spec.lanes is not None and str(spec.lanes) not in profile.batch_seconds:
        profile = None
    outcome = run(profile or even_packs(1.0))
    how = {"width": outcome.plan.packing, "device": profile and profile.device}
    return {"packed_makespan_steps": round(outcome.makespan), "packing": how}


def _run(
    spec: StudySpec,
    slots: int,
    limits: Limits,
    is_over: Callable[[], bool],
    profile: e.PackingProfiled | None = None,
    gangs: e.RanksProfiled | None = None,
    costs: Costs | None = None,
) -> Outcome:
    """Simulate the study: without packs unless `profile` is given, on single devices unless `gangs` is. Raises
    `PreviewTooLong`.
    """
    packing = 0 if profile is None else spec.lanes
    pace = Unit() if costs is None else costs

    def seconds(stage: e.Stage, number: int) -> float:
        return (stage.end - stage.start) * pace.seconds_per_step(simulator.plan.nodes[stage.node])

    def make() -> Simulator:
        simulator = Simulator(
            slots=slots,
            measure=_measuring(spec.to_json()),
            seconds=seconds,
            limits=limits,
            watch=_watching(is_over),
            profile=profile,
            ranks=gangs,
            make_costs=Unit if costs is None else Costs,
        )
        study = remove_guidance(spec.to_json()) | ({} if gangs else {"ranks": 1})
        simulator.submit(STUDY, study, packing)
        return simulator

    is_plain = profile is None and gangs is None and _is_known_at_once(spec)
    if is_plain and (planned := _plan(make(), slots, pace)) is not None:
        return planned
    simulator = make()
    simulator.run()
    outcome = Outcome.of(simulator)
    if outcome.study.error is not None:
        raise PreviewTooLong(f"the study would come to an end before its tuner is done: {outcome.study.error}")
    return outcome


def _is_known_at_once(spec: StudySpec) -> bool:
    """Whether the study requests all its steps before it has any result."""
    return spec.tuner.kind in KNOWN_AT_ONCE and spec.stop_hopeless is None and spec.max_total_steps is None


def _plan(simulator: Simulator, slots: int, pace: Costs) -> Outcome | None:
    """What the simulation would come to, in a tenth of the time; None if the order in which the scheduler requests
    trials may matter, or if the study would fail.
    """
    try:
        simulator.request_all(STUDY)
    except (Refused, TunerFailed):
        return None
    plan = simulator.plan
    schedule = ListScheduling(plan, pace.seconds_per_step)
    if schedule.longest * slots > ORDER_SHARE * schedule.total:
        return None
    return Outcome(plan, schedule.makespan(slots), planned_cost(plan, plan.studies[STUDY]), schedule.total)


def _run_gangs(spec: StudySpec, measured: Measurements, run: Callable[..., Outcome]) -> tuple[Outcome, dict[str, Any]]:
    """Simulate the study with its ranks; returns the fields about them too."""
    most = spec.ranks if isinstance(spec.ranks, int) else spec.ranks["most"]
    if most == 1:
        return run(), {}
    gangs = even_ranks(DOUBLING_EFFICIENCY, most)
    outcome = run(gangs=gangs)  # which also shows its batches
    plan = outcome.plan
    profile = measured(batch_of(plan.nodes[plan.roots[0]]), e.RanksProfiled) if plan.roots else None
    seconds = profile.step_seconds if profile else {}
    if seconds:
        gangs = even_ranks(DOUBLING_EFFICIENCY, most, seconds)
        outcome = run(gangs=gangs)
    times = faster(gangs, most)
    assumed = [int(ranks) for ranks in times if ranks not in seconds]
    how = {"times_faster": times, "kind": profile.kind if profile and seconds else None, "assumed": assumed}
    return outcome, {"ranks": how}


def count_steps(spec: StudySpec, *, limits: Limits = LIMITS, is_over: Callable[[], bool] = lambda: False) -> int | None:
    """The unique steps of a study; None if it is too large to be simulated."""
    planned = plan_study(spec, limits=limits, is_over=is_over)
    return None if planned is None else planned.unique


def plan_study(
    spec: StudySpec, *, limits: Limits = LIMITS, is_over: Callable[[], bool] = lambda: False
) -> Study | None:
    """A study after its run on one virtual slot; None if it is too large to be simulated."""
    try:
        return _run(spec, 1, limits, is_over).study
    except PreviewTooLong:
        return None


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
