"""Ends the chains whose lease has expired, and decides why: only a missing worker is unusual.

Runs on: the tick's thread.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from app.domain import commands as c
from app.domain.decide import decide
from app.domain.events import Event
from app.domain.search_plan import SearchPlan
from app.domain.terms import ChainId, ChainOutcome, ChainState
from app.events import (
    AT_WORK,
    LONGEST_QUARANTINE,
    ChainRecord,
    Fenced,
    RowsPort,
    SlotLost,
    SlotRecord,
)
from app.workers.ownership import have_same_parent
from app.workers.scheduler.cluster import GIVEN_UP, Cluster, longest_lease
from app.workers.scheduler.ports import Dispatch, Ports

logger = logging.getLogger(__name__)

ENDING = "ending its chains"

MAX_IGNORED_CHAINS = 2
"""A worker that begins none of this many chains in a row gets none for a while."""

DEAF = f"{MAX_IGNORED_CHAINS} chains in a row were sent here, and its worker began none: it may hear nothing"

CLOCK_JUMP_LEASES = 0.5
"""The share of a lease by which two clocks may differ between looks, as when the database answers late."""


class Reaper:
    """Leases count only while the database answers and its clock is steady: a worker that could not renew a lease has
    not lost it.

    So a chain ends when its lease has expired and the database has answered this scheduler for a whole lease, or when
    its worker has certainly ended. After a jump of the database's clock, as at a failover, no lease can be trusted
    until its worker has renewed it, so a whole lease is waited for again.
    """

    def __init__(self, ports: Ports, dispatch: Dispatch) -> None:
        self._ports, self._dispatch = ports, dispatch
        self._answered_since: float | None = None
        self._clocks: tuple[float, float] | None = None  # the database's, and one that does not jump
        self._ignored: Counter[tuple[str, str]] = Counter()  # by slot and worker: chains that it did not begin

    def note_outage(self) -> None:
        """The database did not answer, or accepted no writes."""
        self._answered_since = None

    def reap(self, cluster: Cluster) -> bool:
        """End all lost chains, and return whether there were any. Raises `DatabaseUnavailable`."""
        now = self._ports.elapsed()
        if self._answered_since is None or self._has_jumped(cluster.now, now):
            self._answered_since = now
        is_patient = now - self._answered_since < self._ports.lease_seconds
        over = [row for row in cluster.expired if not (is_patient and _may_renew(row))]
        for row in over:
            with self._ports.fence.guard(row.stream, ENDING):
                deaf = self._deaf_worker(row, cluster)
                outcome = _outcome(row, cluster, self._ports.lease_seconds)
                self._end(row, cluster, outcome, died_alone=_process_died(row, cluster), deaf=deaf)
        gangs = [row for _, row in sorted(cluster.gangs.items()) if row not in over]
        broken = [row for row in gangs if _has_lost_member(row, cluster, is_patient)]
        for row in broken:
            with self._ports.fence.guard(row.stream, ENDING):
                self._end(row, cluster, ChainOutcome.INTERRUPTED, died_alone=False, deaf=None, is_broken=True)
        return bool(over or broken)

    def _deaf_worker(self, row: ChainRecord, cluster: Cluster) -> str | None:
        """The worker of a slot that began none of several chains while other slots' workers began theirs."""
        slot = cluster.slots.get(row.slot)
        if slot is None or row.state != ChainState.READY or self._dispatch.is_unsent(row):
            return None
        worker = (slot.name, slot.owner)
        for each in [each for each in self._ignored if each[0] == slot.name and each != worker]:
            del self._ignored[each]
        if cluster.last_begun.get(slot.name, 0.0) >= row.dispatched_at - self._ports.lease_seconds:
            self._ignored.pop(worker, None)
        self._ignored[worker] += 1
        since = row.dispatched_at - MAX_IGNORED_CHAINS * self._ports.lease_seconds
        others = any(sent >= since for name, sent in cluster.last_begun.items() if name != slot.name)
        return slot.owner if others and self._ignored[worker] >= MAX_IGNORED_CHAINS else None

    def _has_jumped(self, theirs: float, ours: float) -> bool:
        """Whether the database's clock differs from ours by much more or less than at the last look."""
        before, self._clocks = self._clocks, (theirs, ours)
        if (
            before is None
            or abs((theirs - before[0]) - (ours - before[1])) < CLOCK_JUMP_LEASES * self._ports.lease_seconds
        ):
            return False
        logger.warning("the database's clock has jumped by %.1f s", (theirs - before[0]) - (ours - before[1]))
        return True

    def _end(
        self,
        row: ChainRecord,
        cluster: Cluster,
        outcome: ChainOutcome,
        *,
        died_alone: bool,
        deaf: str | None,
        is_broken: bool = False,
    ) -> None:
        """is_broken: the chain's own worker may be well, but the worker of a slot lent to it is gone."""
        about = {"chain": row.chain, "plan": row.stream, "slot": row.slot}
        why = "has lost a slot that was lent to it" if is_broken else "was not heard of in time"
        lost = f"chain %s on %s {why} and is over: %s"
        logger.warning(lost, row.chain, row.slot, outcome, extra=about)

        def decide_loss(plan: SearchPlan) -> Sequence[Event]:
            return decide(plan, replace(_loss_command(plan, row, cluster, outcome), died_alone=died_alone))

        def end_row(rows: RowsPort) -> None:
            if is_broken:
                rows.chains.end(row.chain)
            else:
                rows.chains.end_expired(row.chain, longest_lease(self._ports.lease_seconds))
            if deaf is not None:
                with suppress(SlotLost):
                    rows.slots.quarantine(row.slot, deaf, seconds=LONGEST_QUARANTINE, reason=DEAF)

        try:
            self._ports.transact(row.stream, decide_loss, alongside=end_row)
        except Fenced:
            logger.info("chain %s was heard of after all", row.chain)


def _loss_command(plan: SearchPlan, row: ChainRecord, cluster: Cluster, outcome: ChainOutcome) -> c.LoseChain:
    """Says how far the stage was at the last heartbeat, and how long it took."""
    chain = plan.chains.get(ChainId(row.chain))
    if chain is None or chain.is_trained:
        return c.LoseChain(chain=ChainId(row.chain), outcome=outcome)
    steps = max(0, row.step - chain.stages[chain.index].start)
    seconds = max(0.0, cluster.heard_at(row) - chain.at - chain.seconds) if steps else 0.0
    return c.LoseChain(chain=chain.id, outcome=outcome, steps=steps, seconds=seconds)


def _has_lost_member(row: ChainRecord, cluster: Cluster, is_patient: bool) -> bool:
    """Whether the worker of a slot lent to the chain is gone, by the rows read last.

    A worker that ends in order asks the chain to leave first.
    """
    if row.state not in AT_WORK:
        return False
    for name, owner in row.members.items():
        slot = cluster.slots.get(name)
        if slot is None and not (is_patient or row.preempt or row.stop):
            return True
        if slot is not None and slot.owner != owner:
            return True
    return False


def _may_renew(row: ChainRecord) -> bool:
    """Whether a worker has the chain, and is not known to be gone."""
    return row.state != ChainState.READY and row.lease_until > GIVEN_UP


def _outcome(row: ChainRecord, cluster: Cluster, lease_seconds: float) -> ChainOutcome:
    """A worker that is alive and still has the slot was not lost: it awaits a message, or was interrupted."""
    if row.state == ChainState.READY:
        return ChainOutcome.UNDELIVERED
    slot = cluster.slots.get(row.slot)
    if slot is None or slot.owner != row.owner or not _was_seen_since(row, slot, lease_seconds):
        return ChainOutcome.LOST
    return (
        ChainOutcome.UNDELIVERED
        if row.state == ChainState.RUNNING and _awaits_message(row)
        else ChainOutcome.INTERRUPTED
    )


def _was_seen_since(row: ChainRecord, slot: SlotRecord, lease_seconds: float) -> bool:
    """Whether the slot's worker lived on without renewing the chain.

    A worker shows that it is alive before it renews its chains. If it died between the two, it was seen one heartbeat
    after the last renewal; if it lives on, almost a lease after it.
    """
    return slot.seen_at - (row.lease_until - lease_seconds) > lease_seconds / 2


def _process_died(row: ChainRecord, cluster: Cluster) -> bool:
    """Whether the chain's process died while the main process that had forked it lived on and started another.

    If both died, as with the machine or the whole stack, the stage is not to blame. The trainer is a separate process,
    whose death the worker reports.
    """
    slot = cluster.slots.get(row.slot)
    if slot is None or row.owner is None or slot.owner == row.owner:
        return False
    return have_same_parent(row.owner, slot.owner)


def _awaits_message(row: ChainRecord) -> bool:
    """Whether the worker is between two stages and waits for the next message."""
    return 0 < row.index < len(row.stages) and row.step <= row.stages[row.index].start
