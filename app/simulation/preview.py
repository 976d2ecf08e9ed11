"""What a study would cost and save, before anything runs: the study is run on virtual slots, a second a step.

How far a study will go: its trials and steps, counted by running it on virtual slots with results made up by chance.

What a study asked for so far says little where a tuner stops trials early; what its tuner does with any results says
much: halving leaves about the same steps whoever wins. The made-up results are the same for the same study file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import lru_cache, partial
from random import Random
from threading import Lock
from typing import Any, NamedTuple, Protocol

from app.domain import commands as c
from app.domain import events as e
from app.domain.accounting import choices, cost
from app.domain.search_plan import Node, Study
from app.domain.terms import StudyId, TrialState
from app.scheduling.widths import batch_of
from app.simulation.pace import even_packs, even_ranks, faster
from app.simulation.simulator import Simulator
from app.tuning.samplers import NEEDED
from stagetree.advice import advice
from stagetree.limits import LIMITS, Limits
from stagetree.spec import StudySpec

MOST_EVENTS = 2_000_000
ENDINGS = ("target", "patience", "max_time", "max_slot_seconds")
STUDY = StudyId("preview")

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
) -> dict[str, Any]:
    """The steps asked for and needed, the longest path, and the time on `slots` slots, all counted in steps.

    Where several devices may train a stage, `ranks` says how many times faster they are taken to be, on which kind that
    was measured, None where it was not, and for which numbers it is `assumed`.

    Where the study packs, `packed_makespan_steps` is the time with packs, and `packing` says how wide they are and on
    which device that was measured: None where it was not, and a pack is taken to take no longer than one trial.

    is_over: asked now and then, whether it has taken long enough. Raises `PreviewTooLong`.
    """

    def count(other: StudySpec) -> int | None:
        return previewed.unique if other is spec else count_steps(other, limits=limits, is_over=is_over)

    if (least := spec.ranks if isinstance(spec.ranks, int) else spec.ranks["least"]) > slots:
        raise PreviewTooLong(f"a study of {least} ranks is previewed on {least} slots or more, not on {slots}")
    simulated, ranks = _with_gangs(spec, measured, partial(_run, spec, slots, limits, is_over))
    previewed, makespan = simulated.plan.studies[STUDY], simulated.now
    costs = cost(simulated.plan, previewed)
    packed = {}
    if spec.packing:
        roots = simulated.plan.roots
        profile = measured(batch_of(simulated.plan.nodes[roots[0]]), e.PackingProfiled) if roots else None
        packed = _packed(spec, profile, lambda known: _run(spec, slots, limits, is_over, known))
    return {
        "trials": len(previewed.trials),
        "requested": previewed.requested,
        "unique": previewed.unique,
        "merge_rate": round(previewed.requested / previewed.unique, 3) if previewed.unique else 1.0,
        "alone": costs.alone,
        "saved_by_sharing": costs.by_sharing and round(costs.by_sharing, 4),
        "saved_by_stopping": costs.by_stopping and round(costs.by_stopping, 4),
        "critical_path_steps": max((trial.steps for trial in previewed.trials), default=0),
        "makespan_steps": round(makespan),
        "slots": slots,
        **_cooldowns(previewed),
        **_budget(spec, previewed),
        **packed,
        **ranks,
        "choices": choices(simulated.plan, previewed),
        "advice": advice(spec, count),
    }


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
) -> Simulator:
    """The study after its run; without a profile, without packs, and without gangs, alone. Raises `PreviewTooLong`."""
    watch, packing = _watching(is_over), 0 if profile is None else spec.lanes
    simulator = Simulator(
        slots=slots, measure=_measuring(spec.to_json()), limits=limits, watch=watch, profile=profile, ranks=gangs
    )
    opened = e.PlanOpened(
        trainer=spec.trainer, trainer_version="", trainer_args=dict(spec.trainer_args), seed=spec.seed, packing=packing
    )
    study = unguided(spec.as_new().to_json()) | ({} if gangs else {"ranks": 1})
    simulator.give(c.SubmitStudy(plan=opened, study=STUDY, spec=study, at=0.0))
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
    metrics: e.Metrics = dict.fromkeys(_judged_by(spec), 1.0)

    def measure(node: Node, step: int) -> e.Metrics:
        return metrics

    return measure


def _judged_by(spec: dict[str, Any]) -> tuple[str, ...]:
    """All the metrics that a study needs."""
    return Study(StudyId(""), spec, 0.0).objectives.metrics


def _watching(is_over: Callable[[], bool]) -> Callable[[int], None]:
    def watch(events: int) -> None:
        if events > MOST_EVENTS or is_over():
            raise PreviewTooLong("the study must be smaller to be previewed: it takes too long, try fewer trials")

    return watch


ADAPTIVE = ("sha", "asha", "hyperband", "async_hyperband", "median", "bandit", "pbt")
"""Tuners whose steps follow from results; the others ask for all of theirs at once."""

MOST_TRIALS = 200
"""A larger study is forecast from so many of its trials, and its steps in proportion."""

MOST_TURNS = 2_000
"""Stages after which a simulation is given up, a few seconds: then there is no forecast."""

_one_at_a_time = Lock()


class Forecast(NamedTuple):
    """How many trials a study will have, and how many different steps they will take."""

    trials: int
    steps: int


def forecast(spec: dict[str, Any]) -> Forecast | None:
    """What to expect of a study; None where nothing can be said beyond what it asks for.

    The first time it takes a second or more: ask for it while nobody waits for you. Whoever asks meanwhile waits.
    """
    if spec.get("tuner", {}).get("kind") not in ADAPTIVE:
        return None
    with _one_at_a_time:
        return _forecast(json.dumps(spec, sort_keys=True))


@lru_cache(maxsize=256)
def _forecast(text: str) -> Forecast | None:
    spec = unguided(json.loads(text)) | {"ranks": 1}  # that changes the time, and no step
    most = spec.pop("max_total_steps", math.inf)
    factor = _shrink(spec["tuner"])
    study = StudyId("forecast")
    simulator = Simulator(slots=4, measure=_by_chance(spec))
    simulator.submit(study, spec)
    is_over = not all(simulator.advance() for _ in range(MOST_TURNS))
    end = simulator.plan.studies[study]
    if is_over and end.is_final:
        return Forecast(round(len(end.trials) * factor), min(round(end.unique * factor), most))
    return None


def _shrink(tuner: dict[str, Any]) -> float:
    """Leave at most so many trials, and say by what to multiply what they take."""
    trials = tuner.get("num_trials") or 0
    if trials <= MOST_TRIALS:
        return 1.0
    tuner["num_trials"] = MOST_TRIALS
    return float(trials) / MOST_TRIALS


def _by_chance(spec: dict[str, Any]) -> Any:
    metrics = _judged_by(spec)

    def measure(node: Node, step: int) -> e.Metrics:
        draws = Random(f"{node.id}/{step}")
        return {name: draws.random() for name in metrics}

    return measure
