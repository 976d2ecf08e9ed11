"""What a study would cost and save, before anything runs: the study is run on virtual slots, a second a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.domain import commands as c
from app.domain import events as e
from app.domain.ids import StudyId
from app.domain.search_plan import Node, Study
from app.scheduling.tuners.samplers import NEEDED
from app.simulation.simulator import Simulator
from stagetree.advice import advice
from stagetree.limits import LIMITS, Limits
from stagetree.spec import StudySpec

MOST_EVENTS = 2_000_000
ENDINGS = ("target", "patience", "max_time")


class PreviewTooLong(Exception):
    """The study is too large to be run through; the message is one sentence."""


def preview(
    spec: StudySpec, *, slots: int, limits: Limits = LIMITS, is_over: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """The steps asked for and needed, the longest path, and the time on `slots` slots, all counted in steps.

    Where the study packs, `packed_makespan_steps` is the time with packs, if one takes no longer than one trial.

    is_over: asked now and then, whether it has taken long enough. Raises `PreviewTooLong`.
    """

    def count(other: StudySpec) -> int | None:
        return previewed.unique if other is spec else count_steps(other, limits=limits, is_over=is_over)

    previewed, makespan = _run(spec, slots, limits, is_over)
    packed = {}
    if spec.packing:
        packed["packed_makespan_steps"] = round(_run(spec, slots, limits, is_over, spec.packing)[1])
    return {
        "trials": len(previewed.trials),
        "requested": previewed.requested,
        "unique": previewed.unique,
        "merge_rate": round(previewed.requested / previewed.unique, 3) if previewed.unique else 1.0,
        "critical_path_steps": max((trial.steps for trial in previewed.trials), default=0),
        "makespan_steps": round(makespan),
        "slots": slots,
        **packed,
        "advice": advice(spec, count),
    }


def _run(
    spec: StudySpec, slots: int, limits: Limits, is_over: Callable[[], bool], packing: int = 0
) -> tuple[Study, float]:
    """The study after its run, and how long that took. Raises `PreviewTooLong`."""
    study, watch = StudyId("preview"), _watching(is_over)
    simulator = Simulator(slots=slots, measure=_measuring(spec.metric), limits=limits, watch=watch, pass_times=1.0)
    opened = e.PlanOpened(
        trainer=spec.trainer, trainer_version="", trainer_args=dict(spec.trainer_args), seed=spec.seed, packing=packing
    )
    simulator.give(c.SubmitStudy(plan=opened, study=study, spec=unguided(spec.to_json()), at=0.0))
    makespan = simulator.run()
    previewed = simulator.plan.studies[study]
    if previewed.error is not None:
        raise PreviewTooLong(f"the study would come to an end before its tuner is done: {previewed.error}")
    return previewed, makespan


def count_steps(spec: StudySpec, *, limits: Limits = LIMITS, is_over: Callable[[], bool] = lambda: False) -> int | None:
    """The different steps of a study; None where it is too large to be run through."""
    try:
        return _run(spec, 1, limits, is_over)[0].unique
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
