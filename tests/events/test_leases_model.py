"""Workers that start, go silent and return late, ticks and clocks in any order, on a real SQLite file.

At most one worker owns a slot, and nothing that a fenced-off worker writes ever lands.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from assignments import WORK
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test
from transactions import Transactions

from app.domain.events import ChainEnded, StageCompleted
from app.events.database import Database
from app.events.rows import ChainNotClaimable, Fenced, Lease, SlotTaken
from app.events.sql_log import SqlLog

TTL = 10.0
SLOTS = ["gpu0", "gpu1"]


class Leases(RuleBasedStateMachine):
    """`owner` is the model: for each live chain, the fence that may write for it."""

    template: Path
    chains = Bundle("chains")
    workers = Bundle("workers")

    def __init__(self) -> None:
        super().__init__()
        self.at = 0.0
        self.folder = tempfile.mkdtemp()
        shutil.copy(self.template, self.folder)
        self.database = Database(f"sqlite:///{self.folder}/{self.template.name}", clock=lambda: self.at)
        self.log, self.rows = SqlLog(self.database), Transactions(self.database)
        self.slot_of: dict[str, str] = {}
        self.owner: dict[str, int] = {}
        self.lease_until: dict[str, float] = {}
        self.reports: dict[str, int] = {}
        self.done: set[str] = set()
        self.facts: list[tuple[str, str]] = []
        for slot in SLOTS:
            self.rows.slots.take(slot, "anna", instead_of=None, device="cpu", host="host", pid=1)

    def teardown(self) -> None:
        self.database.dispose()
        shutil.rmtree(self.folder)

    def state(self, fact, alongside) -> None:
        """Record a fact; `alongside` checks the right to write it."""
        self.log.append("plan", [fact], expected=None, at=self.at, alongside=alongside)

    def forget_chain(self, chain: str) -> None:
        del self.owner[chain], self.lease_until[chain]

    @rule(target=chains, slot=st.sampled_from(SLOTS))
    def assign(self, slot: str) -> str:
        chain = f"c{len(self.slot_of)}"
        busy = any(self.slot_of[other] == slot for other in self.owner)
        try:
            self.rows.chains.assign(chain, "plan", slot, WORK, TTL)
        except SlotTaken:
            assert busy
            return ""
        assert not busy
        self.slot_of[chain], self.owner[chain], self.lease_until[chain] = slot, 0, self.at + TTL
        return chain

    @rule(target=workers, chain=chains)
    def claim(self, chain: str) -> Lease | None:
        """Deliver a message, perhaps late, perhaps twice."""
        try:
            lease = self.rows.chains.claim(chain, "worker", TTL)
        except ChainNotClaimable:
            assert self.owner.get(chain) != 0
            return None
        assert self.owner[chain] == 0
        self.owner[chain], self.lease_until[chain] = lease.fence.number, self.at + TTL
        self.reports[chain] = 0
        return lease

    def owns(self, lease: Lease) -> bool:
        return self.owner.get(lease.chain) == lease.fence.number

    @rule(lease=workers, step=st.integers(0, 9))
    def heartbeat(self, lease: Lease | None, step: int) -> None:
        if lease is None:
            return
        try:
            self.rows.chains.heartbeat(lease.chain, lease.fence, TTL, step)
        except Fenced:
            assert not self.owns(lease)
            return
        assert self.owns(lease)
        self.lease_until[lease.chain] = self.at + TTL

    @rule(lease=workers, how=st.sampled_from(["stage", "release", "finish", "late"]))
    def write(self, lease: Lease | None, how: str) -> None:
        """Report a stage, the last one, or a late checkpoint; the worker may be a zombie."""
        if lease is None:
            return
        fact, reports = StageCompleted(chain=lease.chain, index=0, seconds=0.0), self.reports[lease.chain]
        proofs = {
            "stage": lambda rows: rows.chains.advance(lease.chain, lease.fence, 1),
            "release": lambda rows: rows.chains.release(lease.chain, lease.fence, None),
            "finish": lambda rows: rows.chains.finish(lease.chain, lease.fence),
            "late": lambda rows: rows.chains.report(lease.chain, replace(lease.fence, reports=reports)),
        }
        allowed = self.owns(lease) or (how == "late" and lease.chain in self.done)
        try:
            self.state(fact, proofs[how])
        except Fenced:
            assert not allowed
            return
        assert allowed
        self.facts.append(("StageCompleted", lease.chain))
        self.reports[lease.chain] += how == "late"
        if how == "release":
            self.slot_of[lease.chain] = ""
        if how == "finish":
            self.forget_chain(lease.chain)
            self.done.add(lease.chain)

    @rule(lease=consumes(workers))
    def die(self, lease: Lease | None) -> None:
        """This worker sends nothing more."""

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.at += seconds

    @rule(late=st.booleans())
    def tick(self, late: bool) -> None:
        """Two ticks at once: the second has read the same expired chains, and ends none of them again."""
        seen = self.rows.expired_chains()
        assert sorted(seen) == sorted(chain for chain, until in self.lease_until.items() if until < self.at)
        for chain in seen * 2 if late else seen:
            ended = ChainEnded(chain=chain, outcome="lost", steps=0, seconds=0.0)
            try:
                self.state(ended, lambda rows, chain=chain: rows.chains.end_expired(chain))
            except Fenced:
                assert chain not in self.owner
                continue
            self.facts.append(("ChainEnded", chain))
            self.forget_chain(chain)

    @rule(chain=chains)
    def stop(self, chain: str) -> None:
        """Stop a chain that no study needs any more."""
        ended = ChainEnded(chain=chain, outcome="stopped", steps=0, seconds=0.0)
        try:
            self.state(ended, lambda rows: rows.chains.end(chain))
        except Fenced:
            assert chain not in self.owner
            return
        self.facts.append(("ChainEnded", chain))
        self.forget_chain(chain)

    @invariant()
    def a_slot_has_one_owner_at_most(self) -> None:
        live = self.rows.chains.live()
        assert {row.chain: row.fence for row in live} == self.owner
        live = [row for row in live if row.state != "saving"]
        assert len({row.slot for row in live}) == len(live)
        taken = {row.name: row.chain for row in self.rows.slots.all() if row.chain}
        assert taken == {row.slot: row.chain for row in live}

    @invariant()
    def the_log_holds_what_was_allowed(self) -> None:
        assert [(type(r.event).__name__, r.event.chain) for r in self.log.read("plan")] == self.facts


@pytest.mark.slow
def test_leases_under_any_order_of_events(sqlite_template: Path) -> None:
    Leases.template = sqlite_template
    calm = settings(
        max_examples=120, stateful_step_count=30, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(Leases, settings=calm)
