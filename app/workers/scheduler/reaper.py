"""Ends the chains whose lease has run out, and says why: only a worker that is gone is something to wonder about."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from app.domain import commands as c
from app.domain.decide import decide
from app.domain.events import Event
from app.domain.ids import ChainId
from app.domain.search_plan import SearchPlan
from app.domain.states import ChainOutcome, ChainState
from app.events.log import VersionConflict
from app.events.plans import PlanUnusable
from app.events.rows.errors import Fenced
from app.events.rows.ports import ChainRecord
from app.workers.scheduler.overview import Overview
from app.workers.scheduler.ports import Ports

logger = logging.getLogger(__name__)

GIVEN_UP = 0.0
"""The lease of a chain whose worker said that it is gone, or whose slot another worker has taken."""


class Reaper:
    """Leases count only while the database answers: whoever could not renew one has not lost it.

    So a chain is ended when its lease has run out and the database has answered this scheduler for a whole lease, or
    when its worker is known to be gone.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._answered_since: float | None = None

    def interrupted(self) -> None:
        """The database did not answer."""
        self._answered_since = None

    def reap(self, seen: Overview) -> bool:
        """End whoever is over; whether there was anybody. Raises `DatabaseUnavailable`."""
        if self._answered_since is None:
            self._answered_since = seen.now
        is_patient = seen.now - self._answered_since < self._ports.lease_seconds
        over = [row for row in seen.expired if not (is_patient and _may_be_heard_of(row))]
        for row in over:
            self._end(row, _outcome(row, seen))
        return bool(over)

    def _end(self, row: ChainRecord, outcome: ChainOutcome) -> None:
        logger.warning("chain %s on %s was not heard of in time and is over: %s", row.chain, row.slot, outcome)

        def decided(plan: SearchPlan) -> Sequence[Event]:
            return decide(plan, self._command(plan, row, outcome))

        try:
            self._ports.transact(row.stream, decided, alongside=lambda rows: rows.chains.end_expired(row.chain))
        except Fenced:
            logger.info("chain %s was heard of after all", row.chain)
        except PlanUnusable as problem:
            self._ports.problems.report(row.stream, str(problem))
        except VersionConflict as conflict:
            logger.info("chain %s is ended at the next tick: %s", row.chain, conflict)

    def _command(self, plan: SearchPlan, row: ChainRecord, outcome: ChainOutcome) -> c.LoseChain:
        """What is known of the stage under way: where its worker was heard of last, and the time it took."""
        chain = plan.chains.get(ChainId(row.chain))
        if chain is None or chain.is_trained or row.state == ChainState.READY:
            return c.LoseChain(chain=ChainId(row.chain), outcome=outcome)
        steps = max(0, row.step - chain.stages[chain.index].start)
        heard_at = row.lease_until - self._ports.lease_seconds if row.lease_until else self._ports.clock()
        seconds = max(0.0, heard_at - chain.at - chain.seconds) if steps else 0.0
        return c.LoseChain(chain=chain.id, outcome=outcome, steps=steps, seconds=seconds)


def _may_be_heard_of(row: ChainRecord) -> bool:
    """Whether a worker has the chain, and is not known to be gone."""
    return row.state != ChainState.READY and row.lease_until > GIVEN_UP


def _outcome(row: ChainRecord, seen: Overview) -> ChainOutcome:
    """A worker that is alive and still has the slot was not lost: it waits for a message, or was interrupted."""
    if row.state == ChainState.READY:
        return ChainOutcome.UNDELIVERED
    slot = seen.slots.get(row.slot)
    if slot is None or slot.owner != row.owner:
        return ChainOutcome.LOST
    return ChainOutcome.UNDELIVERED if row.state == ChainState.RUNNING and _waits(row) else ChainOutcome.INTERRUPTED


def _waits(row: ChainRecord) -> bool:
    """Whether the worker is between two stages, waiting for the message that starts the next one."""
    stages = row.assignment["stages"]
    return 0 < row.index < len(stages) and bool(row.step <= stages[row.index]["start"])
