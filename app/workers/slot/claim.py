"""The right to write for a chain, how a slot gets it, and the reasons why it ends without a failure.

Runs on: the thread that trains; a claim's `end_flag` is set by any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Event as Flag

from app.domain.chain_assignment import ChainAssignment
from app.domain.terms import ChainId, ChainState
from app.events import ChainNotClaimable, DatabaseUnavailable, Lease, LeaseFence, Records, RowsPort
from app.outages import LostRace
from app.workers.ownership import Owner
from app.workers.slot.retry import Instant, RetryPolicy

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Claim:
    """Proves the right to write for a chain.

    fence: replaced by the outbox after each report that is on record; other threads may read it.
    end_flag: set once, by any thread, when nothing more will be written.
    """

    chain: ChainId
    stream: str
    fence: LeaseFence
    end_flag: Flag = field(default_factory=Flag)

    @property
    def log_fields(self) -> dict[str, str | int]:
        """The fields of a log line about it."""
        return {"chain": self.chain, "plan": self.stream, "fence": self.fence.number}


@dataclass(frozen=True, slots=True)
class Pulse:
    """A chain's progress. waits_since: when its last stage ended, if the next message has not come.

    kept: the steps at which its state was kept.
    """

    claim: Claim
    step: int
    waits_since: Instant | None = None
    kept: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claimed chain and its assignment."""

    lease: Lease
    claim: Claim
    work: ChainAssignment


class Claimer:
    """Claims the chains of this process's slot."""

    def __init__(self, records: Records, me: Owner, lease_seconds: float, retry: RetryPolicy) -> None:
        self._records, self._me, self._lease_seconds = records, me, lease_seconds
        self._retry = retry
        self._claimed = set[str]()

    def claim(self, chain: str, is_unwanted: Callable[[], bool]) -> Lease:
        """Claim a chain, at most once: its first message may come twice, and a chain of ours looks like a claim whose
        answer was lost.

        is_unwanted: whether to stop waiting for an unavailable database. Raises `ChainNotClaimable`, and `Closing` if
            the slot had to end during an outage.
        """
        if chain in self._claimed:
            raise ChainNotClaimable(f"Chain {chain} was claimed by this process before.")
        is_doubtful = False
        for number in self._retry.attempts():
            try:
                with self._records.write() as rows:
                    lease = self._claim(rows, chain, is_doubtful)
                    self._check_slot(lease)
                self._claimed.add(chain)
                return lease
            except (DatabaseUnavailable, LostRace) as problem:
                is_doubtful = True  # the commit may have succeeded without its answer arriving
                if number == 1:
                    logger.warning("chain %s waits to be claimed: %s", chain, problem, extra={"chain": chain})
            if is_unwanted():
                break
        raise ChainNotClaimable(f"Chain {chain} was not claimed: this worker is to end.")

    def _claim(self, rows: RowsPort, chain: str, is_doubtful: bool) -> Lease:
        try:
            return rows.chains.claim(chain, self._me.owner, self._lease_seconds)
        except ChainNotClaimable:
            row = rows.chains.get(chain) if is_doubtful else None
            if row is None or row.owner != self._me.owner or row.state != ChainState.RUNNING:
                raise
            return row.lease

    def _check_slot(self, lease: Lease) -> None:
        """A message may come to a slot that its chain was not given to; the slot may have another kind of device."""
        if lease.slot != self._me.slot:
            raise ChainNotClaimable(f"Chain {lease.chain} was given to slot {lease.slot}.")


class ChainLost(Exception):
    """The chain is over, another worker's, or has lost reports: see `Fenced`."""


class ChainStopped(Exception):
    """No trial needs more of the chain; it ends here."""


class PackBroken(Exception):
    """Training a pack failed, and the cause may be any of its chains; or there is no memory for the chain beside the
    others.
    """


class TrainerVersionMismatch(Exception):
    """This slot lacks the chain's trainer, or its version of it; nothing has failed."""


class NoTrainerProcess(Exception):
    """No trainer process can be started here, or not with the slot's device."""


class RanksUnavailable(NoTrainerProcess):
    """The ranks of a gang did not find each other; another attempt may succeed."""


class LentSlotsBusy(Exception):
    """Workers of lent slots have not left their devices. slots: their names and owners."""

    def __init__(self, slots: Mapping[str, str]) -> None:
        super().__init__(f"the workers of {', '.join(sorted(slots))} have not left the devices that are lent to it")
        self.slots = slots
