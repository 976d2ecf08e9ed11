"""The interfaces of the rows beside the log: studies, tokens, slots, chains and schedulers.

They are documented here and implemented twice: in a database (`app.events.rows`) and in memory (`app.events.memory`).
All operations work inside a transaction, and return values that do not change later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from app.domain.chain_assignment import ChainAssignment
from app.events.row_types import (
    ChainFlags,
    ChainRecord,
    Installation,
    Lease,
    LeaseFence,
    RowChanges,
    SlotRecord,
    StudyRecord,
    TokenRecord,
)


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
