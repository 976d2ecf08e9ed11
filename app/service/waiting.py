"""What studies wait for, and the slots that train for them, such as a store that is away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from app.domain.search_plan import SearchPlan, Study, Trial
from app.events.rows import ChainRecord, SlotRecord, StudyRecord
from app.scheduling.assignment import has_trainer, without_trainer
from app.service.services import Services
from stagetree.models import trials

Shown = TypeVar("Shown", bound=trials.Trial)


def of_study(use: Services, plan: SearchPlan, study: Study, live: Sequence[ChainRecord]) -> list[str]:
    """What holds a study up now, in a sentence each. live: the chains of its plan that are under way."""
    said = sorted(by_chain(use, live).values())
    if study.is_audited or study.is_running:
        with use.records.read() as rows:
            slots, now = rows.slots.alive(use.lease_seconds), rows.now()
        well = [slot for slot in slots if (slot.quarantined_until or now) <= now]
        if sentence := _of_audit(plan, well) if study.is_audited else _without_slot(plan, well):
            said.append(sentence)
    return said


def _without_slot(plan: SearchPlan, well: Sequence[SlotRecord]) -> str:
    """That no slot has the study's trainer; nothing as long as some slot has not said yet which ones it has."""
    if plan.opened is None or not well or not all(slot.trainers for slot in well):
        return ""
    return "" if any(has_trainer(slot, plan.opened) for slot in well) else without_trainer(plan.opened, well)


def _of_audit(plan: SearchPlan, well: Sequence[SlotRecord]) -> str:
    """Why nothing is compared for a study all of which must be proven."""
    if plan.opened is None or any(chain.proof is not None for chain in plan.chains.values()):
        return ""
    able = [slot for slot in well if has_trainer(slot, plan.opened)]
    if not well:
        return "the audit waits: no slot is at work"
    if not able:
        return f"the audit waits: {without_trainer(plan.opened, well)}"
    is_busy = all(slot.chain is not None for slot in able)
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
