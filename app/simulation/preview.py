"""Previews the costs and savings of a study by running it on virtual slots, with one second a step.

Other ways to write the study may cost less. Each is planned whole, like the study itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from app.domain import events as e
from app.domain.accounting import choices
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.terms import NodeId, TrialState
from app.scheduling.costs import Costs
from app.scheduling.widths import Peaks, batch_of, batch_sizes
from app.simulation.pace import even_packs, even_ranks, faster
from app.simulation.virtual_run import (
    STUDY,
    PreviewTooLong,
    VirtualRun,
    is_known_at_once,
    plan_at_once,
    run_virtually,
)
from stagetree.advice import advice
from stagetree.advice.rewrites import rewrites
from stagetree.limits import LIMITS, Limits
from stagetree.spec import StudySpec

BY_RESULTS = ("sha", "asha", "hyperband", "async_hyperband", "median", "bandit", "early_term", "pop", "pbt")
"""Tuners whose steps depend on results; the others request all their steps at once."""

DOUBLING_EFFICIENCY = 0.9
"""The assumed efficiency of doubling the ranks, 1.8 times as fast, where nothing was measured."""


class Measurements(Protocol):
    """Measurements of packs, or of several devices, with batches of these hyper-parameters."""

    def __call__(self, batch: e.Json, kind: type[e.Profile]) -> e.Profile | None: ...


def nothing(batch: e.Json, kind: type[e.Profile]) -> e.Profile | None:
    return None


def preview(
    spec: StudySpec,
    *,
    slots: int,
    limits: Limits = LIMITS,
    is_over: Callable[[], bool] = lambda: False,
    measured: Measurements = nothing,
    costs: Costs | None = None,
    peaks: Peaks | None = None,
    trained: Mapping[NodeId, int] | None = None,
) -> dict[str, Any]:
    """The requested and unique steps, the critical path, and the time on `slots` slots, all counted in steps.

    With several devices a stage, `ranks` has the speed-ups, the kind of device on which they were measured (or None),
    and the numbers of ranks for which they are `assumed`.

    For a study that packs, `packed_makespan_steps` is the time with packs, and `packing` has their width and the device
    on which they were measured; None if they were not, and a pack is assumed to take no longer than one trial.

    costs: of steps, as measured on the plan that the study would join. They give `time`: the seconds, and the error of
    such estimates. peaks: of the memory there; they give `memory`: the largest, with batches as large, by kind of GPU,
    if the study does not pack. trained: the last trained step of each node of that plan. They give `known`: the steps
    that need not be trained again.

    is_over: called now and then; true if the preview has taken too long. Raises `PreviewTooLong`.
    """

    if (least := spec.ranks if isinstance(spec.ranks, int) else spec.ranks["least"]) > slots:
        raise PreviewTooLong(f"a study of {least} ranks is previewed on {least} slots or more, not on {slots}")
    run = partial(run_virtually, spec, slots, limits, is_over)
    played, ranks = _run_gangs(spec, measured, run)
    plan, previewed = played.plan, played.study
    packed = {}
    if spec.packing:
        profile = measured(batch_of(plan.nodes[plan.roots[0]]), e.PackingProfiled) if plan.roots else None
        packed = _packing_fields(spec, profile, run)
    return {
        **_steps(played),
        **({} if trained is None else {"known": _known_steps(plan, previewed, trained)}),
        "slots": slots,
        **_rung_values(plan, previewed),
        **_budget(spec, previewed),
        **packed,
        **ranks,
        **_time(costs, run),
        "memory": _memory(peaks, plan) if peaks and not spec.packing else [],
        "choices": choices(plan, previewed),
        **savings(spec, plan, previewed, partial(plan_study, limits=limits, is_over=is_over)),
    }


def _steps(played: VirtualRun) -> dict[str, Any]:
    """The steps of the trials, and the shares that are saved. Times are in steps."""
    previewed, saved = played.study, played.cost
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
        "makespan_steps": round(played.makespan),
    }


def _known_steps(plan: SearchPlan, previewed: Study, trained: Mapping[NodeId, int]) -> int:
    """The unique steps that are among the trained ones."""
    ends = ((name, end) for name, end in previewed.max_step_by_node.items() if name in trained)
    return sum(max(0, min(end, trained[name]) - plan.nodes[name].start) for name, end in ends)


def _time(costs: Costs | None, run: Callable[..., VirtualRun]) -> dict[str, Any]:
    """The seconds with one device a stage and no packs, if steps were measured."""
    if costs is None or costs.error is None:
        return {}
    played = run(costs=costs)
    return {
        "time": {
            "slot_seconds": float(f"{played.slot_seconds:.3g}"),
            "makespan_seconds": float(f"{played.makespan:.3g}"),
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
    spec: StudySpec, profile: e.PackingProfiled | None, run: Callable[[e.PackingProfiled], VirtualRun]
) -> dict[str, Any]:
    """profile: a measurement, which may be of another width than the study's."""
    if profile is not None and spec.lanes is not None and str(spec.lanes) not in profile.batch_seconds:
        profile = None
    played = run(profile or even_packs(1.0))
    how = {"width": played.plan.packing, "device": profile and profile.device}
    return {"packed_makespan_steps": round(played.makespan), "packing": how}


def _run_gangs(
    spec: StudySpec, measured: Measurements, run: Callable[..., VirtualRun]
) -> tuple[VirtualRun, dict[str, Any]]:
    """Simulate the study with its ranks; returns the fields about them too."""
    most = spec.ranks if isinstance(spec.ranks, int) else spec.ranks["most"]
    if most == 1:
        return run(), {}
    gangs = even_ranks(DOUBLING_EFFICIENCY, most)
    played = run(gangs=gangs)  # which also shows its batches
    plan = played.plan
    profile = measured(batch_of(plan.nodes[plan.roots[0]]), e.RanksProfiled) if plan.roots else None
    seconds = profile.step_seconds if profile else {}
    if seconds:
        gangs = even_ranks(DOUBLING_EFFICIENCY, most, seconds)
        played = run(gangs=gangs)
    times = faster(gangs, most)
    assumed = [int(ranks) for ranks in times if ranks not in seconds]
    how = {"times_faster": times, "kind": profile.kind if profile and seconds else None, "assumed": assumed}
    return played, {"ranks": how}


def count_steps(spec: StudySpec, *, limits: Limits = LIMITS, is_over: Callable[[], bool] = lambda: False) -> int | None:
    """The unique steps of a study; None if it is too large to be simulated."""
    planned = plan_study(spec, limits=limits, is_over=is_over)
    return None if planned is None else planned.unique


def plan_study(
    spec: StudySpec, *, limits: Limits = LIMITS, is_over: Callable[[], bool] = lambda: False
) -> Study | None:
    """A study after its run on one virtual slot; None if it is too large to be simulated."""
    try:
        planned = plan_at_once(spec, limits, is_over)
        return run_virtually(spec, 1, limits, is_over).study if planned is None else planned.studies[STUDY]
    except PreviewTooLong:
        return None


LEAST_SAVED = 0.05
"""A rewrite that saves a smaller part of the steps is not offered."""

Plan = Callable[[StudySpec], Study | None]
"""Runs a study on virtual slots; None if it is too large."""


def savings(spec: StudySpec, planned: SearchPlan, previewed: Study, plan: Plan) -> dict[str, Any]:
    """The fields `advice` and `rewrites` of a preview. planned: the plan of the previewed study."""

    def count(other: StudySpec) -> int | None:
        if other is spec:
            return previewed.unique
        if (trials := _trials_of_beginning(other, spec, previewed)) is not None:
            return _unique_steps(planned, previewed.trials[:trials])
        study = plan(other)
        return None if study is None else study.unique

    return {"advice": advice(spec, count), "rewrites": [*_priced(spec, previewed.unique, plan)]}


def _trials_of_beginning(other: StudySpec, spec: StudySpec, previewed: Study) -> int | None:
    """How many of the previewed trials another study has; None if it has others, or may have because of results."""
    fewer = getattr(other.tuner, "num_trials", 0)
    if not is_known_at_once(spec) or not 0 < fewer <= len(previewed.trials):
        return None
    written = spec.to_json()
    return fewer if other.to_json() == {**written, "tuner": {**written["tuner"], "num_trials": fewer}} else None


def _unique_steps(plan: SearchPlan, trials: list[Trial]) -> int:
    """The steps of some trials, counted once where they share them."""
    ends = dict[NodeId, int]()
    for trial in trials:
        for name, end in plan.path_ends(trial):
            ends[name] = max(end, ends.get(name, 0))
    return sum(end - plan.nodes[name].start for name, end in ends.items())


def _priced(spec: StudySpec, unique: int, plan: Plan) -> Iterator[dict[str, Any]]:
    """The rewrites of a study of `unique` steps that compare something and save steps, each with its study file."""
    for each in rewrites(spec):
        planned = plan(each.spec)
        if planned is None or len(planned.trials) < 2 or planned.unique > (1 - LEAST_SAVED) * unique:
            continue
        yield {
            "name": each.name,
            "change": each.change,
            "trials": len(planned.trials),
            "unique": planned.unique,
            "saved": round(1 - planned.unique / unique, 4),
            "study": each.spec.to_json(),
        }
