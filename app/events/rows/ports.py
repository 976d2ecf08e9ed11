"""The rows beside the log: studies as they stand, slots, schedulers, and who may write for a chain.

Here is what each operation means, raises and returns. It works inside a transaction, and stands twice behind these
classes: in a database (`app.events.rows`) and in memory (`app.events.memory`). What is returned is a value, which says
how a row was then.
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
    RowChanges,
    SlotRecord,
    StudyRecord,
    TokenRecord,
)


class StudiesPort(ABC):
    """The read table of studies: which there are and how they stand. It follows from the log."""

    @abstractmethod
    def add(self, study: StudyRecord) -> None:
        """Add a study."""

    @abstractmethod
    def set_state(self, id: str, state: str) -> None:
        """Say how a study stands now."""

    @abstractmethod
    def set_audited(self, id: str, is_audited: bool) -> None:
        """Say whether what a study shares is being proven, also when it is over."""

    @abstractmethod
    def set_tags(self, id: str, tags: Sequence[str]) -> None:
        """These are all tags of a study from here on."""

    @abstractmethod
    def show_due(self, due: Mapping[str, float]) -> None:
        """So many slots are due to these studies now; the others compete with nobody."""

    @abstractmethod
    def remove(self, id: str) -> None:
        """The study is not listed any more."""

    @abstractmethod
    def find(self, id: str) -> StudyRecord | None:
        """The study, if there is one of that id."""

    @abstractmethod
    def page(self, after: str | None = None, limit: int = 100) -> list[StudyRecord]:
        """Up to `limit` studies, newest first, beginning behind the study `after`. Empty when that one is not known."""

    @abstractmethod
    def count_by_state(self) -> dict[str, int]:
        """How many studies there are in each state that any is in."""

    @abstractmethod
    def active_streams(self) -> list[str]:
        """The streams that have a study which is not over."""

    @abstractmethod
    def busy_versions(self) -> dict[str, int]:
        """The streams with a study that is not over or is audited, or a chain under way; how many events each has."""


class TokensPort(ABC):
    """The tokens of principals. A name is given once, since it is in the log."""

    @abstractmethod
    def put(self, token: TokenRecord) -> None:
        """Have this token, in the place of the one of its name if there is one."""

    @abstractmethod
    def mark(self, digest: str, **times: Any) -> None:
        """Note when a token was used or revoked (`used_at`, `revoked_at`), and change nothing else."""

    @abstractmethod
    def find(self, name: str) -> TokenRecord | None:
        """The token of a name, also when it is revoked or has expired."""

    @abstractmethod
    def find_digest(self, digest: str) -> TokenRecord | None:
        """The token of a digest, also when it is revoked or has expired."""

    @abstractmethod
    def all(self) -> list[TokenRecord]:
        """All of them, by name."""


class SlotsPort(ABC):
    """The slots: the worker that has each, how it is, and which chain it was given.

    A slot belongs to one worker process at a time, which proves it with its `owner`, a token made when the process
    started. Where a transaction takes several, it does so in order of names.
    """

    @abstractmethod
    def all(self) -> list[SlotRecord]:
        """All slots, by name."""

    @abstractmethod
    def get(self, name: str) -> SlotRecord | None:
        """The slot, if there is one of that name."""

    @abstractmethod
    def alive(self, seen_within: float) -> list[SlotRecord]:
        """The slots whose workers were seen in the last `seen_within` seconds, by name."""

    @abstractmethod
    def take(
        self, name: str, owner: str, *, instead_of: str | None, device: str, host: str, pid: int, **its: str
    ) -> None:
        """Become the slot's worker, in the place of the owner `instead_of`, or of nobody. Raises `SlotTaken`.

        its: `kind` and `address`, as of `SlotRecord`, where they are known. Whatever chain the slot still has was that
        one's, which is gone: the next tick may end it, and that which the slot was lent to before.
        """

    @abstractmethod
    def touch(self, name: str, owner: str) -> SlotRecord:
        """The slot's worker is alive; its row, as it is from now on. Raises `SlotLost`."""

    @abstractmethod
    def describe(self, name: str, owner: str, *, trainers: Mapping[str, str], note: str | None) -> None:
        """Which version of each trainer its worker has, and what it waits for, if it does. Raises `SlotLost`."""

    @abstractmethod
    def empty(self, name: str, owner: str, chain: str) -> None:
        """The slot's worker has no process on the device, which is lent to that chain. Raises `SlotLost`."""

    @abstractmethod
    def quarantine(self, name: str, owner: str, *, seconds: float | None, reason: str | None) -> None:
        """Give the slot no chain for so long, and say why; None: it is well again. Raises `SlotLost`."""

    @abstractmethod
    def retire(self, name: str, owner: str) -> None:
        """The slot's worker is going: its chain is to stop at the next step, or at once if not begun; none follows.

        The chain of a slot that it is lent to ends in the same way, with its state kept.
        """

    @abstractmethod
    def forget_all(self) -> None:
        """No worker is alive, which whoever asks must know: what they still had may be ended."""


class ChainsPort(ABC):
    """Who may write for a chain: its row, not a message. A fence is the number that proves it; ending a chain moves it.

    A chain is never taken over: when its lease has run out it is ended, and the work comes back in a new chain. The
    row is changed in the transaction of the fact, so that the fact and the right to state it commit together.
    """

    # The scheduler's side

    @abstractmethod
    def assign(
        self, chain: str, stream: str, slot: str, assignment: ChainAssignment, ttl: float, beside: str | None = None
    ) -> None:
        """Give a new chain to a free slot; it must be claimed within `ttl` seconds. Raises `SlotTaken`.

        beside: the chain that the slot has, and is to train together with this one. The members that the assignment
        names are free as well, and lent to the chain from here on, until its slot is free; whatever model they have in
        memory makes room.
        """

    @abstractmethod
    def ask_evaluation(self, chain: str, steps: Iterable[int]) -> None:
        """Ask the chain's worker to evaluate and keep the model at these steps too, if it comes by them."""

    @abstractmethod
    def ask_states(self, chain: str, steps: Iterable[int]) -> None:
        """Ask the chain's worker to keep its state at these steps too, where that costs less than to train it again."""

    @abstractmethod
    def ask_stop(self, chain: str) -> None:
        """Ask the chain's worker to stop at the next step."""

    @abstractmethod
    def ask_preempt(self, chain: str) -> None:
        """Ask the chain's worker to keep its state after the step under way, and leave the slot to others."""

    @abstractmethod
    def end(self, chain: str, fence: int | None = None) -> None:
        """The chain is over before its end: its slot is free, and what its worker still writes will be refused.

        With `fence`, only for the worker that holds it. Raises `Fenced` if the chain was over, or another worker's.
        """

    @abstractmethod
    def end_expired(self, chain: str, longest: float = inf) -> None:
        """End the chain if its lease `has_expired`. Raises `Fenced` when it was over, or was heard of after all."""

    @abstractmethod
    def mark_dispatched(self, chain: str) -> None:
        """The chain's message was sent (again)."""

    @abstractmethod
    def get(self, chain: str) -> ChainRecord | None:
        """The chain, also when it is over; rows of those go after some days."""

    @abstractmethod
    def live(self, stream: str | None = None) -> Sequence[ChainRecord]:
        """The chains that nobody has ended, of one stream or of all, by name."""

    # The worker's side

    @abstractmethod
    def claim(self, chain: str, owner: str, ttl: float) -> Lease:
        """Begin a chain that is ready; the lease lasts `ttl` seconds from here. Raises `ChainNotClaimable`."""

    @abstractmethod
    def heartbeat(self, chain: str, fence: int, ttl: float, step: int, kept: Container[int] = ()) -> ChainFlags:
        """The worker is at `step`, and kept its state at `kept`; the lease lasts `ttl` seconds from here.

        What was asked for at a step that it had passed until then is asked for no more. Raises `Fenced`.
        """

    @abstractmethod
    def flags(self, chain: str, fence: int) -> ChainFlags:
        """What a heartbeat would say, without one. Raises `Fenced`."""

    @abstractmethod
    def advance(self, chain: str, fence: int, index: int) -> None:
        """The stage before is done, and stage `index` is now under way. Raises `Fenced`."""

    @abstractmethod
    def release(self, chain: str, fence: int, resident_model: Mapping[str, Any] | None) -> None:
        """All is trained, and saving goes on: the slot is free, with this model in memory, if any. Raises `Fenced`."""

    @abstractmethod
    def finish(self, chain: str, fence: int) -> None:
        """The whole chain is done, and its slot is free if it was not before. Raises `Fenced`."""

    @abstractmethod
    def guard(self, chain: str, fence: int) -> None:
        """Let through only the worker whose chain this is or, when it was done to its end, was. Raises `Fenced`.

        The row stays locked until the commit, so that nobody ends the chain in between.
        """


class SchedulersPort(ABC):
    """The processes that tick, each with the time of its last tick."""

    @abstractmethod
    def ticked(self, owner: str, host: str, pid: int, demand: Mapping[str, Any] | None = None, **also: Any) -> None:
        """The process has looked at everything just now. demand, also its `held_up`: what `Scheduler` says of that."""

    @abstractmethod
    def forget(self, owner: str) -> None:
        """The process is gone."""

    @abstractmethod
    def last_tick(self) -> float | None:
        """When one of them last did; None if none ever has."""

    @abstractmethod
    def last_said(self) -> tuple[Mapping[str, Any] | None, Mapping[str, str]]:
        """The demand for slots at the last tick, or None; and a sentence for each study and plan with an error."""


class RowsPort(ABC):
    """All rows, inside one transaction."""

    studies: StudiesPort
    tokens: TokensPort
    slots: SlotsPort
    chains: ChainsPort
    schedulers: SchedulersPort

    @abstractmethod
    def installation(self) -> Installation:
        """Whose rows these are."""

    @abstractmethod
    def name_installation(self, name: str) -> None:
        """Give it another name: new checkpoints have keys that begin with that."""

    @abstractmethod
    def pause_deletion(self, seconds: float | None) -> None:
        """Have no checkpoint deleted for so long; None: as ever again."""

    @abstractmethod
    def now(self) -> float:
        """Unix seconds by the clock that leases go by."""

    @abstractmethod
    def changes(self, since: object = None) -> RowChanges:
        """All that has changed of chains under way and slots since the look with that mark, perhaps more; or all."""
