"""Slots: how each is shown, what a plan's slots lost and gained by sharing GPUs, and how full their packs were."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from math import log
from statistics import median
from typing import Any

from app.domain.chain_assignment import Unreadable
from app.domain.search_plan import SearchPlan
from app.domain.slots import gpu_of, shared_gpu
from app.domain.terms import Principal
from app.events import ChainRecord, PlanUnusable, SlotRecord, StudyRecord
from app.scheduling.costs import Costs, TimedStage, hindsight_errors
from app.scheduling.slowdowns import StageTiming, slowdowns
from app.scheduling.widths import batch_sizes, peaks
from app.service.plan_history import PlanHistory, SlotSpan
from app.service.services import Services
from app.service.views.progress import packing
from stagetree.models.service import Slot, SlotLoan, SlotStage, StageEstimates

Json = dict[str, Any]


def measured(use: Services, stream: str) -> Json:
    """What slots have measured for a plan, if it is there, as `preview` takes it: the `costs` of steps, and the `peaks`
    of their memory. Raises as `Plans.get`."""
    costs = Costs()
    if stream not in use.log.versions():
        return {"costs": costs}
    with use.plans.holding(stream) as plan:
        costs.refit(plan)
        return {"costs": costs, "peaks": peaks(plan)}


STATES = ("idle", "busy", "lent", "quarantined", "lost")


def state_of(row: SlotRecord, now: float, lease_seconds: float) -> str:
    """How a slot is: lost is one whose worker was not heard of for a lease."""
    if now - row.seen_at > lease_seconds:
        return "lost"
    if row.chain is not None:
        return "busy"
    if row.lent_to is not None:
        return "lent"
    return "quarantined" if row.is_quarantined(now) else "idle"


def view_of(
    row: SlotRecord,
    chains: Mapping[str, ChainRecord],
    now: float,
    lease_seconds: float,
    error: StageEstimates | None = None,
    *,
    sees_all: bool = True,
) -> Slot:
    """A slot, and what it is doing by the row of its chain, or of the chain that it is lent to. chains: by name.

    sees_all: else these are the chains that the caller sees, and a note may be about another's.
    """
    chain = chains.get(row.chain or "")
    is_seen = sees_all or chain is not None
    stage, study = (None, None) if chain is None else _current(chain)
    return Slot(
        name=row.name,
        device=row.device,
        host=row.host,
        state=state_of(row, now, lease_seconds),
        note=row.note if is_seen else None,
        quarantined_until=row.quarantined_until,
        trainers=dict(row.trainers),
        chain=row.chain if is_seen else None,
        stage=stage,
        study=study,
        seen_at=row.seen_at,
        kind=row.kind,
        lent_to=_loan(chains.get(row.lent_to or "")),
        estimate_error=error,
    )


def _loan(chain: ChainRecord | None) -> SlotLoan | None:
    if chain is None:
        return None
    work = chain.assignment
    study, trial = (None, None) if isinstance(work, Unreadable) else (work.study, work.trial)
    return SlotLoan(slot=chain.slot, chain=chain.chain, study=study, trial=trial)


def _current(chain: ChainRecord) -> tuple[SlotStage | None, str | None]:
    """The stage that the chain is in, with the last step done, and the study charged; None when all are trained."""
    if chain.index >= len(chain.stages):
        return None, None
    stage = chain.stages[chain.index]
    step = min(max(chain.step, stage.start), stage.end)
    return SlotStage(node=stage.node, start=stage.start, end=stage.end, step=step), stage.study


MOST_STAGES = 2_000
"""It is reckoned from so many stages of each plan, those that began last."""

OTHERS = 8
"""The plans of so many studies, those that came last, are looked through for neighbours."""

LEAST_STAGES = 4
"""Of fewer, the error of estimates says nothing."""


def estimate_errors(use: Services, who: Principal) -> dict[str, StageEstimates]:
    """By slot, how far the estimates of its stages were off, where there were a few; of plans that they see."""
    off = defaultdict[str, list[float]](list)
    for stream, row in _last_plans(use).items():
        if who.can_see(row.project):
            with suppress(PlanUnusable):  # which its studies say
                for slot, parts in _off(use, stream, row).items():
                    off[slot] += parts
    return {
        slot: StageEstimates(error=float(f"{median(parts):.2g}"), stages=len(parts))
        for slot, parts in off.items()
        if len(parts) >= LEAST_STAGES
    }


def _off(use: Services, stream: str, row: StudyRecord) -> dict[str, list[float]]:
    """The same of one plan, each stage by itself: reckoned anew when a twentieth has come to its stages."""
    with use.plans.holding(stream) as plan, use.plan_history(row, plan.version) as plan_history:
        moment = round(20 * log(1 + sum(span.outcome == "done" for span in plan_history.spans)))
        return use.estimates.get(stream, moment, lambda: hindsight_errors(plan, list(_timed(plan, plan_history))))


def _timed(plan: SearchPlan, plan_history: PlanHistory) -> Iterator[TimedStage]:
    """The stages that one slot trained to their ends, with their seconds."""
    for span in plan_history.spans[-MOST_STAGES:]:
        steps = span.stage.end - span.stage.start
        is_timed = span.outcome == "done" and span.proof is None and not span.members and span.stage.node in plan.nodes
        if span.ended is not None and is_timed and steps and span.seconds > 0:
            how = (steps, span.seconds, span.begun, span.ended)
            yield TimedStage(span.slot, span.stage.node, gpu_of(span.kind), *how)


def gains(use: Services, row: StudyRecord, plan: SearchPlan, *, is_packed: bool) -> Json:
    """The fields of a study's answer for its packs and for what came of sharing GPUs, where there were any."""
    fields: Json = {}
    if is_packed:
        with use.plan_history(row, plan.version) as plan_history:
            fields["packing"] = packing(plan, lanes_at_once(plan, plan_history.spans))
    if slowed := gpu_sharing(use, row, plan):
        fields["gpu_sharing"] = slowed
    return fields


def gpu_sharing(use: Services, row: StudyRecord, plan: SearchPlan) -> list[Json]:
    """By GPU and number of slots, how many times slower a step was, and how many times faster all steps were."""
    with use.plan_history(row, plan.version) as plan_history:
        if not any(map(shared_gpu, plan_history.slots)):
            return []
        stages = list(_stages(plan_history, plan, use.clock()))
    slowed = slowdowns([*stages, *_elsewhere(use, row)])
    return [
        {"gpu": each.gpu, "slots": each.slots, "times_slower": round(each.times, 2), "gain": round(each.gain, 2)}
        for each in slowed
    ]


def _elsewhere(use: Services, row: StudyRecord) -> Iterator[StageTiming]:
    """What slots did for other plans: they were neighbours."""
    for stream, other in _last_plans(use).items():
        if stream != row.stream:
            with use.plan_history(other, use.log.version(stream)) as plan_history:
                yield from _stages(plan_history, None, use.clock())


def _last_plans(use: Services) -> dict[str, StudyRecord]:
    """By stream, each with one of its studies."""
    with use.records.read() as rows:
        return {row.stream: row for row in rows.studies.page(after=None, limit=OTHERS)}


def _stages(plan_history: PlanHistory, plan: SearchPlan | None, now: float) -> Iterator[StageTiming]:
    """The stages of a plan, or of another one, whose steps are not compared."""
    for span in islice(reversed(plan_history.spans), MOST_STAGES):
        steps = _steps(span, plan)
        kind = batch_sizes(plan.nodes[span.stage.node], span.stage.start) if plan and steps else ()
        ended_at = now if span.ended_at is None else span.ended_at
        yield StageTiming(span.slot, kind, steps, span.seconds, span.begun_at, ended_at)


def _steps(span: SlotSpan, plan: SearchPlan | None) -> int:
    """How many steps took the stage's seconds; 0 where that is not known, of proofs, and of packs."""
    if span.proof is not None or plan is None or plan.packing or span.outcome != "done":
        return 0
    return span.stage.end - span.stage.start if span.stage.node in plan.nodes else 0


def lanes_at_once(plan: SearchPlan, spans: Iterable[SlotSpan]) -> float | None:
    """How many trials the plan's packs trained at once, on the average of all steps that slots took; None before any.

    What was trained alone since its pack had failed is left out. spans: in the order in which they began.
    """
    packs: dict[str, tuple[str, float]] = {}  # by chain: those that a slot was given at once
    steps = defaultdict[tuple[str, float], Counter[str]](Counter)
    for span in spans:
        if span.proof is not None:
            continue
        pack = packs.setdefault(span.chain, (span.slot, span.begun_at))
        if span.outcome == "done" and not plan.is_without_pack(span.stage):
            steps[pack][span.chain] += span.stage.end - span.stage.start
    passes = sum(max(lanes.values()) for lanes in steps.values())
    return round(sum(lanes.total() for lanes in steps.values()) / passes, 2) if passes else None
