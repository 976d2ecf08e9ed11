"""Slots: how each is shown, what a plan's slots lost and gained by sharing GPUs, and how full their packs were.

And why studies wait for slots, or the slots for them, such as a store that is away.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from math import log
from statistics import median
from typing import Any, TypeVar

from app.domain.assignment import Unreadable, gpu_of, is_one_of, shared_gpu
from app.domain.results import is_without_pack
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.terms import Principal, TrialState
from app.events import ChainRecord, PlanUnusable, SlotRecord, StudyRecord
from app.scheduling.assignment import has_trainer, without_trainer
from app.scheduling.costs import Costs, Ran, Timed, hindsight, slowdowns
from app.scheduling.widths import batch_sizes, peaks
from app.service.plan_history import PlanHistory, SlotSpan
from app.service.services import Services
from stagetree.models import trials
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
) -> Slot:
    """A slot, and what it is doing by the row of its chain, or of the chain that it is lent to. chains: by name."""
    chain = chains.get(row.chain or "")
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
        if who.sees(row.project):
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
        return use.estimates.get(stream, moment, lambda: hindsight(plan, list(_timed(plan, plan_history))))


def _timed(plan: SearchPlan, plan_history: PlanHistory) -> Iterator[Timed]:
    """The stages that one slot trained to their ends, with their seconds."""
    for span in plan_history.spans[-MOST_STAGES:]:
        steps = span.stage.end - span.stage.start
        is_timed = span.outcome == "done" and span.proof is None and not span.members and span.stage.node in plan.nodes
        if span.ended is not None and is_timed and steps and span.seconds > 0:
            how = (steps, span.seconds, span.begun, span.ended)
            yield Timed(span.slot, span.stage.node, gpu_of(span.kind), *how)


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


def _elsewhere(use: Services, row: StudyRecord) -> Iterator[Ran]:
    """What slots did for other plans: they were neighbours."""
    for stream, other in _last_plans(use).items():
        if stream != row.stream:
            with use.plan_history(other, use.log.version(stream)) as plan_history:
                yield from _stages(plan_history, None, use.clock())


def _last_plans(use: Services) -> dict[str, StudyRecord]:
    """By stream, each with one of its studies."""
    with use.records.read() as rows:
        return {row.stream: row for row in rows.studies.page(after=None, limit=OTHERS)}


def _stages(plan_history: PlanHistory, plan: SearchPlan | None, now: float) -> Iterator[Ran]:
    """The stages of a plan, or of another one, whose steps are not compared."""
    for span in islice(reversed(plan_history.spans), MOST_STAGES):
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
    steps = defaultdict[tuple[str, float], Counter[str]](Counter)
    for span in spans:
        if span.proof is not None:
            continue
        pack = packs.setdefault(span.chain, (span.slot, span.begun_at))
        if span.outcome == "done" and not is_without_pack(plan, span.stage):
            steps[pack][span.chain] += span.stage.end - span.stage.start
    passes = sum(max(lanes.values()) for lanes in steps.values())
    return round(sum(lanes.total() for lanes in steps.values()) / passes, 2) if passes else None


Shown = TypeVar("Shown", bound=trials.Trial)


def of_study(use: Services, plan: SearchPlan, study: Study, live: Sequence[ChainRecord]) -> list[str]:
    """What holds a study up now, in a sentence each. live: the chains of its plan that are under way."""
    sentences = sorted(by_chain(use, live).values())
    if study.is_audited or study.is_running:
        with use.records.read() as rows:
            slots, now = rows.slots.alive(use.lease_seconds), rows.now()
        well = [slot for slot in slots if not slot.is_quarantined(now)]
        if sentence := _of_audit(plan, well) if study.is_audited else _without_slot(plan, study, well):
            sentences.append(sentence)
    return sentences


def _without_slot(plan: SearchPlan, study: Study, well: Sequence[SlotRecord]) -> str:
    """Why no slot takes the study: by its trainer, or its kind. Nothing while some slot has not said its trainers."""
    if plan.opened is None or not well or not all(slot.trainers for slot in well):
        return ""
    able = [slot for slot in well if has_trainer(slot, plan.opened)]
    if not able:
        return without_trainer(plan.opened, well)
    kinds = ", ".join(sorted({slot.kind or "unknown" for slot in able}))
    if not any(is_one_of(slot.kind, study.devices) for slot in able):
        return f"no slot is of its devices, {', '.join(study.devices)}: those at work are {kinds}"
    gpus = {gpu_of(slot.kind) for slot in able}
    missing = plan.gpus - gpus if len(study.devices) < 2 and "" not in gpus else frozenset[str]()
    if stay := sorted({gpu for gpu in _gpus_of(plan, study) if gpu in missing}) if missing else []:
        named = ", ".join(sorted({*stay, *gpus}))
        return (
            f"trials that began on {', '.join(stay)} wait for such a slot: those at work are {kinds}; a study with "
            f"`devices: [{named}]` goes on from their states on any of these"
        )
    return ""


def _gpus_of(plan: SearchPlan, study: Study) -> Iterator[str]:
    """The kinds of GPU on which trials that wait for a result were trained so far."""
    for trial in study.trials:
        if trial.state == TrialState.ACTIVE:
            nodes = [plan.nodes[name] for name in trial.path if name in plan.nodes and plan.nodes[name].gpu]
            yield from (node.gpu for node in nodes[-1:])


def _of_audit(plan: SearchPlan, well: Sequence[SlotRecord]) -> str:
    """Why nothing is compared for a study all of which must be proven."""
    if plan.opened is None or any(chain.proof is not None for chain in plan.chains.values()):
        return ""
    able = [slot for slot in well if has_trainer(slot, plan.opened)]
    if not well:
        return "the audit waits: no slot is at work"
    if not able:
        return f"the audit waits: {without_trainer(plan.opened, well)}"
    is_busy = all(not slot.is_free for slot in able)
    return "the audit waits for a slot that has nothing else to do" if is_busy else ""


def by_chain(use: Services, live: Sequence[ChainRecord]) -> dict[str, str]:
    """By chain of these under way, what its slot says of itself, if it says anything: one sentence each."""
    if not live:
        return {}
    with use.records.read() as rows:
        notes = {row.chain: f"slot {row.name}: {row.note}" for row in rows.slots.all() if row.note}
    return {chain.chain: notes[chain.chain] for chain in live if chain.chain in notes}


def by_node(use: Services, row: StudyRecord, at: int | None) -> dict[str, str]:
    """The same by each node that those chains of the study's plan are still to train; nothing of a moment before."""
    live = use.live(row.stream) if at is None else []
    notes = by_chain(use, live)
    return {
        stage.node: notes[chain.chain]
        for chain in live
        if chain.chain in notes
        for stage in chain.stages[chain.index :]
    }


def told(view: Shown, plan: SearchPlan, trial: Trial, notes: Mapping[str, str]) -> Shown:
    """A shown trial, whose standing says so where a slot that is to train it waits. notes: by node."""
    if not notes or view.state not in ("waiting", "running"):
        return view
    text = next((notes[name] for name, _ in plan.ends(trial) if name in notes), None)
    return view if text is None else view.with_fields(standing=f"{view.standing}; {text}")
