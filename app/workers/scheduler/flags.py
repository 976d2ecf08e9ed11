"""Runs on: the tick's thread.

Tells running chains of new requests on their way, and that nobody wants them any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from app.domain.ids import ChainId
from app.domain.search_plan import Chain, SearchPlan
from app.events.records import change
from app.events.rows.ports import RowsPort
from app.scheduling.frontier import Frontier
from app.workers.scheduler.ports import Ports


@dataclass(frozen=True, slots=True)
class _Flags:
    """What a chain was told. It is asked for again by a scheduler that was started anew, which does no harm."""

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
        for frontier in frontiers:
            if frontier.affected:
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
    waiting = plan.waiting_beyond(plan.node(stage.node), beyond)
    return any(plan.studies[study].is_running for study, _ in waiting)
