"""Runs on: the tick's thread.

Has trainers tried before anything of a plan is trained, hand-overs compared, and draws the consequence.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from app.domain import commands as c
from app.domain.decide import decide
from app.domain.search_plan import Chain, SearchPlan, Study
from app.domain.terms import ChainId, InexactPolicy, VerificationKind
from app.events import ChainRecord, RowsPort, SlotTaken, change
from app.exactness.verification import Verification, proof_assignment, spans_of
from app.exactness.verification_choice import can_wait, first, is_due, is_wanted, is_worth_starting, next_for_idle_slot
from app.scheduling.frontier import Frontier
from app.scheduling.placement import Candidates, group_by_kind
from app.workers.scheduler.gangs import Gangs
from app.workers.scheduler.ports import Dispatch, FrontierCache, Ports

logger = logging.getLogger(__name__)


PROVING = "having something of it compared"


class Proving:
    """Does nothing where no slot can make proofs, as in a simulation."""

    def __init__(self, ports: Ports, frontiers: FrontierCache, dispatch: Dispatch, gangs: Gangs) -> None:
        self._ports, self._cache, self._dispatch, self._gangs = ports, frontiers, dispatch, gangs
        self._fence = ports.fence

    def judge(self) -> None:
        """Have studies do what they want of a trainer that is not exact; let none wait for proofs that nobody makes.

        Raises `DatabaseUnavailable`.
        """
        for frontier in self._cache.usable():
            with self._fence.around(frontier.id, "judging what was compared"):
                if frontier.plan.first_difference is not None:
                    self._isolate(frontier)
                if not self._ports.proofs:
                    self._end_audits(frontier)

    def is_due(self, slots: Candidates, plan: SearchPlan, study: Study) -> bool:
        """Whether a study should not end yet, for a proof that these slots can make."""
        return is_due(plan, study, slots.healthy)

    def begin(self, slots: Candidates) -> Candidates:
        """Give free slots what comes before other work: trials of new trainers, and the first hand-overs.

        What needs more slots than are free waits for them: a trial of a trainer does as soon as there is any, and a
        hand-over when its plan has nothing else to train. Returns the slots as they are then. Raises
        `DatabaseUnavailable`.
        """
        for frontier in self._frontiers() if slots.free else ():
            with self._fence.around(frontier.id, PROVING):
                for kind, able in group_by_kind(frontier.plan, slots, partial(_has_first, frontier)):
                    proof = None
                    if not _is_being_checked(frontier.plan, able, slots):
                        proof = first(frontier, kind, len(able.healthy))
                    if proof is not None:
                        is_urgent = proof.kind == VerificationKind.CHECK or frontier.longest() is None
                        slots = self._give(frontier, proof, kind, able, slots, is_urgent=is_urgent)
        return slots

    def use_idle(self, slots: Candidates) -> Candidates:
        """Let slots prove something that have nothing else to do; the slots as they are then."""
        for frontier in self._frontiers() if slots.free else ():
            with self._fence.around(frontier.id, PROVING):
                for kind, able in group_by_kind(frontier.plan, slots):
                    proof = next_for_idle_slot(frontier.plan, kind)
                    if proof is not None and is_worth_starting(frontier, proof):
                        slots = self._give(frontier, proof, kind, able, slots)
                kinds = [kind for kind, _ in group_by_kind(frontier.plan, Candidates(slots.healthy, slots.healthy))]
                if kinds and all(next_for_idle_slot(frontier.plan, kind) is None for kind in kinds):
                    self._end_audits(frontier)
        return slots

    def make_room(self, slots: Candidates, live: Mapping[str, ChainRecord]) -> None:
        """Stop what nobody waits for where other work does, and what is for a study that is over.

        slots: as they are after all work was given away that could be. live: the rows of the chains, by name. Raises
        `DatabaseUnavailable`.
        """

        def has_work(frontier: Frontier) -> bool:
            return frontier.longest() is not None

        is_short = not slots.free and bool(self._fence.those(self._frontiers(), PROVING, has_work))
        for frontier in self._frontiers():
            with self._fence.around(frontier.id, PROVING):
                proofs = [chain for chain in frontier.plan.chains.values() if chain.proof is not None]
                for chain in [each for each in proofs if each.id not in live or not live[each.id].stop]:
                    is_in_the_way = (is_short or self._gangs.is_held(chain)) and can_wait(frontier.plan, chain)
                    if is_in_the_way or not is_wanted(frontier.plan, chain):
                        self._stop(chain)

    def _stop(self, chain: Chain) -> None:
        change(self._ports.records, lambda rows: rows.chains.ask_stop(chain.id))
        self._ports.notify(chain.id, chain.slot)

    def _end_audits(self, frontier: Frontier) -> None:
        """Nothing is left to compare; not so, while something is compared: who knows what comes next then."""
        audited = [each for each in frontier.plan.studies.values() if each.is_audited]
        if not audited or any(chain.proof is not None for chain in frontier.plan.chains.values()):
            return
        for study in audited:
            command = c.EndAudit(study=study.id, at=self._ports.clock())
            self._transact(frontier, command)

    def _transact(self, frontier: Frontier, command: c.Command) -> bool:
        """Whether anything followed from it."""
        return bool(self._ports.transact(frontier.id, lambda plan: decide(plan, command)))

    def _frontiers(self) -> Sequence[Frontier]:
        return self._cache.usable() if self._ports.proofs else ()

    def _isolate(self, frontier: Frontier) -> None:
        sharing = [each for each in frontier.plan.studies.values() if not (each.is_final or each.isolated)]
        for study in [each for each in sharing if each.inexact != InexactPolicy.ALLOW]:
            if self._transact(frontier, c.IsolateStudy(study=study.id, at=self._ports.clock())):
                logger.warning("study %s: its trainer is not exact", study.id, extra={"study": study.id})
                self._cache.refresh(frontier.id, fresh=False)

    def _give(
        self,
        frontier: Frontier,
        proof: Verification,
        kind: str,
        able: Candidates,
        slots: Candidates,
        *,
        is_urgent: bool = False,
    ) -> Candidates:
        """Record that some slots of the able ones make a proof, and send it; the slots as they are then.

        is_urgent: whether slots are held for it, where too few are free.
        """
        waiting = self._cache.usable() if is_urgent else ()
        is_wanted = partial(_has_first, kind=kind)
        gang = self._gangs.for_proof(frontier, spans_of(proof), kind, able, is_wanted, waiting)
        if gang is None:
            return slots
        lent, kind = gang.assignment_fields(self._ports.new_id), gang.kind if gang.members else ""
        self._record(frontier, proof, gang.leader.name, kind, lent)
        return slots.excluding(gang.names)

    def _record(self, frontier: Frontier, proof: Verification, slot: str, kind: str, lent: Mapping[str, Any]) -> None:
        """kind: of the slots, where there are several. lent: those beside the first, as of `Gang`."""
        chain = self._ports.new_id()
        assignment = replace(proof_assignment(frontier, proof), **lent)
        command = c.AssignChain(
            chain=ChainId(chain),
            slot=slot,
            stages=proof.stages,
            at=self._ports.clock(),
            proof=proof.kind,
            members=assignment.members,
            kind=kind,
        )

        def give(rows: RowsPort) -> None:
            ttl = self._ports.lease_seconds
            rows.chains.assign(chain, frontier.id, slot, assignment, ttl)

        try:
            self._ports.transact(frontier.id, lambda plan: decide(plan, command), alongside=give, is_known=True)
        except SlotTaken:  # by another tick
            return
        self._dispatch.send(chain, 1, slot)
        self._dispatch.invite(chain, assignment)
        self._cache.refresh(frontier.id, fresh=False)


def _has_first(frontier: Frontier, kind: str) -> bool:
    return first(frontier, kind) is not None


def _is_being_checked(plan: SearchPlan, able: Candidates, slots: Candidates) -> bool:
    """Whether one of these slots, or one that is not well any more, tries the plan's trainer."""
    others = {slot.name for slot in slots.healthy} - {slot.name for slot in able.healthy}
    return any(chain.proof == VerificationKind.CHECK and chain.slot not in others for chain in plan.chains.values())
