"""What rows say and refuse: values, the same whether the rows stand in a database or in memory.

The clock that leases go by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from app.domain.chain_assignment import ChainAssignment, Unreadable
from app.domain.events import Stage
from app.domain.terms import ChainState

HELD = (ChainState.RUNNING, ChainState.SAVING)
"""The states in which a worker has the chain's lease."""

AT_WORK = (ChainState.READY, ChainState.RUNNING)
"""The states in which a chain has its slot."""


class SlotTaken(Exception):
    """The slot is unknown, has a chain already, or is another worker's."""


class SlotLost(Exception):
    """The slot is no longer this worker's."""


class ChainNotClaimable(Exception):
    """The chain is not there to be claimed: another worker has it, or it is over."""


class Fenced(Exception):
    """The chain is no longer this worker's: whatever it still has to say must not be written."""


@dataclass(frozen=True, slots=True)
class ChainFlags:
    """What the scheduler wants of a chain now: further steps to evaluate and keep, and whether to end.

    stop: nobody wants it any more. preempt: its slot is another study's: it ends after the step under way, however long
    that takes, with its state kept. branch_steps: where trials would branch off that were not known when it began.
    """

    extra_eval_steps: tuple[int, ...] = ()
    stop: bool = False
    preempt: bool = False
    branch_steps: tuple[int, ...] = ()

    @property
    def end(self) -> bool:
        """Whether to end after the step under way."""
        return self.stop or self.preempt


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a chain, proven by `fence`."""

    chain: str
    stream: str
    slot: str
    fence: int
    assignment: ChainAssignment | Unreadable
    flags: ChainFlags


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """A study and how it stands. slots_due: its share of the slots, while others compete with it for them.

    audited: whether a user wants all that it shares proven, and that is not yet done; None where nobody does.
    begins: the weights that it begins from, as of `StudySubmitted`.
    """

    id: str
    stream: str
    name: str
    state: str
    submitted_at: float
    slots_due: float | None = None
    audited: bool | None = None
    begins: Mapping[str, Any] | None = None
    project: str = ""
    owner: str = ""
    tags: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Installation:
    """name: what the keys of its checkpoints begin with. database: which database it is in, as the database says.

    A copy of a database has the same name and is another database. None where that cannot be known. paused_until: no
    checkpoint is deleted before.
    """

    name: str
    database: str | None
    paused_until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A principal and its token. Times are Unix seconds.

    digest: the SHA-256 of the token, in hexadecimal. project: None for all. expires_at: None for never.
    """

    name: str
    digest: str
    scope: str
    created_at: float
    project: str | None = None
    expires_at: float | None = None
    used_at: float | None = None
    revoked_at: float | None = None


LONGEST_QUARANTINE = 300.0
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRecord:
    """One GPU, or one CPU process, and the worker that has it.

    chain: what it was given. resident_model: the plan, node and step of the model it holds in memory. trainers: the
    version of each trainer that its worker loads. note: what it waits for, or why it is in quarantine. kind: that of
    its device, "" where it is not known. lent_to: the chain of another slot that its device trains as well.
    emptied_for: the chain for which its worker has left the device. address: where workers of other machines reach its
    own, as host:port; "" where they do not.
    """

    name: str
    owner: str
    device: str
    host: str
    pid: int
    seen_at: float
    chain: str | None = None
    resident_model: Mapping[str, Any] | None = None
    trainers: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None
    quarantined_until: float | None = None
    kind: str = ""
    lent_to: str | None = None
    emptied_for: str | None = None
    address: str = ""

    @property
    def is_free(self) -> bool:
        """Whether nothing is trained on it."""
        return self.chain is None and self.lent_to is None

    def was_seen(self, at: float, within: float) -> bool:
        """Whether its worker was seen so many seconds before, at most. One seen much later was not since the clock
        went back.
        """
        return at - within <= self.seen_at <= at + within

    def is_quarantined(self, at: float) -> bool:
        """Whether it is given nothing. What lasts for longer than the longest was said before the clock went back."""
        return self.quarantined_until is not None and at < self.quarantined_until <= at + LONGEST_QUARANTINE


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRecord:
    """A chain and who may write for it; `state` is a `ChainState`.

    index: the stage under way. step: the last one known to be trained. extra_eval_steps: further steps at which to
    evaluate and keep. branch_steps, stop, preempt: as in `ChainFlags`. members: the slots that are lent to it, each
    with the owner that it had then.
    """

    chain: str
    stream: str
    slot: str
    assignment: ChainAssignment | Unreadable
    lease_until: float
    dispatched_at: float
    state: str = ChainState.READY
    fence: int = 0
    owner: str | None = None
    index: int = 0
    step: int = 0
    extra_eval_steps: tuple[int, ...] = ()
    branch_steps: tuple[int, ...] = ()
    stop: bool = False
    preempt: bool = False
    members: Mapping[str, str] = field(default_factory=dict)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All that it was given to train; none where that cannot be read."""
        return () if isinstance(self.assignment, Unreadable) else self.assignment.stages

    @property
    def flags(self) -> ChainFlags:
        return ChainFlags(self.extra_eval_steps, self.stop, self.preempt, self.branch_steps)

    @property
    def lease(self) -> Lease:
        """That of the worker which has it."""
        return Lease(self.chain, self.stream, self.slot, self.fence, self.assignment, self.flags)

    def may_read(self, key: str) -> bool:
        """Whether it begins with this object of the store, or may do so where its assignment cannot be read."""
        if isinstance(self.assignment, Unreadable):
            return True
        begin = self.assignment.begin
        return any(point.key == key for point in self.assignment.reads) or (begin is not None and begin["key"] == key)


@dataclass(frozen=True, slots=True)
class RowChanges:
    """By name, what may be otherwise than at an earlier look: chains that nobody has ended, and slots.

    None: the chain is over, or the slot has no worker any more. mark: of this look, to be given to the next one.
    """

    mark: object
    chains: dict[str, ChainRecord | None]
    slots: dict[str, SlotRecord | None]


def has_expired(lease_until: float, at: float, longest: float = inf) -> bool:
    """Whether a chain was not claimed, or not heard of, in time.

    longest: a lease that lasts for more seconds from here is no lease: it was given before the clock went back.
    """
    return not at <= lease_until <= at + longest


def not_yours(chain: str) -> Fenced:
    return Fenced(f"Chain {chain} is over, or another worker's.")
