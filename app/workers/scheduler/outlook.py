"""Runs on: the tick's thread.

The plans that have something to do, each with its outstanding work, looked at again only when its stream moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from app.domain.ids import ChainId, PlanId
from app.domain.search_plan import Chain, ChainProgress, SearchPlan
from app.domain.stage_tree import Place
from app.events.plans import PlanUnusable
from app.events.rows import ChainRecord
from app.scheduling.frontier import Frontier
from app.workers.scheduler.ports import Ports


class Outlook:
    """The frontiers of the plans that are busy. What is wrong with one plan holds up that plan alone, and is said."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._frontiers: dict[str, Frontier] = {}
        self._unusable: set[str] = set()

    def update(self, versions: Mapping[str, int], live: Iterable[ChainRecord] = ()) -> None:
        """Take in which plans are busy, what happened in those that moved, and how far the chains that are live are.

        Raises `DatabaseUnavailable`.
        """
        for stream in self._frontiers.keys() - versions.keys():
            del self._frontiers[stream]
        for stream in self._unusable - versions.keys():
            self._set_usable(stream)
        for frontier in self._frontiers.values():
            frontier.begin_look()
        for stream, version in versions.items():
            if self._is_behind(stream, version):
                self.refresh(stream)
        for row in live:
            self._take_in_progress(row)  # of the stage in which the log has it now
        self._catch_up()
        self._ports.plans.keep(self._frontiers)

    def frontiers(self) -> list[Frontier]:
        """Of all plans that can be looked at, with all that was folded into them: who loses a race while it decides
        reads what came meanwhile."""
        self._catch_up()
        return [frontier for stream, frontier in self._frontiers.items() if stream not in self._unusable]

    def refresh(self, stream: str, *, fresh: bool = True) -> None:
        """Take in what happened to a plan: until now or, if not `fresh`, as far as it was read. As `Plans.holding`."""
        try:
            with self._ports.plans.holding(stream, fresh=fresh) as plan:
                frontier = self._frontiers.get(stream)
                if frontier is None or frontier.plan is not plan:
                    frontier = self._frontiers[stream] = Frontier(plan, self._ports.make_costs(), id=PlanId(stream))
                _take_in(frontier)
        except PlanUnusable as problem:
            self._unusable.add(stream)
            self._ports.problems.report(stream, str(problem))
        else:
            self._set_usable(stream)

    def _take_in_progress(self, row: ChainRecord) -> None:
        """How far a worker is by its last heartbeat.

        Its row and the plan are not of the same moment: it may be at the stage after the one under way in the plan, all
        of which is passed then, or at the one before, whose steps are not of this one.
        """
        frontier = self._frontiers.get(row.stream)
        if frontier is None:
            return
        with suppress(PlanUnusable), self._ports.plans.holding(row.stream, fresh=False) as plan:
            chain = plan.chains.get(ChainId(row.chain))
            if chain is None:
                return
            frontier.set_in_flight(chain.id, _in_flight(plan, chain, row))
            if not chain.is_trained:
                frontier.set_progress(chain.id, _progress(plan, chain, row))

    def _catch_up(self) -> None:
        for stream in [name for name, frontier in self._frontiers.items() if frontier.is_behind]:
            self.refresh(stream, fresh=False)

    def _set_usable(self, stream: str) -> None:
        self._unusable.discard(stream)
        self._ports.problems.clear(stream)

    def _is_behind(self, stream: str, version: int) -> bool:
        frontier = self._frontiers.get(stream)
        if frontier is None or stream in self._unusable:
            return True
        return frontier.plan.version != version


def _progress(plan: SearchPlan, chain: Chain, row: ChainRecord) -> ChainProgress:
    """What was passed; but what must be evaluated or kept there is on its way, as long as it is not on record."""
    stage, node = chain.stages[chain.index], plan.node(chain.stages[chain.index].node)
    coming = {*stage.evaluate} - node.metrics.keys() | {*row.extra_eval_steps} - node.checkpoints.keys()
    return ChainProgress(row.step, frozenset(coming))


def _in_flight(plan: SearchPlan, chain: Chain, row: ChainRecord) -> frozenset[Place]:
    """What the worker was asked to keep in the stages that it has completed, as long as that is not on record.

    What it had passed before it heard of it is struck from its row by its next heartbeat.
    """
    places = ((stage, step) for stage in chain.stages[: chain.index] for step in row.extra_eval_steps)
    return frozenset(
        (stage.node, step)
        for stage, step in places
        if stage.start < step < stage.end and step not in plan.node(stage.node).checkpoints
    )


def _take_in(frontier: Frontier) -> None:
    """Raises `PlanUnusable`; then it is tried again with the next look."""
    try:
        frontier.refresh()
    except Exception as error:  # it is only computed: nothing is lost, and the others' plans are none the worse
        raise PlanUnusable(f"plan {frontier.id} cannot be scheduled: {type(error).__name__}: {error}") from error
