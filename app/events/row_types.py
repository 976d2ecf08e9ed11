"""The rows beside the log as values: studies, tokens, slots and chains, and the errors of operations on them.

`app.events.tables` makes the columns from the fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from app.domain.chain_assignment import ChainAssignment, Unreadable
from app.domain.events import Stage
from app.domain.terms import ChainState

HELD = (ChainState.RUNNING, ChainState.SAVING)
"""The states in which a worker has the chain's lease."""

AT_WORK = (ChainState.READY, ChainState.RUNNING)
"""The states in which a chain has its slot."""

LIVE = "state IN ('ready', 'running', 'saving')"
"""A chain that is not over: its worker must renew the lease. Written as text, so that the partial index serves it."""


class SlotTaken(Exception):
    """The slot is unknown, has a chain already, or belongs to another worker."""


class SlotLost(Exception):
    """The slot no longer belongs to this worker."""


class ChainNotClaimable(Exception):
    """The chain is over, or another worker has it."""


class Fenced(Exception):
    """The chain no longer belongs to this worker, or its row has lost reports of it: its writes are refused."""


@dataclass(frozen=True, slots=True)
class ChainFlags:
    """What the scheduler asks of a chain's worker."""

    extra_eval_steps: tuple[int, ...] = ()
    """Further steps at which to evaluate and save."""
    stop: bool = False
    """No study needs the chain any more."""
    preempt: bool = False
    """Another study needs the slot: save the state after the step under way, and end, however long that takes."""
    branch_steps: tuple[int, ...] = ()
    """Steps at which trials branch off that were not known when the chain began."""

    @property
    def end(self) -> bool:
        """Whether to end after the step under way."""
        return self.stop or self.preempt


@dataclass(frozen=True, slots=True)
class LeaseFence:
    """What a worker shows with each write for its chain. The chain's row must agree."""

    number: int
    """Of the claim. Ending the chain changes it."""
    owner: str
    """The worker's token. A database that has lost a claim gives its number away again, but no token is used twice."""
    reports: int = 0
    """How many reports on the chain are on record, as far as the worker knows. A row with fewer has lost some."""

    @property
    def reported(self) -> LeaseFence:
        """The fence once one more report is on record."""
        return replace(self, reports=self.reports + 1)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a chain, proven by `fence`."""

    chain: str
    stream: str
    slot: str
    fence: LeaseFence
    assignment: ChainAssignment | Unreadable
    flags: ChainFlags


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    id: str
    stream: str
    name: str
    state: str
    submitted_at: float
    slots_due: float | None = None
    """Its share of the slots, while other studies compete for them."""
    audited: bool | None = None
    """Whether an audit is under way; None if there is none."""
    begins: Mapping[str, Any] | None = None
    """The weights that it begins from, as in `StudySubmitted`."""
    project: str = ""
    owner: str = ""
    tags: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Installation:
    name: str
    """The first part of the keys of its checkpoints."""
    database: str | None
    """Identifies the database: a copy has the same name and another identity. None if the database cannot be
    identified.
    """
    paused_until: float | None = None
    """No checkpoint is deleted before this time, because a backup is being made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A principal and its token. Times are Unix seconds."""

    name: str
    digest: str
    """The SHA-256 of the token, in hexadecimal. The token itself is stored nowhere."""
    scope: str
    created_at: float
    project: str | None = None
    """None for all projects."""
    expires_at: float | None = None
    """None for a token that does not expire."""
    used_at: float | None = None
    revoked_at: float | None = None
    max_slot_seconds: float | None = None
    """The slot time that all its studies may take; None for no limit."""
    writes: int = 0
    """How often a token with such a limit has written: of two writers that looked at the same rest, one tries again."""


LONGEST_QUARANTINE = 300.0
"""In seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRecord:
    """One GPU, or one CPU process, and the worker that has it."""

    name: str
    owner: str
    device: str
    host: str
    pid: int
    seen_at: float
    chain: str | None = None
    """The chain that it was given."""
    resident_model: Mapping[str, Any] | None = None
    """Plan, node and step of the model that it holds in memory."""
    trainers: Mapping[str, str] = field(default_factory=dict)
    """The version of each trainer that its worker loads."""
    note: str | None = None
    """The reason why it waits or is in quarantine."""
    quarantined_until: float | None = None
    kind: str = ""
    """The kind of its device; "" if unknown."""
    lent_to: str | None = None
    """The chain of another slot that trains on its device as well."""
    emptied_for: str | None = None
    """The chain for which its worker has freed the device."""
    address: str = ""
    """The host:port at which workers of other machines reach its worker; "" if they cannot."""
    gauges: Mapping[str, float] | None = None
    """What its worker measured at the last heartbeat: see `app.workers.slot.gauges`."""

    @property
    def is_free(self) -> bool:
        return self.chain is None and self.lent_to is None

    def was_seen(self, at: float, within: float) -> bool:
        """Whether its worker was seen within the last seconds. A time far in the future was set before the clock went
        back.
        """
        return at - within <= self.seen_at <= at + within

    def is_quarantined(self, at: float) -> bool:
        """A quarantine that ends later than the longest one was set before the clock went back, and does not count."""
        return self.quarantined_until is not None and at < self.quarantined_until <= at + LONGEST_QUARANTINE


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRecord:
    """A chain and the worker that may write for it."""

    chain: str
    stream: str
    slot: str
    assignment: ChainAssignment | Unreadable
    lease_until: float
    dispatched_at: float
    state: str = ChainState.READY
    fence: int = 0
    """See `LeaseFence.number`."""
    owner: str | None = None
    reports: int = 0
    """How many reports of its worker are on record."""
    index: int = 0
    """The stage under way."""
    step: int = 0
    """The last step that was reported as trained."""
    extra_eval_steps: tuple[int, ...] = ()  # this and the next three: see `ChainFlags`
    branch_steps: tuple[int, ...] = ()
    stop: bool = False
    preempt: bool = False
    members: Mapping[str, str] = field(default_factory=dict)
    """The slots that are lent to it, each with its owner at that time."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that it was given; none if its assignment cannot be read."""
        return () if isinstance(self.assignment, Unreadable) else self.assignment.stages

    @property
    def flags(self) -> ChainFlags:
        return ChainFlags(self.extra_eval_steps, self.stop, self.preempt, self.branch_steps)

    @property
    def lease(self) -> Lease:
        """The lease of its current worker."""
        fence = LeaseFence(self.fence, self.owner or "", self.reports)
        return Lease(self.chain, self.stream, self.slot, fence, self.assignment, self.flags)

    def is_held_by(self, fence: LeaseFence) -> bool:
        """Whether a worker with this fence has claimed it, and all that this worker knows of is on record."""
        return (self.fence, self.owner) == (fence.number, fence.owner) and self.reports >= fence.reports

    def may_read(self, key: str) -> bool:
        """Whether it begins with this object of the store. True if its assignment cannot be read."""
        if isinstance(self.assignment, Unreadable):
            return True
        begin = self.assignment.begin
        return any(point.key == key for point in self.assignment.reads) or (begin is not None and begin["key"] == key)


@dataclass(frozen=True, slots=True)
class RowChanges:
    """The chains and slots that may have changed since an earlier look, by name.

    None stands for a chain that is over, or a slot without a worker. mark: of this look, for the next one.
    """

    mark: object
    chains: dict[str, ChainRecord | None]
    slots: dict[str, SlotRecord | None]


def has_expired(lease_until: float, at: float, longest: float = inf) -> bool:
    """Whether a chain was not claimed, or its worker not heard of, in time.

    longest: a lease that lasts longer than this many seconds from now was given before the clock went back, and is
    void.
    """
    return not at <= lease_until <= at + longest


def not_yours(chain: str) -> Fenced:
    """The error of a worker that has lost its chain."""
    return Fenced(f"Chain {chain} is over, another worker's, or has lost reports of this one.")
