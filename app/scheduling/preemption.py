"""Preemption: which chain should stop at its next step, save its state, and leave its slot to another study.

- Within a class, a study preempts another if it lacks two slots more than the other. After the change it still lacks at
  least as much, so the slot does not go back at once. A study that is due less than a slot gets there by waiting, since
  its deficit grows (see `fair_share`), and so studies take turns.
- A study of a higher class preempts studies of lower classes that have more than their shares, up to its own share.
- A chain is preempted only after it has run much longer than the preemption costs.
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
"""A chain runs at least this long before it is preempted."""

MOST_COST = 0.1
"""The largest part of its run time that saving and loading its state may take."""

BYTES_PER_SECOND = 1e8
"""A rough rate of saving and loading states."""

ENOUGH = 2.0 - 1e-9
"""The difference in lacking slots from which one study preempts another."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """A study with its frontier, and the chain whose slot it should get."""

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
    """The takeovers that are due, one after the other. stopping: the chains that are already told to stop.

    now: by the clock of the chains. is_possible: whether the study could begin work on the chain's slot.
    """
    if not balance.due:
        return
    chains = [(chain, frontier.plan) for frontier in frontiers for chain in frontier.plan.chains.leading()]
    used = Counter[StudyId]()
    for chain, _ in chains:
        used[chain.payer] += chain.ranks if chain.id not in stopping else 0
    waiting = [(frontier.plan.studies[name], frontier) for frontier in frontiers for name in frontier.studies()]
    freed = sum(chain.ranks for chain, _ in chains if chain.id in stopping)
    for _ in range(freed):  # these slots will go to the studies whose turn it is
        used.update([study.id for study, _ in _sort_by_turn(waiting, used, balance)][:1])
    candidates = [
        (chain, plan) for chain, plan in chains if chain.id not in stopping and can_be_preempted(plan, chain, now)
    ]
    while (takeover := _next_takeover(waiting, candidates, used, balance, is_possible)) is not None:
        yield takeover
        used[takeover.chain.payer] -= takeover.chain.ranks
        used.update([takeover.study])
        candidates = [each for each in candidates if each[0] is not takeover.chain]


def can_be_preempted(plan: SearchPlan, chain: Chain, now: float) -> bool:
    """Whether the chain has run long enough compared with the cost of stopping and resuming it.

    An evaluation or an average has no step to resume from. If it was stopped each time that another study lacks a slot,
    it would never end where it takes longer than a turn.
    """
    if (stage := chain.stages[chain.index]).start == stage.end:
        return False
    cost = 2 * _state_bytes(plan, chain) / BYTES_PER_SECOND
    return now - chain.at >= max(LEAST_SECONDS, cost / MOST_COST)


def _state_bytes(plan: SearchPlan, chain: Chain) -> int:
    """The size of the largest saved state in the chain's nodes; 0 if there is none."""
    nodes = [*plan.ancestry(chain.stages[0].node), *(plan.nodes[stage.node] for stage in chain.stages)]
    return max((checkpoint.size for node in nodes for checkpoint in node.checkpoints.values()), default=0)


def _sort_by_turn(
    waiting: Sequence[tuple[Study, Frontier]], used: Counter[StudyId], balance: FairShare
) -> list[tuple[Study, Frontier]]:
    """The studies that could use another slot, in the order of their turns."""
    able = [each for each in waiting if each[0].id in balance.requests]
    able = [each for each in able if used[each[0].id] + 1 <= balance.requests[each[0].id].most]
    return sorted(able, key=lambda each: turn(each[0], used[each[0].id], balance))


def _next_takeover(
    waiting: Sequence[tuple[Study, Frontier]],
    chains: Sequence[tuple[Chain, SearchPlan]],
    used: Counter[StudyId],
    balance: FairShare,
    is_possible: Callable[[Takeover], bool],
) -> Takeover | None:
    """The next takeover: for the study that lacks most, the latest chain of the study furthest above its share."""
    rich = [each for each in chains if used[each[0].payer] > balance.due.get(each[0].payer, 0.0)]
    victims = sorted(rich, key=lambda each: _victim_order(each[0], each[1], used, balance))
    for study, frontier in _sort_by_turn(waiting, used, balance) if victims else ():
        for chain, plan in victims:
            takeover = Takeover(study.id, frontier, chain)
            is_due = _is_due(study, plan.studies[chain.payer], used, balance)
            if is_due and not _is_waiting_for(plan, chain, study.id) and is_possible(takeover):
                return takeover
    return None


def _victim_order(
    chain: Chain, plan: SearchPlan, used: Counter[StudyId], balance: FairShare
) -> tuple[float, float, float, ChainId]:
    study = plan.studies[chain.payer]
    return (study.spec.priority, balance.need(study.id, used[study.id]), -chain.at, chain.id)


def _is_due(study: Study, victim: Study, used: Counter[StudyId], balance: FairShare) -> bool:
    """Whether a study should get a slot of another study that has more than its share."""
    lacks, has = (balance.need(each.id, used[each.id]) for each in (study, victim))
    if study.spec.priority == victim.spec.priority:
        return lacks - has >= ENOUGH
    return study.spec.priority > victim.spec.priority and used[study.id] < balance.due[study.id]


def _is_waiting_for(plan: SearchPlan, chain: Chain, study: StudyId) -> bool:
    """Whether trials of the study wait for the chain's current stage."""
    stage = chain.stages[chain.index]
    return any(key[0] == study for key, _ in plan.trials_waiting_after(plan.node(stage.node), stage.start))
