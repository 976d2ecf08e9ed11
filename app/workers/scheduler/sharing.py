"""Shares the slots among competing studies: computes each study's due share, and preempts chains.

`FlagSender` tells running chains about new requests on their path, and that they are no longer needed.

Runs on: the tick's thread.
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
"""The shortest interval at which due shares are recorded."""


class Sharing:
    """Does nothing if only one study has work, or if slots are not shared."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._balancing = None if ports.turn_seconds is None else FairSharing(ports.turn_seconds)
        self._shown: Mapping[str, float] | None = None  # by this scheduler: an earlier one may have recorded others
        self._shown_at = 0.0

    def look(self, frontiers: Sequence[Frontier], slots: Candidates) -> FairShare:
        """The due share of each study, which is also recorded. Raises `DatabaseUnavailable`."""
        if self._balancing is None:
            return NO_CONTENTION
        now, most = self._ports.elapsed(), len(slots.healthy)
        requests = self._ports.fence.apply(frontiers, REQUESTING, lambda plans: share_requests(plans, most))
        balance = self._balancing.update(requests, most, now)
        self._record_due({study: round(due, 2) for study, due in balance.due.items()}, now)
        return balance

    def count_wanted_slots(self, frontiers: Sequence[Frontier], tuners_want: Container[StudyId]) -> Counter[str]:
        """As `slots_wanted`."""
        return self._ports.fence.apply(frontiers, REQUESTING, lambda plans: slots_wanted(plans, tuners_want))

    def _record_due(self, due: Mapping[str, float], now: float) -> None:
        """Views of studies show it a little later."""
        if due != self._shown and (not due or now - self._shown_at >= SHOW_SECONDS):
            change(self._ports.records, lambda rows: rows.studies.show_due(due))
            self._shown, self._shown_at = due, now

    def make_room(self, frontiers: Sequence[Frontier], balance: FairShare, cluster: Cluster, slots: Candidates) -> None:
        """Preempt chains whose slots are due to other studies, after the free `slots` were given away.

        Raises `DatabaseUnavailable`.
        """
        if self._balancing is None or not balance.due:
            return
        stopping = {ChainId(row.chain) for row in cluster.live.values() if row.stop or row.preempt}
        now = self._ports.clock()

        def choose(plans: Sequence[Frontier]) -> list[Takeover]:
            return list(takeovers(plans, balance, now, stopping, lambda each: _can_take_over(each, slots)))

        self._balancing.record_use(self._ports.fence.apply(frontiers, REQUESTING, slots_used))
        for takeover in self._ports.fence.apply(frontiers, "choosing what makes room", choose):
            with self._ports.fence.guard(takeover.frontier.id, "having room made for it"):
                self._preempt(takeover)

    def _preempt(self, takeover: Takeover) -> None:
        chain = takeover.chain
        about = {"chain": chain.id, "slot": chain.slot, "study": takeover.study}
        logger.info("chain %s on %s makes room for study %s", chain.id, chain.slot, takeover.study, extra=about)
        change(self._ports.records, lambda rows: _preempt_slot(rows, chain.slot))
        self._ports.notify(chain.id, chain.slot)


def _preempt_slot(rows: RowsPort, slot: str) -> None:
    """A slot is free only when all chains that it trains together have ended."""
    for row in rows.chains.live():
        if row.slot == slot:
            rows.chains.ask_preempt(row.chain)


def _can_take_over(takeover: Takeover, slots: Candidates) -> bool:
    """Whether the study has work that the chain's slot would take, and no free slot already.

    If its stages need several slots, slots are reserved for it instead.
    """
    frontier = takeover.frontier
    if frontier.plan.studies[takeover.study].spec.least_ranks > 1:
        return False
    head = frontier.most_urgent_head(study=takeover.study)
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
class _SentFlags:
    """The flags sent to a chain. A restarted scheduler sends them again, which does no harm."""

    steps: frozenset[int] = frozenset()
    branches: frozenset[int] = frozenset()
    stop: bool = False


@dataclass(slots=True)
class FlagSender:
    """Looks only at chains whose nodes have changed."""

    ports: Ports
    _sent: dict[str, dict[ChainId, _SentFlags]] = field(default_factory=dict)

    def send(self, frontiers: list[Frontier]) -> None:
        """Send all chains their new flags. Raises `DatabaseUnavailable`; then all are sent again."""
        for frontier in [frontier for frontier in frontiers if frontier.affected]:
            with self.ports.fence.guard(frontier.id, "updating its chains"):
                self._send(frontier)

    def _send(self, frontier: Frontier) -> None:
        with self.ports.plans.holding(frontier.id, fresh=False) as plan:
            news = self._new_flags(frontier, plan)
            affected = set(frontier.affected)
            slots = {name: plan.chains[name].slot for name in news}
        self._write_flags(frontier.id, news)
        frontier.affected -= affected
        for chain, slot in slots.items():
            self.ports.notify(chain, slot)

    def _new_flags(self, frontier: Frontier, plan: SearchPlan) -> dict[ChainId, _SentFlags]:
        """The changed flags of each chain."""
        sent = self._sent.setdefault(frontier.id, {})
        if len(sent) > 2 * len(plan.chains):  # forgetting ended chains at each tick would cost most of it
            sent = self._sent[frontier.id] = {chain: flags for chain, flags in sent.items() if chain in plan.chains}
        news: dict[ChainId, _SentFlags] = {}
        for chain in [plan.chains[name] for name in sorted(frontier.affected) if name in plan.chains]:
            before = sent.get(chain.id, _SentFlags())
            flags = _flags(frontier, chain, before)
            if flags != before:
                news[chain.id] = flags
        return news

    def _write_flags(self, stream: str, news: dict[ChainId, _SentFlags]) -> None:
        if not news:
            return

        sent = dict(self._sent[stream])

        def tell(rows: RowsPort) -> None:
            for chain, flags in news.items():
                before = sent.get(chain, _SentFlags())
                if new := flags.steps - before.steps:
                    rows.chains.ask_evaluation(chain, new)
                if new := flags.branches - before.branches:
                    rows.chains.ask_states(chain, new)
                if flags.stop:
                    rows.chains.ask_stop(chain)

        change(self.ports.records, tell)
        self._sent[stream].update(news)


def _flags(frontier: Frontier, chain: Chain, before: _SentFlags) -> _SentFlags:
    if chain.is_trained or chain.proof is not None:
        return before
    return _SentFlags(
        before.steps | set(frontier.extra_eval_steps(chain)),
        before.branches | frontier.late_branches.get(chain.id, set()),
        before.stop or not _is_wanted(frontier.plan, chain),
    )


def _is_wanted(plan: SearchPlan, chain: Chain) -> bool:
    """Whether a request waits for the stage under way or a later one of the chain."""
    stage = chain.stages[chain.index]
    beyond = stage.start if stage.end > stage.start else stage.start - 1
    waiting = plan.trials_waiting_after(plan.node(stage.node), beyond)
    return any(plan.studies[key[0]].is_running for key, _ in waiting)
