"""Why studies and their trials wait for slots, or slots for something else, such as an unavailable store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.slots import gpu_of, matches_device, verification_device
from app.domain.terms import TrialState
from app.domain.trainer_check import check_error_on
from app.events import ChainRecord, SlotRecord, StudyRecord
from app.scheduling.placement import has_trainer, missing_trainer_text
from app.service.services import Services
from stagetree.models import trials

Shown = TypeVar("Shown", bound=trials.Trial)


def study_reasons(use: Services, stream: str, plan: SearchPlan, study: Study, live: Sequence[ChainRecord]) -> list[str]:
    """Why the study waits now, a sentence for each reason. live: the running chains of its plan."""
    sentences = sorted(notes_by_chain(use, live).values())
    if study.is_audited or study.is_running:
        with use.records.read() as rows:
            slots, now, held_up = rows.slots.alive(use.lease_seconds), rows.now(), rows.schedulers.last_report()[1]
        sentences += [held_up[name] for name in (study.id, stream) if name in held_up]
        well = [slot for slot in slots if not slot.is_quarantined(now)]
        if sentence := _audit_reason(plan, well) if study.is_audited else _no_slot_reason(plan, study, well):
            sentences.append(sentence)
    return sentences


def _no_slot_reason(plan: SearchPlan, study: Study, well: Sequence[SlotRecord]) -> str:
    """Why no slot takes the study: its trainer or its kind. Empty while a slot has not reported its trainers."""
    if plan.opened is None or not well or not all(slot.trainers for slot in well):
        return ""
    able = [slot for slot in well if has_trainer(slot, plan.opened)]
    if not able:
        return missing_trainer_text(plan.opened, well)
    kinds = ", ".join(sorted({slot.kind or "unknown" for slot in able}))
    if not any(matches_device(slot.kind, study.spec.devices) for slot in able):
        return f"no slot is of its devices, {', '.join(study.spec.devices)}: those at work are {kinds}"
    if sentence := _failed_check_reason(plan, able):
        return sentence
    gpus = {gpu_of(slot.kind) for slot in able}
    missing = plan.gpus - gpus if len(study.spec.devices) < 2 and "" not in gpus else frozenset[str]()
    if stay := sorted({gpu for gpu in _gpus_of(plan, study) if gpu in missing}) if missing else []:
        named = ", ".join(sorted({*stay, *gpus}))
        return (
            f"trials that began on {', '.join(stay)} wait for such a slot: those at work are {kinds}; a study with "
            f"`devices: [{named}]` resumes their states on any of these"
        )
    return ""


def _failed_check_reason(plan: SearchPlan, able: Sequence[SlotRecord]) -> str:
    """Why these slots refuse the plan: its trainer failed its check on their kind of device."""
    for kind in dict.fromkeys(map(verification_device, able)):
        if error := check_error_on(plan, kind):
            return f"the trainer failed its check on {kind}, so those slots train nothing of it: {error}"
    return ""


def _gpus_of(plan: SearchPlan, study: Study) -> Iterator[str]:
    """The kinds of GPU that trained the active trials."""
    for trial in study.trials:
        if trial.state == TrialState.ACTIVE:
            nodes = [plan.nodes[name] for name in trial.path if name in plan.nodes and plan.nodes[name].gpu]
            yield from (node.gpu for node in nodes[-1:])


def _audit_reason(plan: SearchPlan, well: Sequence[SlotRecord]) -> str:
    """Why the audit makes no progress."""
    if plan.opened is None or any(chain.proof is not None for chain in plan.chains.values()):
        return ""
    able = [slot for slot in well if has_trainer(slot, plan.opened)]
    if not well:
        return "the audit waits: no slot is at work"
    if not able:
        return f"the audit waits: {missing_trainer_text(plan.opened, well)}"
    is_busy = all(not slot.is_free for slot in able)
    return "the audit waits for a slot that has nothing else to do" if is_busy else ""


def notes_by_chain(use: Services, live: Sequence[ChainRecord]) -> dict[str, str]:
    """By running chain, its slot's note as a sentence, if it has one."""
    if not live:
        return {}
    with use.records.read() as rows:
        notes = {row.chain: f"slot {row.name}: {row.note}" for row in rows.slots.all() if row.note}
    return {chain.chain: notes[chain.chain] for chain in live if chain.chain in notes}


def notes_by_node(use: Services, row: StudyRecord, at: int | None) -> dict[str, str]:
    """The notes by node that those chains have yet to train; empty for an earlier moment."""
    live = use.live(row.stream) if at is None else []
    notes = notes_by_chain(use, live)
    return {
        stage.node: notes[chain.chain]
        for chain in live
        if chain.chain in notes
        for stage in chain.stages[chain.index :]
    }


def with_waiting_reason(view: Shown, plan: SearchPlan, trial: Trial, notes: Mapping[str, str]) -> Shown:
    """The trial's view, with the note of a waiting slot on its path in `standing`. notes: by node."""
    if not notes or view.state not in ("waiting", "running"):
        return view
    text = next((notes[name] for name, _ in plan.path_ends(trial) if name in notes), None)
    return view if text is None else view.with_fields(standing=f"{view.standing}; {text}")
