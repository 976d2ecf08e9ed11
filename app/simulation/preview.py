"""What a study would cost and save, before anything runs: the study is run on virtual slots, a second a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from app.domain import events as e
from app.domain.accounting import choices, cost
from app.domain.search_plan import Node, Study
from app.domain.terms import StudyId, TrialState
from app.scheduling.costs import Costs
from app.scheduling.widths import Peaks, batch_of, batch_sizes
from app.search.samplers import NEEDED
from app.simulation.pace import even_packs, even_ranks, faster
from app.simulation.simulator import Simulator, Unit
from stagetree.advice import advice
from stagetree.limits import LIMITS, Limits
from stagetree.spec import StudySpec

MOST_EVENTS = 2_000_000
ENDINGS = ("target", "patience", "max_time", "max_slot_seconds")
STUDY = StudyId("preview")
BY_RESULTS = ("sha", "asha", "hyperband", "async_hyperband", "median", "bandit", "early_term", "pop", "pbt")
"""Tuners whose steps follow from results; the others ask for all of theirs at once."""

DOUBLING_EFFICIENCY = 0.9
"""Each doubling of the ranks is taken to be 1.8 times as fast, as long as nothing was measured."""


class Measurements(Protocol):
    """The measurements of packs, or of several devices, on batches that these hyper-parameters decide."""

    def __call__(self, batch: e.Json, kind: type[e.Profile]) -> e.Profile | None: ...


def nothing(batch: e.Json, kind: type[e.Profile]) -> e.Profile | None:
    """Nothing was measured yet."""
    return None


class PreviewTooLong(Exception):
    """The study is too large to be run through; the message is one sentence."""


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
    """The steps asked for and needed, the longest path, and the time on `slots` slots, all counted in steps.

    Where several devices may train a stage, `ranks` says how many times faster they are taken to be, on which kind that
    was measured, None where it was not, and for which numbers it is `assumed`.

    Where the study packs, `packed_makespan_steps` is the time with packs, and `packing` says how wide they are and on
    which device that was measured: None where it was not, and a pack is taken to take no longer than one trial.

    costs: of the steps, as measured on the plan that the study would be on. With these, `time` says how many
    seconds that is, and how far such estimates are off. peaks: of the memory there; `memory` says the most of them, of
    batches as large, by kind of GPU, where there are no packs.

    is_over: asked now and then, whether it has taken long enough. Raises `PreviewTooLong`.
    """

    def count(other: StudySpec) -> int | None:
        return previewed.unique if other is spec else count_steps(other, limits=limits, is_over=is_over)

    if (least := spec.ranks if isinstance(spec.ranks, int) else spec.ranks["least"]) > slots:
        raise PreviewTooLong(f"a study of {least} ranks is previewed on {least} slots or more, not on {slots}")
    run = partial(_run, spec, slots, limits, is_over)
    simulated, ranks = _with_gangs(spec, measured, run)
    previewed = simulated.plan.studies[STUDY]
    packed = {}
    if spec.packing:
        roots = simulated.plan.roots
        profile = measured(batch_of(simulated.plan.nodes[roots[0]]), e.PackingProfiled) if roots else None
        packed = _packed(spec, profile, run)
    return {
        **_steps(simulated, previewed),
        "slots": slots,
        **_cooldowns(previewed),
        **_budget(spec, previewed),
        **packed,
        **ranks,
        **_time(costs, run),
        "memory": [] if spec.packing else _memory(peaks or {}, simulated),
        "choices": choices(simulated.plan, previewed),
        "advice": advice(spec, count),
    }


def _steps(simulated: Simulator, previewed: Study) -> dict[str, Any]:
    """The steps of the trials, and the parts of them that are saved; times are numbers of steps."""
    saved = cost(simulated.plan, previewed)
    return {
        "trials": len(previewed.trials),
        "requested": previewed.requested,
        "unique": previewed.unique,
        "merge_rate": round(previewed.requested / previewed.unique, 3) if previewed.unique else 1.0,
        "by_results": previewed.kind in BY_RESULTS or bool(previewed.spec.get("stop_hopeless")),
        "alone": saved.alone,
        "saved_by_sharing": saved.saved_by_sharing and round(saved.saved_by_sharing, 4),
        "saved_by_stopping": saved.saved_by_stopping and round(saved.saved_by_stopping, 4),
        "critical_path_steps": max((trial.steps for trial in previewed.trials), default=0),
        "makespan_steps": round(simulated.now),
    }


def _time(costs: Costs | None, run: Callable[..., Simulator]) -> dict[str, Any]:
    """The seconds of the study with one device a stage and no packs, where steps were measured."""
    if costs is None or costs.error is None:
        return {}
    simulated = run(costs=costs)
    return {
        "time": {
            "slot_seconds": float(f"{simulated.plan.studies[STUDY].gpu_seconds:.3g}"),
            "makespan_seconds": float(f"{simulated.now:.3g}"),
            "error": float(f"{costs.error.median:.2g}"),
            "settings": costs.error.settings,
        }
    }


def _memory(peaks: Peaks, simulated: Simulator) -> list[dict[str, Any]]:
    """Of each kind of GPU where some of the study's batches were trained before, the most that these took."""
    nodes = simulated.plan.nodes.values()
    sizes = {batch_sizes(node, step) for node in nodes for step in {node.start, max(node.start, node.reached - 1)}}
    seen = {gpu: [peak for size, peak in of_gpu.items() if size in sizes] for gpu, of_gpu in sorted(peaks.items())}
    return [
        {"gpu": gpu, "bytes": max(each), "seen": len(each), "sizes": len(sizes)} for gpu, each in seen.items() if each
    ]


def _cooldowns(previewed: Study) -> dict[str, Any]:
    """How many cooldowns there are at rungs, and the steps that these take behind their trunks, each counted alone."""
    cooldowns = (trial for trial in previewed.trials if trial.cooldown_of is not None)
    steps = [(trial.steps - trial.reason["at"]) * len(trial.runs) for trial in cooldowns]
    return {"cooldowns": {"trials": len(steps), "steps": sum(steps)}} if steps else {}


def _budget(spec: StudySpec, previewed: Study) -> dict[str, Any]:
    """Where a budget will end the study; of seconds, how slow its steps must be for that, since here they are not."""
    ending = previewed.ending
    if not ending and spec.max_slot_seconds is None:
        return {}
    done = sum(trial.state == TrialState.COMPLETED for trial in previewed.trials)
    slow = spec.max_slot_seconds and spec.max_slot_seconds / max(1, previewed.executed)
    ends = {"by": ending["by"], "steps": previewed.executed, "trials": done} if ending else None
    return {"budget": {"ends": ends, "seconds_per_step": slow and float(f"{slow:.3g}")}}


def _packed(
    spec: StudySpec, profile: e.PackingProfiled | None, run: Callable[[e.PackingProfiled], Simulator]
) -> dict[str, Any]:
    """What a preview says of packs. profile: what was measured, which may not be of the study's width."""
    if profile is not None and spec.lanes is not None and str(spec.lanes) not in profile.batch_seconds:
        profile = None
    simulated = run(profile or even_packs(1.0))
    how = {"width": simulated.plan.packing, "device": profile and profile.device}
    return {"packed_makespan_steps": round(simulated.now), "packing": how}


def _run(
    spec: StudySpec,
    slots: int,
    limits: Limits,
    is_over: Callable[[], bool],
    profile: e.PackingProfiled | None = None,
    gangs: e.RanksProfiled | None = None,
    costs: Costs | None = None,
) -> Simulator:
    """The study after its run; without a profile, without packs, and without gangs, alone. Raises `PreviewTooLong`."""
    packing = 0 if profile is None else spec.lanes

    def seconds(stage: e.Stage, number: int) -> float:
        step_seconds = 1.0 if costs is None else costs.seconds_per_step(simulator.plan.nodes[stage.node])
        return (stage.end - stage.start) * step_seconds

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
    study = unguided(spec.to_json()) | ({} if gangs else {"ranks": 1})
    simulator.submit(STUDY, study, packing)
    simulator.run()
    previewed = simulator.plan.studies[STUDY]
    if previewed.error is not None:
        raise PreviewTooLong(f"the study would come to an end before its tuner is done: {previewed.error}")
    return simulator


def _with_gangs(
    spec: StudySpec, measured: Measurements, run: Callable[..., Simulator]
) -> tuple[Simulator, dict[str, Any]]:
    """The study after its run, and how many times faster several devices are, or are taken to be, where it has some."""
    most = spec.ranks if isinstance(spec.ranks, int) else spec.ranks["most"]
    if most == 1:
        return run(), {}
    gangs = even_ranks(DOUBLING_EFFICIENCY, most)
    simulated = run(gangs=gangs)  # which also tells what its batches are
    roots = simulated.plan.roots
    profile = measured(batch_of(simulated.plan.nodes[roots[0]]), e.RanksProfiled) if roots else None
    seconds = profile.step_seconds if profile else {}
    if seconds:
        gangs = even_ranks(DOUBLING_EFFICIENCY, most, seconds)
        simulated = run(gangs=gangs)
    times = faster(gangs, most)
    assumed = [int(ranks) for ranks in times if ranks not in seconds]
    how = {"times_faster": times, "kind": profile.kind if profile and seconds else None, "assumed": assumed}
    return simulated, {"ranks": how}


def count_steps(spec: StudySpec, *, limits: Limits = LIMITS, is_over: Callable[[], bool] = lambda: False) -> int | None:
    """The different steps of a study; None where it is too large to be run through."""
    try:
        return _run(spec, 1, limits, is_over).plan.studies[STUDY].unique
    except PreviewTooLong:
        return None


def unguided(spec: dict[str, Any]) -> dict[str, Any]:
    """The study with nothing in it that goes by results or time, since here there are none.

    A sampler that learns draws at random, also where it would from other studies, and nothing ends it but its tuner.
    """
    spec = {name: value for name, value in spec.items() if name not in (*ENDINGS, "learn_from")}
    tuner = {name: value for name, value in spec["tuner"].items() if name != "per_rung"}
    return {**spec, "tuner": {**tuner, "sampler": "random"}} if tuner.get("sampler") in NEEDED else spec


def _measuring(spec: dict[str, Any]) -> Any:
    metrics: e.Metrics = dict.fromkeys(judged_by(spec), 1.0)

    def measure(node: Node, step: int) -> e.Metrics:
        return metrics

    return measure


def judged_by(spec: dict[str, Any]) -> tuple[str, ...]:
    """All the metrics that a study needs."""
    return Study(StudyId(""), spec, 0.0).objectives.metrics


def _watching(is_over: Callable[[], bool]) -> Callable[[int], None]:
    def watch(events: int) -> None:
        if events > MOST_EVENTS or is_over():
            raise PreviewTooLong("the study must be smaller to be previewed: it takes too long, try fewer trials")

    return watch
