"""What the parts of the scheduler share: its ports, the frontiers of busy plans, and the sentences about held-up work.

Also sends chains to their slots. Messages are hints: they may come twice, and a lost one is sent again.

Runs on: the tick's thread; `log_once` on the retention thread.
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
    """Sentences about held-up plans, studies and chains."""

    def __init__(self) -> None:
        self._sentences: dict[str, str] = {}

    def report(self, about: str, sentence: str) -> None:
        """Log a new sentence."""
        if self._sentences.get(about) != sentence:
            logger.warning("%s", sentence)
        self._sentences[about] = sentence

    def clear(self, about: str) -> None:
        self._sentences.pop(about, None)

    def all(self) -> Mapping[str, str]:
        return dict(self._sentences)


def log_once() -> Callable[[str], None]:
    """A function that logs a sentence when a problem begins, and nothing while it lasts. An empty sentence ends it."""
    last = ""

    def say(text: str) -> None:
        nonlocal last
        if text and not last:
            logger.warning("%s", text)
        last = text

    return say


Publisher = Callable[[str, int, str], None]
"""Sends a chain (id, number of stages, slot) to the broker; with 0 stages, that the slot is lent to it. Raises what the
broker's library raises.
"""


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The scheduler's inputs, outputs and settings.

    notify: tells a slot's worker to read its chain's flags; it would notice by itself later.
    limits: on what a study may ask for.
    clock: Unix seconds, for facts; leases use the records' clock.
    elapsed: monotonic.
    intermediate_bytes: a plan's bytes for checkpoints inside stages.
    turn_seconds: how long studies that cannot have a slot each keep one in turn; None: no chain is preempted for
        another study.
    pause: waits after a lost race.
    show: records, when due, that this scheduler has ticked.
    chain_quota: how many more chains may be assigned before checkpoints must be deleted, see `Retention`.
    packs: whether slots can train packs.
    proofs: whether slots can run verification steps.
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
    chain_quota: Callable[[Mapping[str, SearchPlan], int, int], int] = lambda plans, live, wanted: wanted
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


def message_count(assignment: ChainAssignment) -> int:
    """How many messages a chain needs: one a stage, but one for a whole pack."""
    return 1 if assignment.pack else len(assignment.stages)


class Dispatch:
    """Sends messages. Messages that the broker did not take are retried at the next tick, since a try may block."""

    def __init__(self, ports: Ports) -> None:
        self._ports, self._is_away = ports, False
        self._unsent: dict[tuple[str, str], int] = {}  # by chain and slot, the number of stages

    def invite(self, chain: str, work: ChainAssignment) -> None:
        """Tell the workers of lent slots to leave their devices, and to connect if they are on other machines."""
        for member in work.members:
            self.send(chain, 0, member)

    def send(self, chain: str, stages: int, slot: str) -> bool:
        """Send a message, and return whether the broker took it. stages: 0 for a slot that is lent to the chain."""
        self._unsent[chain, slot] = stages
        if self._is_away:
            return False
        try:
            self._ports.publish(chain, stages, slot)
        except Exception as error:  # the broker's library may raise anything; nothing is written here
            about = {"chain": chain, "slot": slot}
            logger.warning("chain %s could not be sent to %s yet: %s", chain, slot, error, extra=about)
            self._is_away = True
            self._unsent[chain, slot] = self._unsent.pop((chain, slot))  # let the others go first next time
            return False
        del self._unsent[chain, slot]
        return True

    def is_unsent(self, row: ChainRecord) -> bool:
        """Whether the broker has not taken the chain's first message."""
        return (row.chain, row.slot) in self._unsent

    def send_again(self, undelivered: Sequence[ChainRecord]) -> None:
        """Send messages that the broker did not take, and chains that no worker has claimed. Raises
        `DatabaseUnavailable`.
        """
        self._is_away = False
        for (chain, slot), stages in list(self._unsent.items()):
            self.send(chain, stages, slot)
        readable = [(row, row.assignment) for row in undelivered if isinstance(row.assignment, ChainAssignment)]
        sent = [row for row, work in readable if self.send(row.chain, message_count(work), row.slot)]
        for row, work in readable:
            self.invite(row.chain, work)
        if sent:
            with self._ports.records.write() as rows:
                for row in sent:
                    rows.chains.mark_dispatched(row.chain)


class FrontierCache:
    """The frontiers of the busy plans."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._fence = ports.fence
        self._frontiers: dict[str, Frontier] = {}
        self._outdated: set[str] = set()  # plans that could not be refreshed

    def update(self, versions: Mapping[str, int], live: Mapping[str, ChainRecord], changed_chains: set[str]) -> None:
        """Read which plans are busy, their new events, and the progress of live chains.

        changed_chains: chains whose rows have changed; it is emptied. Raises `DatabaseUnavailable`.
        """
        for stream in self._frontiers.keys() - versions.keys():
            del self._frontiers[stream]
        self._outdated &= versions.keys()
        self._fence.retain(versions)
        for frontier in self._frontiers.values():
            with self._fence.guard(frontier.id, "beginning a look"):
                frontier.begin_tick()
        for stream, version in versions.items():
            if self._is_behind(stream, version):
                self._fence.forget_problems(stream)
                self.refresh(stream)
        for name in changed_chains:
            if (row := live.get(name)) is not None and row.stream in self._frontiers:
                self._frontiers[row.stream].unread_chains.add(ChainId(name))
        for frontier in self._frontiers.values():
            if frontier.unread_chains or frontier.in_flight:
                with self._fence.guard(frontier.id, "taking in its chains"):
                    self._take_in_progress(frontier, live)  # of the stages in which the log has them now
        changed_chains.clear()
        self._catch_up()
        self._ports.plans.keep(self._frontiers)

    def usable(self) -> list[Frontier]:
        """All plans that are not held up, as far as their events have been read: a decision that loses a race reads
        newer events.
        """
        self._catch_up()
        return self._available()

    def refresh(self, stream: str, *, fresh: bool = True) -> None:
        """Read a plan's new events: until now or, if not `fresh`, those already folded. As `Plans.holding`."""
        self._outdated.add(stream)
        with self._fence.guard(stream, READING), self._ports.plans.holding(stream, fresh=fresh) as plan:
            frontier = self._frontiers.get(stream)
            if frontier is None or frontier.plan is not plan:
                frontier = self._frontiers[stream] = Frontier(plan, self._ports.make_costs(), id=PlanId(stream))
            frontier.refresh()  # after an error, the next refresh takes in the rest
            self._outdated.remove(stream)

    def _take_in_progress(self, frontier: Frontier, live: Mapping[str, ChainRecord]) -> None:
        """Set how far a plan's chains are, by their last heartbeats.

        Rows and the plan are not of the same moment. A row may be one stage ahead of the plan, whose stage is then
        complete, or one stage behind, whose steps then do not count.
        """
        with self._ports.plans.holding(frontier.id, fresh=False) as plan:
            for name in frontier.take_unread_chains():
                chain, row = plan.chains.get(name), live.get(name)
                if chain is not None and row is not None:
                    frontier.set_in_flight(chain.id, _pending_places(plan, chain, row))
                    if not chain.is_trained:
                        frontier.set_progress(chain.id, _progress(plan, chain, row))

    def _catch_up(self) -> None:
        for frontier in [frontier for frontier in self._available() if frontier.is_behind]:
            self.refresh(frontier.id, fresh=False)

    def _available(self) -> list[Frontier]:
        return [frontier for stream, frontier in self._frontiers.items() if not self._fence.is_held(stream)]

    def _is_behind(self, stream: str, version: int) -> bool:
        frontier = self._frontiers.get(stream)
        return frontier is None or stream in self._outdated or frontier.plan.version != version


def _progress(plan: SearchPlan, chain: Chain, row: ChainRecord) -> ChainProgress:
    """The passed steps, without those whose evaluation or state is still to be recorded."""
    stage, node = chain.stages[chain.index], plan.node(chain.stages[chain.index].node)
    coming = {*stage.evaluate} - node.metrics.keys() | {*row.extra_eval_steps} - node.checkpoints.keys()
    return ChainProgress(row.step, frozenset(coming))


def _pending_places(plan: SearchPlan, chain: Chain, row: ChainRecord) -> frozenset[Place]:
    """The requested states in completed stages that are not recorded yet.

    The next heartbeat removes from the row the steps that the worker had passed before it got the request.
    """
    places = ((stage, step) for stage in chain.stages[: chain.index] for step in row.extra_eval_steps)
    return frozenset(
        (stage.node, step)
        for stage, step in places
        if stage.start < step < stage.end and step not in plan.node(stage.node).checkpoints
    )
