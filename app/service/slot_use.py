"""Slots: how each is shown, what a plan's slots lost and gained by sharing GPUs, and how full their packs were."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from app.domain.assignment import shared_gpu
from app.domain.exactness import is_without_pack
from app.domain.search_plan import SearchPlan
from app.events.rows import ChainRecord, SlotRecord, StudyRecord
from app.scheduling.costs import Ran, slowdowns
from app.scheduling.packs import batch_sizes
from app.service.chronicle import Chronicle, SlotSpan
from app.service.services import Services
from stagetree.models.service import Slot, SlotStage

STATES = ("idle", "busy", "quarantined", "lost")


def state_of(row: SlotRecord, now: float, lease_seconds: float) -> str:
    """How a slot is: lost is one whose worker was not heard of for a lease."""
    if now - row.seen_at > lease_seconds:
        return "lost"
    if row.chain is not None:
        return "busy"
    return "quarantined" if (row.quarantined_until or now) > now else "idle"


def view_of(row: SlotRecord, chain: ChainRecord | None, now: float, lease_seconds: float) -> Slot:
    """A slot, and what it is doing by the row of its chain."""
    stage, study = (None, None) if chain is None else _current(chain)
    return Slot(
        name=row.name,
        device=row.device,
        host=row.host,
        state=state_of(row, now, lease_seconds),
        note=row.note,
        quarantined_until=row.quarantined_until,
        trainers=dict(row.trainers),
        chain=row.chain,
        stage=stage,
        study=study,
        seen_at=row.seen_at,
    )


def _current(chain: ChainRecord) -> tuple[SlotStage | None, str | None]:
    """The stage that the chain is in, with the last step done, and the study charged; None when all are trained."""
    if chain.index >= len(chain.stages):
        return None, None
    stage = chain.stages[chain.index]
    step = min(max(chain.step, stage.start), stage.end)
    return SlotStage(node=stage.node, start=stage.start, end=stage.end, step=step), stage.study


Json = dict[str, Any]

MOST_STAGES = 2_000
"""It is reckoned from so many stages of each plan, those that began last."""

OTHERS = 8
"""The plans of so many studies, those that came last, are looked through for neighbours."""


def gpu_sharing(use: Services, row: StudyRecord, plan: SearchPlan) -> list[Json]:
    """By GPU and number of slots, how many times slower a step was, and how many times faster all steps were."""
    with use.chronicle(row, plan.version) as chronicle:
        if not any(map(shared_gpu, chronicle.slots)):
            return []
        stages = list(_stages(chronicle, plan, use.clock()))
    found = slowdowns([*stages, *_elsewhere(use, row)])
    return [
        {"gpu": each.gpu, "slots": each.slots, "times_slower": round(each.times, 2), "gain": round(each.gain, 2)}
        for each in found
    ]


def _elsewhere(use: Services, row: StudyRecord) -> Iterator[Ran]:
    """What slots did for other plans: they were neighbours."""
    with use.records.read() as rows:
        last = {other.stream: other for other in rows.studies.page(after=None, limit=OTHERS)}
    for stream, other in last.items():
        if stream != row.stream:
            with use.chronicle(other, use.log.version(stream)) as chronicle:
                yield from _stages(chronicle, None, use.clock())


def _stages(chronicle: Chronicle, plan: SearchPlan | None, now: float) -> Iterator[Ran]:
    """The stages of a plan, or of another one, whose steps are not compared."""
    for span in islice(reversed(chronicle.spans), MOST_STAGES):
        steps = _steps(span, plan)
        kind = batch_sizes(plan.nodes[span.stage.node], span.stage.start) if plan and steps else ()
        ended_at = now if span.ended_at is None else span.ended_at
        yield Ran(span.slot, kind, steps, span.seconds, span.begun_at, ended_at)


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
    taken = defaultdict[tuple[str, float], Counter[str]](Counter)
    for span in spans:
        if span.proof is not None:
            continue
        pack = packs.setdefault(span.chain, (span.slot, span.begun_at))
        if span.outcome == "done" and not is_without_pack(plan, span.stage):
            taken[pack][span.chain] += span.stage.end - span.stage.start
    passes = sum(max(lanes.values()) for lanes in taken.values())
    return round(sum(lanes.total() for lanes in taken.values()) / passes, 2) if passes else None
