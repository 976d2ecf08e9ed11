"""Runs on: the tick's thread.

Divides the slots among the studies that compete for them: reckons what is due, and asks chains to make room.

Tells running chains of new requests on their way, and that nobody wants them any more.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from app.domain.search_plan import Chain, SearchPlan
from app.domain.terms import ChainId, StudyId
from app.events import RowsPort, change
from app.scheduling.fair_share import NO_CONTENTION, FairShare, FairSharing, share_requests, slots_used, slots_wanted
from app.scheduling.frontier import Frontier
from app.scheduling.placement import Candidates, place, resume_point
from app.scheduling.preemption import Takeover, takeovers
from app.workers.scheduler.cluster import Cluster
from app.workers.scheduler.ports import Ports

logger = logging.getLogger(__name__)

REQUESTING = "counting the slots that its studies want"

SHOW_SECONDS = 1.0
"""What is due is written down so often at most."""


class Sharing:
    """Does nothing where only one study has anything to do, or where slots are not shared."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._balancing = None if ports.turn_seconds is None else FairSharing(ports.turn_seconds)
        self._shown: Mapping[str, float] | None = None  # by this scheduler: the one before it may have left something
        self._shown_at = 0.0

    def look(self, frontiers: Sequence[Frontier], slots: Candidates) -> FairShare:
        """What is due to each study now; it is shown, too. Raises `DatabaseUnavailable`."""
        if self._balancing is None:
            return NO_CONTENTION
        now, most = self._ports.elapsed(), len(slots.healthy)
        requests = self._ports.fence.among(frontiers, REQUESTING, lambda plans: share_requests(plans, most))
        balance = self._balancing.look(requests, most, now)
        self._show({study: round(due, 2) for study, due in balance.due.items()}, now)
        return balance

    def wanted(self, frontiers: Sequence[Frontier], tuners_want: Container[StudyId]) -> Counter[str]:
        """As `slots_wanted`."""
        return self._ports.fence.among(frontiers, REQUESTING, lambda plans: slots_wanted(plans, tuners_want))

    def _show(self, due: Mapping[str, float], now: float) -> None:
        """Who looks at studies sees it a little later."""
        if due != self._shown and (not due or now - self._shown_at >= SHOW_SECONDS):
            change(self._ports.records, lambda rows: rows.studies.show_due(due))
            self._shown, self._shown_at = due, now

    def make_room(self, frontiers: Sequence[Frontier], balance: FairShare, cluster: Cluster, slots: Candidates) -> None:
        """Ask chains to stop whose slots are due to others, after the free `slots` were given away.

        Raises `DatabaseUnavailable`.
        """
        if self._balancing is None or not balance.due:
            return
        stopping = {ChainId(row.chain) for row in cluster.live.values() if row.stop or row.preempt}
        now = self._ports.clock()

        def chosen(plans: Sequence[Frontier]) -> list[Takeover]:
            return list(takeovers(plans, balance, now, stopping, lambda each: _is_possible(each, slots)))

        self._balancing.settle(self._ports.fence.among(frontiers, REQUESTING, slots_used))
        for takeover in self._ports.fence.among(frontiers, "choosing what makes room", chosen):
            with self._ports.fence.around(takeover.frontier.id, "having room made for it"):
                self._preempt(takeover)

    def _preempt(self, takeover: Takeover) -> None:
        chain = takeover.chain
        about = {"chain": chain.id, "slot": chain.slot, "study": takeover.study}
        logger.info("chain %s on %s makes room for study %s", chain.id, chain.slot, takeover.study, extra=about)
        change(self._ports.records, lambda rows: _ask_all(rows, chain.slot))
        self._ports.notify(chain.id, chain.slot)


def _ask_all(rows: RowsPort, slot: str) -> None:
    """A slot is free when all that it trains together has ended."""
    for row in rows.chains.live():
        if row.slot == slot:
            rows.chains.ask_preempt(row.chain)


def _is_possible(takeover: Takeover, slots: Candidates) -> bool:
    """Whether the study has work that the chain's slot would take, and no slot that is free already.

    Where its stages have several slots, slots are held for it instead, when its turn comes.
    """
    frontier = takeover.frontier
    if frontier.plan.studies[takeover.study].least_ranks > 1:
        return False
    head = frontier.longest(study=takeover.study)
    slot = next((slot for slot in slots.healthy if slot.name == takeover.chain.slot), None)
    if slot is None:
        return False
    assert head is not None  # or it would not wait for a slot
    spans = frontier.path(head, takeover.study)
    resume = resume_point(frontier.plan, spans[0])

    def takes(free: Candidates) -> bool:
        return place(frontier.plan, frontier.id, spans, resume, free) is not None

    return not takes(slots) and takes(Candidates(slots.healthy, [slot]))


@dataclass(frozen=True, slots=True)
class _Flags:
    """What a chain was told. A scheduler that was started anew asks again, which does no harm."""

    steps: frozenset[int] = frozenset()
    branches: frozenset[int] = frozenset()
    stop: bool = False


@dataclass(slots=True)
class Flags:
    """Looks only at chains whose nodes have changed."""

    ports: Ports
    _sent: dict[str, dict[ChainId, _Flags]] = field(default_factory=dict)

    def send(self, frontiers: list[Frontier]) -> None:
        """Tell every chain what is new for it. Raises `DatabaseUnavailable`; then all of it is sent again."""
        for frontier in [frontier for frontier in frontiers if frontier.affected]:
            with self.ports.fence.around(frontier.id, "telling its chains what is new"):
                self._send(frontier)

    def _send(self, frontier: Frontier) -> None:
        with self.ports.plans.holding(frontier.id, fresh=False) as plan:
            news = self._news(frontier, plan)
            affected = set(frontier.affected)
            slots = {name: plan.chains[name].slot for name in news}
        self._tell(frontier.id, news)
        frontier.affected -= affected
        for chain, slot in slots.items():
            self.ports.notify(chain, slot)

    def _news(self, frontier: Frontier, plan: SearchPlan) -> dict[ChainId, _Flags]:
        """What each chain must be told now, where that is more than it was."""
        sent = {chain: flags for chain, flags in self._sent.get(frontier.id, {}).items() if chain in plan.chains}
        self._sent[frontier.id] = sent
        news: dict[ChainId, _Flags] = {}
        for chain in [plan.chains[name] for name in sorted(frontier.affected) if name in plan.chains]:
            before = sent.get(chain.id, _Flags())
            flags = _flags(frontier, chain, before)
            if flags != before:
                news[chain.id] = flags
        return news

    def _tell(self, stream: str, news: dict[ChainId, _Flags]) -> None:
        if not news:
            return

        sent = dict(self._sent[stream])

        def tell(rows: RowsPort) -> None:
            for chain, flags in news.items():
                before = sent.get(chain, _Flags())
                if new := flags.steps - before.steps:
                    rows.chains.ask_evaluation(chain, new)
                if new := flags.branches - before.branches:
                    rows.chains.ask_states(chain, new)
                if flags.stop:
                    rows.chains.ask_stop(chain)

        change(self.ports.records, tell)
        self._sent[stream].update(news)


def _flags(frontier: Frontier, chain: Chain, before: _Flags) -> _Flags:
    if chain.is_trained or chain.proof is not None:
        return before
    return _Flags(
        before.steps | set(frontier.extra_eval_steps(chain)),
        before.branches | frontier.late_branches.get(chain.id, set()),
        before.stop or not _is_wanted(frontier.plan, chain),
    )


def _is_wanted(plan: SearchPlan, chain: Chain) -> bool:
    """Whether anybody waits for what the stage under way, or one after it, is for."""
    stage = chain.stages[chain.index]
    beyond = stage.start if stage.end > stage.start else stage.start - 1
    waiting = plan.trials_waiting_after(plan.node(stage.node), beyond)
    return any(plan.studies[study].is_running for study, _ in waiting)
