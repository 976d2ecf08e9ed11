"""Virtual slots, which claim chains and report progress as workers do, and train nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from app.domain import events as e
from app.domain.chain_assignment import ChainAssignment
from app.domain.terms import ChainId, ChainOutcome
from app.events import Lease, RowsPort
from app.simulation.pace import KIND, Place, even_ranks
from app.simulation.virtual_chain import VirtualChain, World
from app.workers.slot.shared_time import SharedTime


class VirtualSlot:
    """A slot and its worker."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self._world = name, world
        self._lives = 0
        self._chains: list[VirtualChain] = []  # the last one, or all of the last pack

    @property
    def is_idle(self) -> bool:
        return all(chain.is_trained for chain in self._chains)

    @property
    def free_since(self) -> float:
        """When the last chain was trained; 0 if there was none."""
        return max((chain.trained_at for chain in self._chains), default=0.0)

    @property
    def _owner(self) -> str:
        return f"{self.name}/{self._lives}"

    def register(self, trainers: dict[str, str]) -> None:
        """A new worker takes the slot. The chain of the one before it is lost."""
        before = self._owner if self._lives else None
        self._lives, self._chains = self._lives + 1, []
        with self._world.records.write() as rows:
            rows.slots.take(
                self.name, self._owner, instead_of=before, device="cpu", host="", pid=self._lives, kind=KIND
            )
        self.describe(trainers)

    def describe(self, trainers: dict[str, str]) -> None:
        with self._world.records.write() as rows:
            rows.slots.describe(self.name, self._owner, trainers=trainers, note=None)

    def begin(self, chain: str) -> None:
        """Receive the message that starts a chain, or the first chain of a pack."""
        resident: Place | None = self._chains[0].resident if len(self._chains) == 1 else None
        with self._world.records.write() as rows:
            first = rows.chains.claim(chain, self._owner, inf)
            assert isinstance(first.assignment, ChainAssignment)
            others = [other for other in first.assignment.pack if other != chain]
            leases = [first, *(rows.chains.claim(other, self._owner, inf) for other in others)]
        if first.assignment.measure or first.assignment.measures_ranks is not None:
            self._measure(first, first.assignment)
            return
        time = SharedTime(self._world.clock, range(len(leases)))
        self._chains = []
        for number, lease in enumerate(leases):
            self._chains.append(
                VirtualChain(
                    self.name,
                    lease,
                    self._world,
                    resident,
                    on_death=self._begin_again,
                    seconds=partial(time.seconds_of, number),
                    on_trained=partial(time.leave, number),
                )
            )

    def _measure(self, lease: Lease, work: ChainAssignment) -> None:
        """Measure packs or gangs, and train nothing. It takes no time, and the scheduler ticks afterwards."""
        chain = ChainId(lease.chain)
        batch = work.measures_ranks
        profile = self._world.profile if batch is None else _ranks_profile(self._world.ranks, work.ranks, batch)
        assert profile is not None  # or the slot would train no packs
        facts: list[e.Event] = [profile, e.ChainEnded(chain=chain, outcome=ChainOutcome.STOPPED)]

        def end(rows: RowsPort) -> None:
            rows.chains.end(lease.chain, lease.fence)

        def finish() -> bool:
            self._world.records.log.append(lease.stream, facts, expected=None, at=now, alongside=end)
            return True

        now = self._world.clock()
        self._world.later(now, finish)

    def look(self) -> None:
        """Tell the running chains that their rows have changed."""
        for chain in [chain for chain in self._chains if not chain.is_trained]:
            chain.look()

    def beat(self) -> None:
        """Send the heartbeat of each running chain that has news."""
        now = self._world.clock()
        for chain in self._chains:
            if now >= chain.silent_until:
                chain.beat()

    def _begin_again(self) -> None:
        """A new worker takes the slot at once; all chains of the old one are lost."""
        self.beat()
        for chain in self._chains:
            chain.die()
        with self._world.records.read() as rows:
            before = rows.slots.get(self.name)
        self.register(dict(before.trainers) if before else {})


def _ranks_profile(ranks: e.RanksProfiled | None, most: int, batch: Mapping[str, Any]) -> e.RanksProfiled:
    """The result of measuring up to `most` ranks."""
    measured = ranks or even_ranks(1.0, most)
    seconds = {name: each for name, each in measured.step_seconds.items() if int(name) <= most}
    return replace(measured, step_seconds=seconds, batch=dict(batch))


def drop_devices(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A study file without `devices`: virtual slots have one kind of device, which is assumed to be right."""
    return {name: value for name, value in spec.items() if name != "devices"}


def drop_devices_of_event(event: e.Event) -> e.Event:
    if not isinstance(event, e.StudySubmitted) or "devices" not in event.spec:
        return event
    return replace(event, spec=drop_devices(event.spec))
