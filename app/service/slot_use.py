"""Slots: their views, the errors of their estimates, the effect of sharing GPUs, and how full packs were."""

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


def measurements(use: Services, stream: str) -> Json:
    """The `costs` of steps and memory `peaks` that slots measured for a plan, and the last step of each node that they
    `trained`, as arguments of `preview`.

    Raises as `Plans.get`.
    """
    costs = Costs()
    if not use.log.version(stream):
        return {"costs": costs}
    with use.plans.holding(stream) as plan:
        costs.refit(plan)
        trained = {name: node.reached for name, node in plan.nodes.items() if node.reached > node.start}
        return {"costs": costs, "peaks": peaks(plan), "trained": trained}


STATES = ("idle", "busy", "lent", "quarantined", "lost")


def slot_state(row: SlotRecord, now: float, lease_seconds: float) -> str:
    """The state of a slot. A slot is lost if its worker was silent for a lease."""
    if now - row.seen_at > lease_seconds:
        return "lost"
    if row.chain is not None:
        return "busy"
    if row.lent_to is not None:
        return "lent"
    return "quarantined" if row.is_quarantined(now) else "idle"


def slot_view(
    row: SlotRecord,
    chains: Mapping[str, ChainRecord],
    now: float,
    lease_seconds: float,
    error: StageEstimates | None,
    *,
    sees_all: bool,
) -> Slot:
    """A slot with its work, by the row of its chain or of the chain that it is lent to.

    chains: the chains that the caller may see, by name. sees_all: these are all, so that the slot's note may be shown.
    """
    chain = chains.get(row.chain or "")
    is_seen = sees_all or chain is not None
    stage, study = (None, None) if chain is None else _current_stage(chain)
    return Slot(
        name=row.name,
        device=row.device,
        host=row.host,
        state=slot_state(row, now, lease_seconds),
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


def _current_stage(chain: ChainRecord) -> tuple[SlotStage | None, str | None]:
    """The chain's current stage with its last step, and the study charged; None when all are trained."""
    if chain.index >= len(chain.stages):
        return None, None
    stage = chain.stages[chain.index]
    step = min(max(chain.step, stage.start), stage.end)
    order = None if isinstance(chain.assignment, Unreadable) else chain.assignment.proof
    proof = None if order is None else order.kind
    return SlotStage(node=stage.node, start=stage.start, end=stage.end, step=step, proof=proof), stage.study


MOST_STAGES = 2_000
"""The number of latest stages per plan to compute from."""

MOST_OTHER_PLANS = 8
"""The number of latest studies whose plans may have used the same GPU."""

LEAST_STAGES = 4
"""The fewest stages for which an error is reported."""


def estimate_errors(use: Services, who: Principal) -> dict[str, StageEstimates]:
    """By slot, the median error of its estimates, over plans that the caller may see."""
    off = defaultdict[str, list[float]](list)
    for stream, row in _last_plans(use).items():
        if who.can_see(row.project):
            with suppress(PlanUnusable):  # its studies report that
                for slot, parts in _plan_estimate_errors(use, stream, row).items():
                    off[slot] += parts
    return {
        slot: StageEstimates(error=float(f"{median(parts):.2g}"), stages=len(parts))
        for slot, parts in off.items()
        if len(parts) >= LEAST_STAGES
    }


def _plan_estimate_errors(use: Services, stream: str, row: StudyRecord) -> dict[str, list[float]]:
    """By slot, the errors of one plan's estimates. Cached until the number of its stages grows by a twentieth."""
    with use.plans.holding(stream) as plan, use.plan_histories.holding(row.stream, plan.version) as plan_history:
        moment = round(20 * log(1 + sum(span.outcome == "done" for span in plan_history.spans)))
        return use.estimates.get(
            stream, moment, lambda: hindsight_errors(plan, list(_timed_stages(plan, plan_history)))
        )


def _timed_stages(plan: SearchPlan, plan_history: PlanHistory) -> Iterator[TimedStage]:
    """The completed stages of single slots, with their seconds."""
    for span in plan_history.spans[-MOST_STAGES:]:
        steps = span.stage.end - span.stage.start
        is_timed = span.outcome == "done" and span.proof is None and not span.members and span.stage.node in plan.nodes
        if span.ended is not None and is_timed and steps and span.seconds > 0:
            how = (steps, span.seconds, span.begun, span.ended)
            yield TimedStage(span.slot, span.stage.node, gpu_of(span.kind), *how)


def gain_fields(use: Services, row: StudyRecord, plan: SearchPlan, *, is_packed: bool) -> Json:
    """The fields of a study's answer about packs and shared GPUs, if it used any."""
    fields: Json = {}
    if is_packed:
        with use.plan_histories.holding(row.stream, plan.version) as plan_history:
            fields["packing"] = packing(plan, lanes_at_once(plan, plan_history.spans))
    if slowed := gpu_sharing(use, row, plan):
        fields["gpu_sharing"] = slowed
    return fields


def gpu_sharing(use: Services, row: StudyRecord, plan: SearchPlan) -> list[Json]:
    """By GPU and number of slots, the slowdown of a step and the speed-up of all steps together."""
    if not any(map(shared_gpu, plan.slots)):
        return []
    with use.plan_histories.holding(row.stream, plan.version) as plan_history:
        stages = list(_stages(plan_history, plan, use.clock()))
    for stream in _last_plans(use):  # they may have shared a GPU with this one
        if stream != row.stream:
            with use.plan_histories.holding(stream, use.log.version(stream)) as plan_history:
                stages += _stages(plan_history, None, use.clock())
    return [
        {"gpu": each.gpu, "slots": each.slots, "times_slower": round(each.times, 2), "gain": round(each.gain, 2)}
        for each in slowdowns(stages)
    ]


def _last_plans(use: Services) -> dict[str, StudyRecord]:
    """The latest plans by stream, each with one of its studies."""
    with use.records.read() as rows:
        return {row.stream: row for row in rows.studies.page(after=None, limit=MOST_OTHER_PLANS)}


def _stages(plan_history: PlanHistory, plan: SearchPlan | None, now: float) -> Iterator[StageTiming]:
    """The stages in a history. `plan` is None for other plans, whose steps are not comparable."""
    for span in islice(reversed(plan_history.spans), MOST_STAGES):
        steps = _steps(span, plan)
        kind = batch_sizes(plan.nodes[span.stage.node], span.stage.start) if plan and steps else ()
        ended_at = now if span.ended_at is None else span.ended_at
        yield StageTiming(span.slot, kind, steps, span.seconds, span.begun_at, ended_at)


def _steps(span: SlotSpan, plan: SearchPlan | None) -> int:
    """The steps that took the stage's seconds; 0 if unknown, and for proofs and packs."""
    if span.proof is not None or plan is None or plan.packing or span.outcome != "done":
        return 0
    return span.stage.end - span.stage.start if span.stage.node in plan.nodes else 0


def lanes_at_once(plan: SearchPlan, spans: Iterable[SlotSpan]) -> float | None:
    """The mean number of trials that the plan's packs trained at once; None before any.

    Stages that were trained alone after their pack failed are left out. spans: in the order of their beginnings.
    """
    packs: dict[str, tuple[str, float]] = {}  # by chain; a slot got the chains of a pack at once
    steps = defaultdict[tuple[str, float], Counter[str]](Counter)
    for span in spans:
        if span.proof is not None:
            continue
        pack = packs.setdefault(span.chain, (span.slot, span.begun_at))
        if span.outcome == "done" and not plan.is_without_pack(span.stage):
            steps[pack][span.chain] += span.stage.end - span.stage.start
    passes = sum(max(lanes.values()) for lanes in steps.values())
    return round(sum(lanes.total() for lanes in steps.values()) / passes, 2) if passes else None
