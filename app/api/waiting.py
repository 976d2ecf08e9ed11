"""What the slots that train for a plan wait for, such as a store that is away: said where its studies are looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from app.api.services import Services
from app.domain.search_plan import SearchPlan, Trial
from app.events.rows.ports import ChainRecord
from app.events.tables import StudyRow
from stagetree.models import trials

Shown = TypeVar("Shown", bound=trials.Trial)


def by_chain(use: Services, live: Sequence[ChainRecord]) -> dict[str, str]:
    """By chain of these under way, what its slot says of itself, if it says anything: one sentence each."""
    if not live:
        return {}
    with use.records.read() as rows:
        notes = {row.chain: f"slot {row.name}: {row.note}" for row in rows.slots.all() if row.note}
    return {chain.chain: notes[chain.chain] for chain in live if chain.chain in notes}


def by_node(use: Services, row: StudyRow, at: int | None) -> dict[str, str]:
    """The same by each node that those chains of the study's plan are still to train; nothing of a moment before."""
    live = use.live(row.stream) if at is None else []
    notes = by_chain(use, live)
    return {
        stage["node"]: notes[chain.chain]
        for chain in live
        if chain.chain in notes
        for stage in chain.assignment["stages"][chain.index :]
    }


def told(view: Shown, plan: SearchPlan, trial: Trial, notes: Mapping[str, str]) -> Shown:
    """A shown trial, whose standing says so where a slot that is to train it waits. notes: by node."""
    if not notes or view.state not in ("waiting", "running"):
        return view
    text = next((notes[name] for name, _ in plan.ends(trial) if name in notes), None)
    return view if text is None else view.with_fields(standing=f"{view.standing}; {text}")
