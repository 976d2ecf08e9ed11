"""The rows beside the log: studies as they stand, slots, schedulers, and who may write for a chain.

All of it works inside a transaction: `Rows` is what one sees, and the log's `append` runs a change of them alongside.
Time is the database's, or that of the clock given to `Database`.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.events.rows.chains import ChainFlags, Chains, Lease, flags_of, has_expired
from app.events.rows.clock import now
from app.events.rows.errors import ChainNotClaimable, Fenced, SlotLost, SlotTaken
from app.events.rows.schedulers import Schedulers
from app.events.rows.slots import Slots
from app.events.rows.studies import Studies


class Rows:
    """The rows of a database inside one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.studies, self.slots, self.chains = Studies(session), Slots(session), Chains(session)
        self.schedulers = Schedulers(session)

    def now(self) -> float:
        """Unix seconds by the clock that leases go by."""
        return self._session.execute(select(now(self._session))).scalar_one()


__all__ = [
    "ChainFlags",
    "ChainNotClaimable",
    "Chains",
    "Fenced",
    "Lease",
    "Rows",
    "Schedulers",
    "SlotLost",
    "SlotTaken",
    "Slots",
    "Studies",
    "flags_of",
    "has_expired",
]
