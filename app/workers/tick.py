"""The scheduler: looks at what happened, lets tuners action, gives chains to slots. It remembers nothing that matters.

A tick may run twice at once without harm: what it decides goes through `transact`, and a slot is taken in the same
transaction. What was recorded and never reached the broker is sent again: the log is the outbox.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from time import time
from typing import Any

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.errors import Refused
from app.domain.ids import ChainId, NodeId, StudyId
from app.domain.search_plan import Chain, SearchPlan
from app.domain.states import ChainState
from app.events.records import Records
from app.events.rows import Fenced, Rows, SlotTaken
from app.events.tables import ChainRow, SlotRow
from app.events.transact import Plans, transact
from app.scheduling.chains import lead_trial, stages_of
from app.scheduling.frontier import Frontier
from app.scheduling.policies import Choice, Policy
from app.scheduling.tuners import TunerDriver
from app.scheduling.tuners.surroundings import context_of
from stagetree.limits import LIMITS, Limits

logger = logging.getLogger(__name__)

DISPATCH_AGAIN_SECONDS = 15.0
"""A chain that nobody claimed is sent again after so long; a second message does no harm."""


class Ticker:
    """One pair of eyes on the log. publish: sends a chain (id, number of stages, slot) to the broker."""

    def __init__(
        self,
        *,
        records: Records,
        plans: Plans,
        policy: Policy,
        publish: Callable[[str, int, str], None],
        new_id: Callable[[], str],
        lease_seconds: float,
        spare_bytes: int,
        limits: Limits = LIMITS,
        clock: Callable[[], float] = time,
    ) -> None:
        self._records, self._log, self._plans = records, records.log, plans
        self._policy, self._publish, self._new_id, self._clock = policy, publish, new_id, clock
        self._lease_seconds, self._spare_bytes, self._limits = lease_seconds, spare_bytes, limits
        self._frontiers: dict[str, Frontier] = {}
        self._room = 1  # how many trials can be trained at once
        self._drivers: dict[StudyId, TunerDriver] = {}

    def tick(self) -> None:
        """Look once. Raises `DatabaseUnavailable`; whatever was done until then stands."""
        with self._records.read() as rows:
            streams = rows.studies.active_streams()
            expired = rows.chains.expired()
            stale = rows.chains.undelivered(DISPATCH_AGAIN_SECONDS)
            self._room = max(1, len(rows.slots.alive(self._lease_seconds)))
        for row in expired:
            self._lose(row)
        for stream in streams:
            self._tune(stream, self._room)
        if self._assign(streams):  # slots are idle: trials that share a stage leave some to others
            for stream in streams:
                self._tune(stream, 2 * self._room)
            self._assign(streams)
        self._tell_workers()
        for row in stale:
            self._send(row.chain, len(row.assignment["stages"]), row.slot)

    # ------------------------------------------------------------------------------------------------ leases

    def _lose(self, row: ChainRow) -> None:
        """A chain that was not heard of in time is over."""

        def lost(plan: SearchPlan) -> Sequence[e.Event]:
            chain = plan.chains.get(ChainId(row.chain))
            steps = 0 if chain is None or chain.is_trained else max(0, row.step - chain.stages[chain.index].start)
            return decide(
                plan, c.LoseChain(chain=ChainId(row.chain), steps=steps, claimed=row.state != ChainState.READY)
            )

        logger.warning("chain %s on %s was not heard of in time and is over", row.chain, row.slot)
        try:
            self._transact(row.stream, lost, lambda rows: rows.chains.end_expired(row.chain))
        except Fenced:
            logger.info("chain %s was heard of after all", row.chain)

    def _tell_workers(self) -> None:
        """Running chains learn of new requests on their way, and that nobody wants them any more."""
        with self._records.read() as rows:
            live = [row for row in rows.chains.live() if row.state != ChainState.SAVING]
        frontiers = {stream: self._frontier(stream) for stream in {row.stream for row in live}}
        for row in live:
            chain = frontiers[row.stream].plan.chains.get(ChainId(row.chain))
            if chain is not None and not chain.is_trained:
                self._tell(row, frontiers[row.stream], chain)

    def _tell(self, row: ChainRow, frontier: Frontier, chain: Chain) -> None:
        marks = set(frontier.marks(chain)) - set(row.extra_eval_steps)
        unwanted = not row.stop and not _is_wanted(frontier.plan, chain)
        if marks or unwanted:
            with self._records.write() as rows:
                if marks:
                    rows.chains.ask_evaluation(row.chain, marks)
                if unwanted:
                    rows.chains.ask_stop(row.chain)

    # ------------------------------------------------------------------------------------------------ tuners

    def _tune(self, stream: str, room: int) -> None:
        """Let the tuners of a plan action, as long as fewer than `room` trials of their study are active."""
        for study in list(self._plans.get(stream).studies.values()):
            if study.is_running:
                try:
                    self._tune_study(stream, study.id, room)
                except Exception as error:
                    logger.exception("the tuner of study %s failed", study.id)
                    self._close(
                        stream, c.FailStudy(study=study.id, error=f"the tuner failed: {error}", at=self._clock())
                    )

    def _tune_study(self, stream: str, name: StudyId, room: int) -> None:
        """Grant the study's actions one after the other, each on what the one before led to."""
        driver = self._driver(stream, name)
        while self._transact(stream, lambda plan: self._tuned(plan, name, driver, room)):
            pass
        with self._plans.holding(stream) as plan:
            done = driver.is_done(plan.studies[name])
        if done:
            self._close(stream, c.CloseStudy(study=name, at=self._clock()))

    def _tuned(self, plan: SearchPlan, name: StudyId, driver: TunerDriver, room: int) -> Sequence[e.Event]:
        study = plan.studies[name]
        if not study.is_running:
            return ()
        actions = driver.actions(study, room, context_of(plan, study, self._clock(), self._room))
        return decide(plan, c.ApplyTunerActions(study=name, actions=actions), self._limits)

    def _driver(self, stream: str, name: StudyId) -> TunerDriver:
        spec = self._plans.get(stream).studies[name].spec
        if name not in self._drivers or self._drivers[name].spec is not spec:
            self._drivers[name] = TunerDriver(spec)
        return self._drivers[name]

    def _close(self, stream: str, command: c.CloseStudy | c.FailStudy) -> None:
        self._transact(stream, lambda plan: decide(plan, command))
        self._drivers.pop(command.study, None)

    # ------------------------------------------------------------------------------------------------ chains

    def _assign(self, streams: Sequence[str]) -> bool:
        """Give the most urgent work to free slots, until one of both runs out. Whether slots are left."""
        with self._records.read() as rows:
            free = rows.slots.free(self._lease_seconds)
        frontiers = [self._frontier(stream) for stream in streams] if free else []
        while free and (choice := self._policy(frontiers)):
            if not self._give(choice, free):
                return False
            choice[0].refresh()
        return bool(free)

    def _frontier(self, stream: str) -> Frontier:
        plan = self._plans.get(stream)
        if stream not in self._frontiers or self._frontiers[stream].plan is not plan:
            self._frontiers[stream] = Frontier(plan)
        self._frontiers[stream].refresh()
        return self._frontiers[stream]

    def _give(self, choice: Choice, free: list[SlotRow]) -> bool:
        """Record that a slot has a chain, and send it. False when something else happened first: a tick will see it."""
        frontier, spans = choice
        plan = frontier.plan
        stream = next(stream for stream, known in self._frontiers.items() if known is frontier)
        stages, resume = stages_of(plan, spans), _resume(plan, spans[0].node, spans[0].start)
        slot = _pick(free, stream, resume)
        chain, at = self._new_id(), self._clock()
        work = self._work(plan, stream, stages, resume, lead_trial(plan, spans[-1]), len(free))
        command = c.AssignChain(chain=ChainId(chain), slot=slot.name, stages=stages, at=at)
        free.remove(slot)
        try:
            self._transact(
                stream,
                lambda plan: decide(plan, command),
                lambda rows: rows.chains.assign(chain, stream, slot.name, work, self._lease_seconds),
            )
        except SlotTaken:
            return True
        except Refused as refused:
            logger.info("not assigned: %s", refused)
            return False
        self._send(chain, len(stages), slot.name)
        return True

    def _work(
        self,
        plan: SearchPlan,
        stream: str,
        stages: tuple[e.Stage, ...],
        resume: dict[str, Any] | None,
        lead: tuple[StudyId, int],
        sharers: int,
    ) -> dict[str, Any]:
        """What a worker must know; it reads nothing else."""
        assert plan.opened is not None
        return {
            "plan": stream,
            **asdict(plan.opened),
            "hp": plan.trial(lead).hp,
            "stages": [asdict(stage) for stage in stages],
            "resume": resume,
            "spare_bytes": max(0, self._spare_bytes - plan.intermediate_bytes) // sharers,
        }

    def _send(self, chain: str, stages: int, slot: str) -> None:
        try:
            self._publish(chain, stages, slot)
        except Exception as error:  # whatever the broker's library raises: it is sent again later
            logger.warning("chain %s could not be sent to %s yet: %s", chain, slot, error)
            return
        with self._records.write() as rows:
            rows.chains.mark_dispatched(chain)

    def _transact(
        self,
        stream: str,
        deciding: Callable[[SearchPlan], Sequence[e.Event]],
        alongside: Callable[[Rows], None] | None = None,
    ) -> bool:
        """Whether anything was decided."""
        recorded = transact(self._log, self._plans, stream, deciding, at=self._clock(), alongside=alongside)
        return bool(recorded)


def _resume(plan: SearchPlan, name: NodeId, step: int) -> dict[str, Any] | None:
    """The checkpoint at which a chain begins; None for step 0."""
    node = plan.nodes[name]
    if step not in node.checkpoints:
        if node.parent is None:
            return None
        node = plan.nodes[node.parent]
    kept = node.checkpoints[step]
    return {"node": node.id, "step": step, "key": kept.key, "sha256": kept.sha256}


def _pick(free: Sequence[SlotRow], stream: str, resume: dict[str, Any] | None) -> SlotRow:
    """The slot that has the model in memory, if there is one."""
    warm = resume and {"plan": stream, "node": resume["node"], "step": resume["step"]}
    return next((slot for slot in free if warm and slot.resident_model == warm), free[0])


def _is_wanted(plan: SearchPlan, chain: Chain) -> bool:
    stage = chain.stages[chain.index]
    beyond = stage.start if stage.end > stage.start else stage.start - 1
    waiting = plan.waiting_beyond(plan.nodes[stage.node], beyond)
    return any(plan.studies[study].is_running for study, _ in waiting)
