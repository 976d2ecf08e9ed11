"""What a study would cost and save, before anything runs: the study is run on virtual slots, a second a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.domain import commands as c
from app.domain import events as e
from app.domain.accounting import cost
from app.domain.ids import StudyId
from app.domain.search_plan import Node
from app.scheduling.widths import batch_of
from app.simulation.pace import even_packs
from app.simulation.simulator import Simulator
from app.tuning.samplers import NEEDED
from stagetree.advice import advice
from stagetree.limits import LIMITS, Limits
from stagetree.spec import StudySpec

MOST_EVENTS = 2_000_000
ENDINGS = ("target", "patience", "max_time")
STUDY = StudyId("preview")

Measured = Callable[[e.Json], e.PackingProfiled | None]
"""What is known of packs on batches that these hyper-parameters decide."""


class PreviewTooLong(Exception):
    """The study is too large to be run through; the message is one sentence."""


def preview(
    spec: StudySpec,
    *,
    slots: int,
    limits: Limits = LIMITS,
    is_over: Callable[[], bool] = lambda: False,
    measured: Measured = lambda batch: None,
) -> dict[str, Any]:
    """The steps asked for and needed, the longest path, and the time on `slots` slots, all counted in steps.

    Where the study packs, `packed_makespan_steps` is the time with packs, and `packing` says how wide they are and on
    which device that was measured: None where it was not, and a pack is taken to take no longer than one trial.

    is_over: asked now and then, whether it has taken long enough. Raises `PreviewTooLong`.
    """

    def count(other: StudySpec) -> int | None:
        return previewed.unique if other is spec else count_steps(other, limits=limits, is_over=is_over)

    simulated = _run(spec, slots, limits, is_over)
    previewed, makespan = simulated.plan.studies[STUDY], simulated.now
    found = cost(simulated.plan, previewed)
    packed = {}
    if spec.packing:
        roots = simulated.plan.roots
        profile = measured(batch_of(simulated.plan.nodes[roots[0]])) if roots else None
        packed = _packed(spec, profile, lambda known: _run(spec, slots, limits, is_over, known))
    return {
        "trials": len(previewed.trials),
        "requested": previewed.requested,
        "unique": previewed.unique,
        "merge_rate": round(previewed.requested / previewed.unique, 3) if previewed.unique else 1.0,
        "alone": found.alone,
        "saved_by_sharing": found.by_sharing and round(found.by_sharing, 4),
        "saved_by_stopping": found.by_stopping and round(found.by_stopping, 4),
        "critical_path_steps": max((trial.steps for trial in previewed.trials), default=0),
        "makespan_steps": round(makespan),
        "slots": slots,
        **packed,
        "advice": advice(spec, count),
    }


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
) -> Simulator:
    """The study after its run; without a profile, without packs. Raises `PreviewTooLong`."""
    watch, packing = _watching(is_over), 0 if profile is None else spec.lanes
    simulator = Simulator(slots=slots, measure=_measuring(spec.metric), limits=limits, watch=watch, profile=profile)
    opened = e.PlanOpened(
        trainer=spec.trainer, trainer_version="", trainer_args=dict(spec.trainer_args), seed=spec.seed, packing=packing
    )
    simulator.give(c.SubmitStudy(plan=opened, study=STUDY, spec=unguided(spec.drawing_distinctly().to_json()), at=0.0))
    simulator.run()
    previewed = simulator.plan.studies[STUDY]
    if previewed.error is not None:
        raise PreviewTooLong(f"the study would come to an end before its tuner is done: {previewed.error}")
    return simulator


def count_steps(spec: StudySpec, *, limits: Limits = LIMITS, is_over: Callable[[], bool] = lambda: False) -> int | None:
    """The different steps of a study; None where it is too large to be run through."""
    try:
        return _run(spec, 1, limits, is_over).plan.studies[STUDY].unique
    except PreviewTooLong:
        return None


def unguided(spec: dict[str, Any]) -> dict[str, Any]:
    """The study with nothing in it that goes by results or time, since here there are none.

    A sampler that learns draws at random, and nothing ends the study but its tuner.
    """
    spec = {name: value for name, value in spec.items() if name not in ENDINGS}
    tuner = spec["tuner"]
    return {**spec, "tuner": {**tuner, "sampler": "random"}} if tuner.get("sampler") in NEEDED else spec


def _measuring(metric: str) -> Any:
    def measure(node: Node, step: int) -> e.Metrics:
        return {metric: 0.0}

    return measure


def _watching(is_over: Callable[[], bool]) -> Callable[[int], None]:
    def watch(events: int) -> None:
        if events > MOST_EVENTS or is_over():
            raise PreviewTooLong("the study must be smaller to be previewed: it takes too long, try fewer trials")

    return watch
