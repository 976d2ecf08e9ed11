"""Which chain should stop at its next step, keep its state, and leave its slot to another study.

A share or a class must demand it, and it must be worth it:

- Of two studies of one class, the one lacks two slots more than the other: after the change it still lacks no less, so
  nothing goes back at once. A whole slot too few here and too many there is that much. Where less than a slot is due, a
  study comes to it by waiting: being behind counts (see `fair_share`), and so studies take turns.
- A higher class takes what it lacks of its share from whoever of a lower one has more than its own.
- A chain is left alone until what a change costs is a small part of what it has run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

from app.domain.search_plan import Chain, SearchPlan, Study
from app.domain.terms import ChainId, StudyId
from app.scheduling.fair_share import FairShare, turn
from app.scheduling.frontier import Frontier

LEAST_SECONDS = 5.0
"""A chain runs for so long at least before another study gets its slot."""

MOST_COST = 0.1
"""And until keeping its state and loading it again takes no larger part of that than this."""

BYTES_PER_SECOND = 1e8
"""How fast a state is kept and loaded, as far as it is worth knowing here."""

ENOUGH = 2.0 - 1e-9
"""By so many slots one study must lack more than another, to get one of them."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """A study that should get the slot of a chain, each with where it stands."""

    study: StudyId
    frontier: Frontier
    chain: Chain


def takeovers(
    frontiers: Sequence[Frontier],
    balance: FairShare,
    now: float,
    stopping: Container[ChainId],
    is_possible: Callable[[Takeover], bool],
) -> Iterator[Takeover]:
    """One after the other, what should stop for whom; `stopping` chains have been asked to already.

    now: by the clock of the chains. is_possible: whether the study could begin something on the chain's slot.
    """
    if not balance.due:
        return
    chains = [(chain, frontier.plan) for frontier in frontiers for chain in frontier.plan.chains.leading()]
    used = Counter[StudyId]()
    for chain, _ in chains:
        used[chain.payer] += chain.ranks if chain.id not in stopping else 0
    waiting = [(frontier.plan.studies[name], frontier) for frontier in frontiers for name in frontier.studies()]
    freed = sum(chain.ranks for chain, _ in chains if chain.id in stopping)
    for _ in range(freed):  # these slots are for the studies whose turn it is
        used.update([study.id for study, _ in _sort_by_turn(waiting, used, balance)][:1])
    ripe = [(chain, plan) for chain, plan in chains if chain.id not in stopping and is_ripe(plan, chain, now)]
    while (takeover := _first(waiting, ripe, used, balance, is_possible)) is not None:
        yield takeover
        used[takeover.chain.payer] -= takeover.chain.ranks
        used.update([takeover.study])
        ripe = [each for each in ripe if each[0] is not takeover.chain]


def is_ripe(plan: SearchPlan, chain: Chain, now: float) -> bool:
    """Whether the chain has run for so long that what it costs to stop it and go on later does not matter."""
    cost = 2 * _state_bytes(plan, chain) / BYTES_PER_SECOND
    return now - chain.at >= max(LEAST_SECONDS, cost / MOST_COST)


def _state_bytes(plan: SearchPlan, chain: Chain) -> int:
    """The size of a state like the chain's, as far as one is known."""
    nodes = [*plan.ancestry(chain.stages[0].node), *(plan.nodes[stage.node] for stage in chain.stages)]
    return max((checkpoint.size for node in nodes for checkpoint in node.checkpoints.values()), default=0)


def _sort_by_turn(
    waiting: Sequence[tuple[Study, Frontier]], used: Counter[StudyId], balance: FairShare
) -> list[tuple[Study, Frontier]]:
    """Those that could use another slot, as their turns come."""
    able = [each for each in waiting if each[0].id in balance.requests]
    able = [each for each in able if used[each[0].id] + 1 <= balance.requests[each[0].id].most]
    return sorted(able, key=lambda each: turn(each[0], used[each[0].id], balance))


def _first(
    waiting: Sequence[tuple[Study, Frontier]],
    chains: Sequence[tuple[Chain, SearchPlan]],
    used: Counter[StudyId],
    balance: FairShare,
    is_possible: Callable[[Takeover], bool],
) -> Takeover | None:
    """The study that lacks most gets a slot of the one with most too many; of its chains, the one that began last."""
    rich = [each for each in chains if used[each[0].payer] > balance.due.get(each[0].payer, 0.0)]
    victims = sorted(rich, key=lambda each: _order(each[0], each[1], used, balance))
    for study, frontier in _sort_by_turn(waiting, used, balance) if victims else ():
        for chain, plan in victims:
            takeover = Takeover(study.id, frontier, chain)
            is_due = _is_due(study, plan.studies[chain.payer], used, balance)
            if is_due and not _serves(plan, chain, study.id) and is_possible(takeover):
                return takeover
    return None


def _order(
    chain: Chain, plan: SearchPlan, used: Counter[StudyId], balance: FairShare
) -> tuple[float, float, float, ChainId]:
    study = plan.studies[chain.payer]
    return (study.priority, balance.need(study.id, used[study.id]), -chain.at, chain.id)


def _is_due(study: Study, victim: Study, used: Counter[StudyId], balance: FairShare) -> bool:
    """Whether a study should get a slot of another one, which has more than its share."""
    lacks, has = (balance.need(each.id, used[each.id]) for each in (study, victim))
    if study.priority == victim.priority:
        return lacks - has >= ENOUGH
    return study.priority > victim.priority and used[study.id] < balance.due[study.id]


def _serves(plan: SearchPlan, chain: Chain, study: StudyId) -> bool:
    """Whether the study itself waits for what the chain trains."""
    stage = chain.stages[chain.index]
    return any(key[0] == study for key in plan.trials_waiting_after(plan.node(stage.node), stage.start))
