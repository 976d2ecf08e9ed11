"""Runs on: the tick's thread; `say_once` on the retention thread.

The value that the parts of the scheduler share: its ports; the plans that have something to do, each with
its outstanding work, looked at again only when its stream moved; and a sentence for each thing that is held up.

Sends chains to their slots. A message is a hint: it may come twice, and one that did not come is sent again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from app.domain.chain_assignment import ChainAssignment
from app.domain.events import Event
from app.domain.search_plan import Chain, ChainProgress, SearchPlan
from app.domain.stage_tree import Place
from app.domain.terms import ChainId, PlanId
from app.events import Alongside, ChainRecord, Plans, Records, StoredEvent, Write, transact
from app.scheduling.costs import Costs
from app.scheduling.fair_share import Policy
from app.scheduling.frontier import Frontier
from app.search.tuners.driver import MakeDriver, make_driver
from app.workers.scheduler.fence import READING, Fence
from stagetree.limits import LIMITS, Limits

logger = logging.getLogger(__name__)


class Problems:
    """Sentences by what they are about: a plan, a study, or a chain."""

    def __init__(self) -> None:
        self._sentences: dict[str, str] = {}

    def report(self, about: str, sentence: str) -> None:
        """Something is held up."""
        if self._sentences.get(about) != sentence:
            logger.warning("%s", sentence)
        self._sentences[about] = sentence

    def clear(self, about: str) -> None:
        """It is not, or not any more."""
        self._sentences.pop(about, None)

    def all(self) -> Mapping[str, str]:
        """What holds something up now."""
        return dict(self._sentences)


def say_once() -> Callable[[str], None]:
    """Logs a sentence when something begins to be held up, and none as long as it is: an empty one says it is not."""
    last = ""

    def say(text: str) -> None:
        nonlocal last
        if text and not last:
            logger.warning("%s", text)
        last = text

    return say


Publisher = Callable[[str, int, str], None]
"""Sends a chain (id, number of stages, slot) to the broker, or with 0 stages that a slot is lent to it. Raises whatever
the broker's library raises."""


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Where the scheduler reads and writes, and by which settings.

    notify: tells the worker of a chain on a slot that it was told something; it would find out by itself. limits: what
    a study may ask for. clock: Unix seconds, for facts; leases go by the clock of the records. elapsed: any clock that
    does not go back. intermediate_bytes: what a plan may spend on checkpoints inside stages. turn_seconds: how long
    studies that cannot have a slot each keep one in turn; None: nobody's chain is stopped for another study. pause:
    waits for so many seconds after a lost race. show: puts on record, when that is due, that this scheduler has looked.
    chains_that_fit: how many more chains may be given before checkpoints are deleted, as `Retention` says. packs:
    whether slots can train packs. proofs: whether they can train steps again to compare.
    """

    records: Records
    plans: Plans
    policy: Policy
    publish: Publisher
    new_id: Callable[[], str]
    lease_seconds: float
    intermediate_bytes: int
    limits: Limits = LIMITS
    turn_seconds: float | None = None
    packs: bool = True
    proofs: bool = False
    clock: Callable[[], float] = time.time
    elapsed: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = time.sleep
    notify: Callable[[str, str], None] = lambda chain, slot: None
    show: Callable[[], None] = lambda: None
    chains_that_fit: Callable[[Mapping[str, SearchPlan], int, int], int] = lambda plans, live, wanted: wanted
    make_driver: MakeDriver = make_driver
    make_costs: Callable[[], Costs] = Costs
    problems: Problems = field(default_factory=Problems)
    fence: Fence = field(default_factory=Fence)

    def transact(
        self,
        stream: str,
        decide: Callable[[SearchPlan], Sequence[Event]],
        *,
        alongside: Alongside | None = None,
        prepare: Callable[[], None] | None = None,
        is_known: bool = False,
    ) -> list[StoredEvent]:
        """As `app.events.records.transact`."""
        write = Write(
            stream=stream, decide=decide, at=self.clock(), alongside=alongside, prepare=prepare, is_known=is_known
        )
        return transact(self.records.log, self.plans, write, pause=self.pause)


def messages(assignment: ChainAssignment) -> int:
    """How many a chain is begun and continued by: one for each stage, but a pack is begun once."""
    return 1 if assignment.pack else len(assignment.stages)


class Dispatch:
    """The way to the broker. What it did not take is tried again at the next tick: each try is a wait."""

    def __init__(self, ports: Ports) -> None:
        self._ports, self._is_away = ports, False
        self._unsent: dict[tuple[str, str], int] = {}  # by chain and slot, the number of stages

    def invite(self, chain: str, work: ChainAssignment) -> None:
        """Tell the workers of its members to leave their devices to it, and to come if they are on other machines."""
        for member in work.members:
            self.send(chain, 0, member)

    def send(self, chain: str, stages: int, slot: str) -> bool:
        """Whether the broker took it. stages: 0 for a slot that is lent to the chain."""
        self._unsent[chain, slot] = stages
        if self._is_away:
            return False
        try:
            self._ports.publish(chain, stages, slot)
        except Exception as error:  # whatever the broker's library raises; nothing is written here
            about = {"chain": chain, "slot": slot}
            logger.warning("chain %s could not be sent to %s yet: %s", chain, slot, error, extra=about)
            self._is_away = True
            self._unsent[chain, slot] = self._unsent.pop((chain, slot))  # next time, the others come first
            return False
        del self._unsent[chain, slot]
        return True

    def is_unsent(self, row: ChainRecord) -> bool:
        """Whether the broker has not taken the message that begins the chain."""
        return (row.chain, row.slot) in self._unsent

    def send_again(self, undelivered: Sequence[ChainRecord]) -> None:
        """What the broker did not take, and what was sent long ago and nobody claimed. Raises `DatabaseUnavailable`."""
        self._is_away = False
        for (chain, slot), stages in list(self._unsent.items()):
            self.send(chain, stages, slot)
        readable = [(row, row.assignment) for row in undelivered if isinstance(row.assignment, ChainAssignment)]
        sent = [row for row, work in readable if self.send(row.chain, messages(work), row.slot)]
        for row, work in readable:
            self.invite(row.chain, work)
        if sent:
            with self._ports.records.write() as rows:
                for row in sent:
                    rows.chains.mark_dispatched(row.chain)


class FrontierCache:
    """The frontiers of the plans that are busy."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._fence = ports.fence
        self._frontiers: dict[str, Frontier] = {}
        self._outdated: set[str] = set()  # plans that could not be brought up to date

    def update(self, versions: Mapping[str, int], live: Mapping[str, ChainRecord], moved: set[str]) -> None:
        """Take in which plans are busy, what happened in those that moved, and how far the chains that are live are.

        moved: the chains whose rows have changed; it is emptied. Raises `DatabaseUnavailable`.
        """
        for stream in self._frontiers.keys() - versions.keys():
            del self._frontiers[stream]
        self._outdated &= versions.keys()
        self._fence.keep(versions)
        for frontier in self._frontiers.values():
            with self._fence.around(frontier.id, "beginning a look"):
                frontier.begin_look()
        for stream, version in versions.items():
            if self._is_behind(stream, version):
                self._fence.forget_problems(stream)
                self.refresh(stream)
        for name in moved:
            if (row := live.get(name)) is not None and row.stream in self._frontiers:
                self._frontiers[row.stream].unread_chains.add(ChainId(name))
        for frontier in self._frontiers.values():
            if frontier.unread_chains or frontier.in_flight:
                with self._fence.around(frontier.id, "taking in its chains"):
                    self._take_in_progress(frontier, live)  # of the stages in which the log has them now
        moved.clear()
        self._catch_up()
        self._ports.plans.keep(self._frontiers)

    def usable(self) -> list[Frontier]:
        """Of all plans that can be looked at, with all that was folded into them: who loses a race while it decides
        reads what came meanwhile."""
        self._catch_up()
        return self._not_held()

    def refresh(self, stream: str, *, fresh: bool = True) -> None:
        """Take in what happened to a plan: until now or, if not `fresh`, as far as it was read. As `Plans.holding`."""
        self._outdated.add(stream)
        with self._fence.around(stream, READING), self._ports.plans.holding(stream, fresh=fresh) as plan:
            frontier = self._frontiers.get(stream)
            if frontier is None or frontier.plan is not plan:
                frontier = self._frontiers[stream] = Frontier(plan, self._ports.make_costs(), id=PlanId(stream))
            frontier.refresh()  # after an error, the next refresh takes in the rest
            self._outdated.remove(stream)

    def _take_in_progress(self, frontier: Frontier, live: Mapping[str, ChainRecord]) -> None:
        """How far the workers of a plan are by their last heartbeats.

        A row and the plan are not of the same moment: it may be at the stage after the one under way in the plan, all
        of which is passed then, or at the one before, whose steps are not of this one.
        """
        with self._ports.plans.holding(frontier.id, fresh=False) as plan:
            for name in frontier.take_unread_chains():
                chain, row = plan.chains.get(name), live.get(name)
                if chain is not None and row is not None:
                    frontier.set_in_flight(chain.id, _in_flight(plan, chain, row))
                    if not chain.is_trained:
                        frontier.set_progress(chain.id, _progress(plan, chain, row))

    def _catch_up(self) -> None:
        for frontier in [frontier for frontier in self._not_held() if frontier.is_behind]:
            self.refresh(frontier.id, fresh=False)

    def _not_held(self) -> list[Frontier]:
        return [frontier for stream, frontier in self._frontiers.items() if not self._fence.is_held(stream)]

    def _is_behind(self, stream: str, version: int) -> bool:
        frontier = self._frontiers.get(stream)
        return frontier is None or stream in self._outdated or frontier.plan.version != version


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
