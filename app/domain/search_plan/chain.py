"""Chains under way, the slots that each study has by them, and how far workers say that they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from app.domain import events as e
from app.domain.terms import ChainId, StudyId, VerificationKind


@dataclass(slots=True)
class Chain:
    """Stages under way on a slot; `index` is the one in training, past the last while checkpoints are written.

    seconds: spent on the stages before that one. proof: what it proves by training steps again; None where it trains.
    members: the slots that are lent to it. kind: that of their devices, where there are any.
    """

    id: ChainId
    slot: str
    stages: tuple[e.Stage, ...]
    at: float
    index: int = 0
    seconds: float = 0.0
    proof: VerificationKind | None = None
    members: tuple[str, ...] = ()
    kind: str = ""

    @property
    def ranks(self) -> int:
        """How many slots it has."""
        return 1 + len(self.members)

    @property
    def is_trained(self) -> bool:
        return self.index >= len(self.stages)

    @property
    def payer(self) -> StudyId:
        """The study that is charged for the stage under way."""
        return self.stages[min(self.index, len(self.stages) - 1)].study


class ChainsUnderWay(dict[ChainId, Chain]):
    """The chains under way. Only here they come, move on and go, so that the slots of each study need no counting.

    by_slot: of each slot that has any, those that are not trained; the first of them leads the others. slots_used: for
    each study, how many slots the leading chains have of which the stage under way is charged to it.
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
        """The stage of that number is under way now; past the last, the chain is trained."""
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
        """The chains that have a slot; of those that it trains together, the one that leads."""
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
    """How far a chain's worker is in its stage, by its last heartbeat: an observation, not a fact of the log.

    saving: steps that it evaluates or keeps, if they are inside its stage, of which the log does not know yet.
    """

    step: int
    saving: frozenset[int] = frozenset()


Progresses = Mapping[ChainId, ChainProgress]
NO_PROGRESS: Progresses = {}
