"""Schedules verification steps: trainers are checked before their plan is trained, and hand-overs are compared.

Also applies the results.

Runs on: the tick's thread.
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
from app.exactness.verification import Verification, spans_of, verification_assignment
from app.exactness.verification_choice import (
    can_wait,
    is_due,
    is_still_needed,
    is_worth_starting,
    next_for_idle_slot,
    next_urgent,
)
from app.scheduling.frontier import Frontier
from app.scheduling.placement import Candidates, group_by_kind
from app.workers.scheduler.gangs import Gangs
from app.workers.scheduler.ports import Dispatch, FrontierCache, Ports

logger = logging.getLogger(__name__)


VERIFYING = "having something of it compared"


class VerificationScheduling:
    """Does nothing if no slot can run verification steps, as in a simulation."""

    def __init__(self, ports: Ports, frontiers: FrontierCache, dispatch: Dispatch, gangs: Gangs) -> None:
        self._ports, self._cache, self._dispatch, self._gangs = ports, frontiers, dispatch, gangs
        self._fence = ports.fence

    def apply_results(self) -> None:
        """Isolate studies whose trainer is not exact, if they want that; end audits that no slot can make.

        Raises `DatabaseUnavailable`.
        """
        for frontier in self._cache.usable():
            with self._fence.guard(frontier.id, "judging comparisons"):
                if frontier.plan.first_difference is not None:
                    self._isolate(frontier)
                if not self._ports.proofs:
                    self._end_audits(frontier)

    def is_due(self, slots: Candidates, plan: SearchPlan, study: Study) -> bool:
        """Whether a study should not end yet because of a verification that these slots can run."""
        return is_due(plan, study, slots.healthy)

    def begin(self, slots: Candidates) -> Candidates:
        """Give free slots the verifications that precede other work: checks of new trainers, and first hand-overs.

        A verification that needs more slots than are free waits for them: a check at once, a hand-over when its plan
        has nothing else to train. Returns the remaining slots. Raises `DatabaseUnavailable`.
        """
        for frontier in self._frontiers() if slots.free else ():
            with self._fence.guard(frontier.id, VERIFYING):
                is_wanted = partial(_has_urgent_proof, frontier, slots=len(slots.healthy))
                for kind, able in group_by_kind(frontier.plan, slots, is_wanted):
                    proof = None
                    if not _is_being_checked(frontier.plan, able, slots):
                        proof = next_urgent(frontier, kind, len(able.healthy))
                    if proof is not None:
                        is_urgent = proof.kind == VerificationKind.CHECK or frontier.most_urgent_head() is None
                        slots = self._assign(frontier, proof, kind, able, slots, is_urgent=is_urgent)
        return slots

    def use_idle(self, slots: Candidates) -> Candidates:
        """Let idle slots run verifications; returns the remaining slots."""
        for frontier in self._frontiers() if slots.free else ():
            with self._fence.guard(frontier.id, VERIFYING):
                for kind, able in group_by_kind(frontier.plan, slots):
                    proof = next_for_idle_slot(frontier.plan, kind)
                    if proof is not None and is_worth_starting(frontier, proof):
                        slots = self._assign(frontier, proof, kind, able, slots)
                kinds = [kind for kind, _ in group_by_kind(frontier.plan, Candidates(slots.healthy, slots.healthy))]
                if kinds and all(next_for_idle_slot(frontier.plan, kind) is None for kind in kinds):
                    self._end_audits(frontier)
        return slots

    def make_room(self, slots: Candidates, live: Mapping[str, ChainRecord]) -> None:
        """Stop verifications of finished studies, and others that can wait if other work is waiting.

        slots: the remaining ones after all work was assigned.
        live: the chains' rows by name. Raises `DatabaseUnavailable`.
        """

        def has_work(frontier: Frontier) -> bool:
            return frontier.most_urgent_head() is not None

        is_short = not slots.free and bool(self._fence.select(self._frontiers(), VERIFYING, has_work))
        for frontier in self._frontiers():
            with self._fence.guard(frontier.id, VERIFYING):
                proofs = [chain for chain in frontier.plan.chains.values() if chain.proof is not None]
                for chain in [each for each in proofs if each.id not in live or not live[each.id].stop]:
                    is_in_the_way = (is_short or self._gangs.is_reserved(chain)) and can_wait(frontier.plan, chain)
                    if is_in_the_way or not is_still_needed(frontier.plan, chain):
                        self._stop(chain)

    def _stop(self, chain: Chain) -> None:
        change(self._ports.records, lambda rows: rows.chains.ask_stop(chain.id))
        self._ports.notify(chain.id, chain.slot)

    def _end_audits(self, frontier: Frontier) -> None:
        """End the audits if nothing is left to compare, and nothing is being compared that could lead to more."""
        audited = [each for each in frontier.plan.studies.values() if each.is_audited]
        if not audited or any(chain.proof is not None for chain in frontier.plan.chains.values()):
            return
        for study in audited:
            self._transact(frontier, c.EndAudit(study=study.id, at=self._ports.clock()))

    def _transact(self, frontier: Frontier, command: c.Command) -> bool:
        """Whether the command had an effect."""
        return bool(self._ports.transact(frontier.id, lambda plan: decide(plan, command)))

    def _frontiers(self) -> Sequence[Frontier]:
        return self._cache.usable() if self._ports.proofs else ()

    def _isolate(self, frontier: Frontier) -> None:
        sharing = [each for each in frontier.plan.studies.values() if not (each.is_final or each.isolated)]
        for study in [each for each in sharing if each.spec.inexact != InexactPolicy.ALLOW]:
            if self._transact(frontier, c.IsolateStudy(study=study.id, at=self._ports.clock())):
                logger.warning("study %s: its trainer is not exact", study.id, extra={"study": study.id})
                self._cache.refresh(frontier.id, fresh=False)

    def _assign(
        self,
        frontier: Frontier,
        proof: Verification,
        kind: str,
        able: Candidates,
        slots: Candidates,
        *,
        is_urgent: bool = False,
    ) -> Candidates:
        """Record and send a verification for some of the able slots; returns the remaining slots.

        is_urgent: whether slots are reserved for it if too few are free.
        """
        waiting = self._cache.usable() if is_urgent else ()
        is_wanted = partial(_has_urgent_proof, kind=kind, slots=len(able.healthy))
        gang = self._gangs.verification_gang(frontier, spans_of(proof), kind, able, is_wanted, waiting)
        if gang is None:
            return slots
        lent, kind = gang.assignment_fields(self._ports.new_id), gang.kind if gang.members else ""
        self._record(frontier, proof, gang.leader.name, kind, lent)
        return slots.excluding(gang.names)

    def _record(self, frontier: Frontier, proof: Verification, slot: str, kind: str, lent: Mapping[str, Any]) -> None:
        """kind: of the slots, if there are several. lent: those beside the first, see `Gang`."""
        chain = self._ports.new_id()
        assignment = replace(verification_assignment(frontier, proof), **lent)
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


def _has_urgent_proof(frontier: Frontier, kind: str, slots: int) -> bool:
    return next_urgent(frontier, kind, slots) is not None


def _is_being_checked(plan: SearchPlan, able: Candidates, slots: Candidates) -> bool:
    """Whether one of these slots, or one that is not well any more, is checking the plan's trainer."""
    others = {slot.name for slot in slots.healthy} - {slot.name for slot in able.healthy}
    return any(chain.proof == VerificationKind.CHECK and chain.slot not in others for chain in plan.chains.values())
