"""Running chains, the slots that they use for each study, and the progress that workers report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from app.domain import events as e
from app.domain.terms import ChainId, StudyId, VerificationKind


@dataclass(slots=True)
class Chain:
    """The stages that a slot trains in a row."""

    id: ChainId
    slot: str
    stages: tuple[e.Stage, ...]
    at: float
    index: int = 0
    """The stage in training; `len(stages)` while checkpoints are being written."""
    seconds: float = 0.0
    """Spent on the stages before that one."""
    proof: VerificationKind | None = None
    """The kind of verification; None for training."""
    members: tuple[str, ...] = ()
    """The slots lent to the chain."""
    kind: str = ""
    """The kind of their devices."""

    @property
    def ranks(self) -> int:
        return 1 + len(self.members)

    @property
    def is_trained(self) -> bool:
        return self.index >= len(self.stages)

    @property
    def payer(self) -> StudyId:
        """The study that is charged for the current stage."""
        return self.stages[min(self.index, len(self.stages) - 1)].study


class ChainsUnderWay(dict[ChainId, Chain]):
    """The running chains. All changes go through this class, which keeps count of the slots of each study.

    by_slot: the chains of each slot that are not trained yet; the first leads the others. slots_used: for each study,
    the slots of leading chains whose current stage is charged to it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_slot, self.slots_used = dict[str, dict[ChainId, None]](), Counter[StudyId]()

    def begin(self, chain: Chain) -> None:
        self._count(chain.slot, -1)
        self[chain.id] = chain
        self.by_slot.setdefault(chain.slot, {})[chain.id] = None
        self._count(chain.slot, 1)

    def move_on(self, chain: Chain, index: int) -> None:
        """Set the current stage; `len(stages)` means that the chain is trained."""
        self._count(chain.slot, -1)
        chain.index = index
        if chain.is_trained:
            self._leave(chain)
        self._count(chain.slot, 1)

    def end(self, chain: Chain) -> None:
        self._count(chain.slot, -1)
        self._leave(chain)
        del self[chain.id]
        self._count(chain.slot, 1)

    def leading(self) -> Iterator[Chain]:
        """The chain of each slot; of a pack, the leading one."""
        return (self[next(iter(names))] for names in self.by_slot.values())

    def _leave(self, chain: Chain) -> None:
        names = self.by_slot.get(chain.slot, {})
        names.pop(chain.id, None)
        if not names:
            self.by_slot.pop(chain.slot, None)

    def _count(self, slot: str, sign: int) -> None:
        if names := self.by_slot.get(slot):
            leader = self[next(iter(names))]
            self.slots_used[leader.payer] += sign * leader.ranks
            if not self.slots_used[leader.payer]:
                del self.slots_used[leader.payer]


@dataclass(frozen=True, slots=True)
class ChainProgress:
    """How far a chain's worker is in its stage, by its last heartbeat. It is not part of the log."""

    step: int
    saving: frozenset[int] = frozenset()
    """Steps inside the stage that the worker evaluates or saves and that are not in the log yet."""


Progresses = Mapping[ChainId, ChainProgress]
NO_PROGRESS: Progresses = {}
