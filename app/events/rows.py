"""The rows beside the log: studies, tokens, slots, chains and schedulers, as values and as interfaces.

The interfaces are implemented twice: in a database (`app.events.sql_rows`) and in memory (`app.events.memory`). All
operations work inside a transaction, and return values that do not change later. `app.events.tables` makes the columns
from the fields of the values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
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


class StudiesPort(ABC):
    """The studies and their states, for lists and queries. The rows follow from the log."""

    @abstractmethod
    def add(self, study: StudyRecord) -> None: ...

    @abstractmethod
    def set_state(self, id: str, state: str) -> None: ...

    @abstractmethod
    def set_audited(self, id: str, is_audited: bool) -> None:
        """Set whether an audit is under way; a study that is over can have one."""

    @abstractmethod
    def set_tags(self, id: str, tags: Sequence[str]) -> None:
        """Replace the tags."""

    @abstractmethod
    def show_due(self, due: Mapping[str, float]) -> None:
        """Set the share of slots that is due to each study; the other studies compete with none."""

    @abstractmethod
    def remove(self, id: str) -> None: ...

    @abstractmethod
    def find(self, id: str) -> StudyRecord | None: ...

    @abstractmethod
    def page(self, after: str | None = None, limit: int = 100) -> list[StudyRecord]:
        """Up to `limit` studies, newest first, after the study `after`. Empty if that one is unknown."""

    @abstractmethod
    def owned(self, owner: str) -> list[StudyRecord]:
        """The studies of an owner."""

    @abstractmethod
    def count_by_state(self) -> dict[str, int]: ...

    @abstractmethod
    def active_streams(self) -> list[str]:
        """The streams with a study that is not over."""

    @abstractmethod
    def busy_versions(self) -> dict[str, int]:
        """The version of each stream with an active or audited study, or a live chain."""


class TokensPort(ABC):
    """The tokens of principals. A name is used once, because the log names principals."""

    @abstractmethod
    def put(self, token: TokenRecord) -> None:
        """Insert or replace the token of its name."""

    @abstractmethod
    def mark(self, digest: str, **times: Any) -> None:
        """Set `used_at` or `revoked_at`, and nothing else."""

    @abstractmethod
    def count_write(self, name: str, before: int) -> bool:
        """Count a write of the token; False if it has not written `before` times by now."""

    @abstractmethod
    def find(self, name: str) -> TokenRecord | None:
        """The token of a name, even if it is revoked or has expired."""

    @abstractmethod
    def find_digest(self, digest: str) -> TokenRecord | None:
        """The token with a digest, even if it is revoked or has expired."""

    @abstractmethod
    def all(self) -> list[TokenRecord]:
        """All tokens, by name."""


class SlotsPort(ABC):
    """The slots, each with its worker and its chain.

    A slot belongs to one worker process at a time, which proves it with `owner`, a token made when the process started.
    A transaction that takes several slots does so in the order of their names.
    """

    @abstractmethod
    def all(self) -> list[SlotRecord]:
        """All slots, by name."""

    @abstractmethod
    def get(self, name: str) -> SlotRecord | None: ...

    @abstractmethod
    def alive(self, seen_within: float) -> list[SlotRecord]:
        """The slots whose workers were seen in the last `seen_within` seconds, by name."""

    @abstractmethod
    def take(
        self, name: str, owner: str, *, instead_of: str | None, device: str, host: str, pid: int, **its: str
    ) -> None:
        """Become the slot's worker and replace `instead_of`, if there is one. Raises `SlotTaken`.

        its: `kind` and `address`, if known. A chain that the slot still has, or was lent to, belonged to the replaced
        worker, and the next tick may end it.
        """

    @abstractmethod
    def touch(self, name: str, owner: str, gauges: Mapping[str, float] | None = None) -> SlotRecord:
        """Record that the slot's worker is alive, and its gauges; returns its row. Raises `SlotLost`."""

    @abstractmethod
    def describe(self, name: str, owner: str, *, trainers: Mapping[str, str], note: str | None) -> None:
        """Set the versions of the worker's trainers, and the reason why it waits. Raises `SlotLost`."""

    @abstractmethod
    def empty(self, name: str, owner: str, chain: str) -> None:
        """Record that the worker has no process on the device, which is lent to that chain. Raises `SlotLost`."""

    @abstractmethod
    def quarantine(self, name: str, owner: str, *, seconds: float | None, reason: str | None) -> None:
        """Give the slot no chain for some seconds; None ends the quarantine. Raises `SlotLost`."""

    @abstractmethod
    def retire(self, name: str, owner: str) -> None:
        """Remove a slot whose worker is ending. Its chain stops at the next step, or at once if it has not begun.

        A chain of another slot that it is lent to ends in the same way, and saves its state.
        """

    @abstractmethod
    def forget_all(self) -> None:
        """Remove all slots, and let their chains end. The caller must know that no worker is alive."""


class ChainsPort(ABC):
    """Which worker may write for a chain. The chain's row decides that, and not a message.

    A fence proves it, and ending a chain changes the fence. A chain is never taken over: when its lease has run out, it
    is ended, and the work comes back in a new chain. The row changes in the transaction of the fact, so that both
    commit together. It counts these reports: in a database that has lost some, they are fewer than the worker knows of.
    """

    # The scheduler's side

    @abstractmethod
    def assign(
        self, chain: str, stream: str, slot: str, assignment: ChainAssignment, ttl: float, beside: str | None = None
    ) -> None:
        """Give a new chain to a free slot; it must be claimed within `ttl` seconds. Raises `SlotTaken`.

        beside: the chain that the slot has already, and trains together with this one. The members that the assignment
        names must be free as well; they are lent to the chain until its slot is free, and lose the models in their
        memory.
        """

    @abstractmethod
    def ask_evaluation(self, chain: str, steps: Iterable[int]) -> None:
        """Ask the worker to evaluate and save the model at these steps too, if they are still ahead."""

    @abstractmethod
    def ask_states(self, chain: str, steps: Iterable[int]) -> None:
        """Ask the worker to save its state at these steps too, if that costs less than training them again."""

    @abstractmethod
    def ask_stop(self, chain: str) -> None:
        """Ask the worker to stop at the next step."""

    @abstractmethod
    def ask_preempt(self, chain: str) -> None:
        """Ask the worker to save its state after the step under way, and to leave the slot."""

    @abstractmethod
    def end(self, chain: str, fence: LeaseFence | None = None) -> None:
        """End the chain before it is done: its slot is free, and later writes of its worker are refused.

        With `fence`, only if that still holds. Raises `Fenced` if the chain is over or another worker's.
        """

    @abstractmethod
    def end_expired(self, chain: str, longest: float = inf) -> None:
        """End the chain if its lease `has_expired`. Raises `Fenced` if it is over, or its worker was heard of after
        all.
        """

    @abstractmethod
    def mark_dispatched(self, chain: str) -> None:
        """Record that the chain's message was sent (again)."""

    @abstractmethod
    def get(self, chain: str) -> ChainRecord | None:
        """The chain, even if it is over. Rows of finished chains are deleted after some days."""

    @abstractmethod
    def live(self, stream: str | None = None) -> Sequence[ChainRecord]:
        """The chains that are not over, of one stream or of all, by name."""

    # The worker's side

    @abstractmethod
    def claim(self, chain: str, owner: str, ttl: float) -> Lease:
        """Begin a chain that is ready; its lease lasts `ttl` seconds from now. Raises `ChainNotClaimable`."""

    @abstractmethod
    def heartbeat(self, chain: str, fence: LeaseFence, ttl: float, step: int, kept: Container[int] = ()) -> ChainFlags:
        """Renew the lease for `ttl` seconds, and report the step and the steps at which the state was saved.

        Requests at steps that the worker has passed are dropped. Raises `Fenced`.
        """

    @abstractmethod
    def flags(self, chain: str, fence: LeaseFence) -> ChainFlags:
        """What a heartbeat would return, without one. Raises `Fenced`."""

    @abstractmethod
    def advance(self, chain: str, fence: LeaseFence, index: int) -> None:
        """Begin stage `index`: the one before it is done. Raises `Fenced`."""

    @abstractmethod
    def release(self, chain: str, fence: LeaseFence, resident_model: Mapping[str, Any] | None) -> None:
        """Free the slot when all is trained, while states are still being saved. Raises `Fenced`.

        resident_model: the model that the slot keeps in memory.
        """

    @abstractmethod
    def finish(self, chain: str, fence: LeaseFence) -> None:
        """Mark the chain as done, and free its slot if it still has one. Raises `Fenced`."""

    @abstractmethod
    def report(self, chain: str, fence: LeaseFence) -> None:
        """Count one more report, or raise `Fenced` unless `fence` holds the chain, or held it when it was done.

        The row must have just the reports that the worker knows of. It stays locked until the commit, so that the chain
        cannot be ended meanwhile.
        """


class SchedulersPort(ABC):
    """The processes that tick, each with the time of its last tick."""

    @abstractmethod
    def record_tick(
        self, owner: str, host: str, pid: int, demand: Mapping[str, Any] | None = None, **also: Any
    ) -> None:
        """demand, and `held_up` in `also`: see `Scheduler`. `memory_bytes` in `also`: of the process."""

    @abstractmethod
    def forget(self, owner: str) -> None:
        """Remove a process that has ended."""

    @abstractmethod
    def last_tick(self) -> float | None:
        """The time of the last tick of any process; None if there was none."""

    @abstractmethod
    def last_report(self) -> tuple[Mapping[str, Any] | None, Mapping[str, str]]:
        """The demand for slots at the last tick, or None; and the error of each study and plan that had one."""

    @abstractmethod
    def memory(self, ticked_within: float) -> Mapping[str, int]:
        """The memory in bytes of each process that ticked in the last seconds, by host and process id."""


class RowsPort(ABC):
    """All rows, inside one transaction."""

    studies: StudiesPort
    tokens: TokensPort
    slots: SlotsPort
    chains: ChainsPort
    schedulers: SchedulersPort

    @abstractmethod
    def installation(self) -> Installation: ...

    @abstractmethod
    def name_installation(self, name: str) -> None:
        """Rename it: the keys of new checkpoints begin with the new name."""

    @abstractmethod
    def pause_deletion(self, seconds: float | None) -> None:
        """Delete no checkpoint for some seconds; None ends the pause."""

    @abstractmethod
    def now(self) -> float:
        """Unix seconds by the clock that leases use."""

    @abstractmethod
    def changes(self, since: object = None) -> RowChanges:
        """The live chains and slots that changed since the look with that mark, perhaps more; without a mark, all."""
