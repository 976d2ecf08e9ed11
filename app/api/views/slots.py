"""How slots are shown, and what they do."""

from __future__ import annotations

from typing import Any

from app.events.rows.ports import ChainRecord, SlotRecord

Json = dict[str, Any]

STATES = ("idle", "busy", "quarantined", "lost")


def state_of(row: SlotRecord, now: float, lease_seconds: float) -> str:
    """How a slot is: lost is one whose worker was not heard of for a lease."""
    if now - row.seen_at > lease_seconds:
        return "lost"
    if row.chain is not None:
        return "busy"
    return "quarantined" if (row.quarantined_until or now) > now else "idle"


def view(row: SlotRecord, chain: ChainRecord | None, now: float, lease_seconds: float) -> Json:
    """A slot, and what it is doing by the row of its chain."""
    stage = None if chain is None else _current(chain)
    return {
        "name": row.name,
        "device": row.device,
        "host": row.host,
        "state": state_of(row, now, lease_seconds),
        "note": row.note,
        "quarantined_until": row.quarantined_until,
        "trainers": row.trainers,
        "chain": row.chain,
        "stage": stage and {name: stage[name] for name in ("node", "start", "end", "step")},
        "study": stage and stage["study"],
        "seen_at": row.seen_at,
    }


def _current(chain: ChainRecord) -> Json | None:
    """The stage that the chain is in, with the last step done; None when all are trained."""
    stages = chain.assignment["stages"]
    if chain.index >= len(stages):
        return None
    stage = stages[chain.index]
    return {**stage, "step": min(max(chain.step, stage["start"]), stage["end"])}
