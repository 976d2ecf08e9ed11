"""Runs on: the thread that trains; a claim's `over` is set by any.

The right to write for a chain, how a slot gets it, and why it ends where nothing has failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Event as Flag

from app.domain.chain_assignment import ChainAssignment
from app.domain.terms import ChainId, ChainState
from app.events import ChainNotClaimable, DatabaseUnavailable, Lease, Records, RowsPort
from app.outages import LostRace
from app.workers.slot.retry import Instant, RetryPolicy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """What proves it, and `over`: set, once and by any thread, when nothing more will be written for the chain."""

    chain: ChainId
    stream: str
    fence: int
    end_flag: Flag = field(default_factory=Flag)

    @property
    def log_fields(self) -> dict[str, str | int]:
        """The fields of a log line about it."""
        return {"chain": self.chain, "plan": self.stream, "fence": self.fence}


@dataclass(frozen=True, slots=True)
class Pulse:
    """A chain as it stands. waits_since: when its last stage was done, if the message of the next one is not there.

    kept: the steps up to there at which its state was kept.
    """

    claim: Claim
    step: int
    waits_since: Instant | None = None
    kept: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Claimed:
    """A chain that is ours, and what it is to do."""

    lease: Lease
    claim: Claim
    work: ChainAssignment


class Claimer:
    """owner: the token of this process. is_unwanted: whether to stop asking a database that is away."""

    def __init__(self, records: Records, owner: str, lease_seconds: float, retry: RetryPolicy) -> None:
        self._records, self._owner, self._lease_seconds = records, owner, lease_seconds
        self._retry = retry
        self._claimed = set[str]()

    def claim(self, chain: str, is_unwanted: Callable[[], bool]) -> Lease:
        """Once: the message that begins a chain may come again, and a chain that is ours looks as if the answer to this
        claim had been lost. Raises `ChainNotClaimable`, and `Closing` if the database was away until the slot had to
        end."""
        if chain in self._claimed:
            raise ChainNotClaimable(f"Chain {chain} was claimed by this process before.")
        is_doubtful = False
        for number in self._retry.attempts():
            try:
                with self._records.write() as rows:
                    lease = self._claim(rows, chain, is_doubtful)
                self._claimed.add(chain)
                return lease
            except (DatabaseUnavailable, LostRace) as problem:
                is_doubtful = True  # perhaps it was the commit's answer that did not arrive
                if number == 1:
                    logger.warning("chain %s waits to be claimed: %s", chain, problem, extra={"chain": chain})
            if is_unwanted():
                break
        raise ChainNotClaimable(f"Chain {chain} was not claimed: this worker is to end.")

    def _claim(self, rows: RowsPort, chain: str, is_doubtful: bool) -> Lease:
        try:
            return rows.chains.claim(chain, self._owner, self._lease_seconds)
        except ChainNotClaimable:
            row = rows.chains.get(chain) if is_doubtful else None
            if row is None or row.owner != self._owner or row.state != ChainState.RUNNING:
                raise
            return row.lease


class ChainLost(Exception):
    """The chain is over, or another worker's."""


class ChainStopped(Exception):
    """Nobody wants the chain any more, and it ends where it is."""


class PackBroken(Exception):
    """What trained the chain together with others failed, and none of them can be told to be the reason; or there is no
    memory for it beside them."""


class TrainerVersionMismatch(Exception):
    """This slot has not the trainer of a chain, or not in its version; that is nobody's fault."""


class NoTrainerProcess(Exception):
    """No process that trains can be started here, or not with the slot's device."""


class RanksUnavailable(NoTrainerProcess):
    """The ranks of a gang have not found each other: another time they may."""


class LentSlotsBusy(Exception):
    """Slots that are lent to the chain are not left by their workers. slots: their names and owners."""

    def __init__(self, slots: Mapping[str, str]) -> None:
        super().__init__(f"the workers of {', '.join(sorted(slots))} have not left the devices that are lent to it")
        self.slots = slots
