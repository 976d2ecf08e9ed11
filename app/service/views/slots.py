"""How slots are shown, and what they do."""

from __future__ import annotations

from app.events.rows import ChainRecord, SlotRecord
from stagetree.models.service import Slot, SlotStage

STATES = ("idle", "busy", "quarantined", "lost")


def state_of(row: SlotRecord, now: float, lease_seconds: float) -> str:
    """How a slot is: lost is one whose worker was not heard of for a lease."""
    if now - row.seen_at > lease_seconds:
        return "lost"
    if row.chain is not None:
        return "busy"
    return "quarantined" if (row.quarantined_until or now) > now else "idle"


def view(row: SlotRecord, chain: ChainRecord | None, now: float, lease_seconds: float) -> Slot:
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
