"""Virtual slots: they claim chains and say how far they are as workers do, and train nothing."""

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
from app.workers.slot.retry import SharedTime


class VirtualSlot:
    """One slot and its worker."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self._world = name, world
        self._lives = 0
        self._chains: list[VirtualChain] = []  # the last one, or those of the last pack

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
        """A new worker has the slot; with the one before it, its chain is gone."""
        before = self._owner if self._lives else None
        self._lives, self._chains = self._lives + 1, []
        with self._world.records.write() as rows:
            rows.slots.take(
                self.name, self._owner, instead_of=before, device="cpu", host="", pid=self._lives, kind=KIND
            )
        self.describe(trainers)

    def describe(self, trainers: dict[str, str]) -> None:
        """Say which trainers there are."""
        with self._world.records.write() as rows:
            rows.slots.describe(self.name, self._owner, trainers=trainers, note=None)

    def begin(self, chain: str) -> None:
        """The message that starts a chain, or the pack that it is the first of, is there."""
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
        """See how packs or gangs do, and train nothing. It takes no time, and then the scheduler looks."""
        chain = ChainId(lease.chain)
        batch = work.measures_ranks
        profile = self._world.profile if batch is None else _seen(self._world.ranks, work.ranks, batch)
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
        """A chain under way was told something."""
        for chain in [chain for chain in self._chains if not chain.is_trained]:
            chain.look()

    def beat(self) -> None:
        """Say how far each chain under way is, where that is news."""
        now = self._world.clock()
        for chain in self._chains:
            if now >= chain.silent_until:
                chain.beat()

    def _begin_again(self) -> None:
        """Another worker has the slot at once; what it was at besides is gone as well."""
        self.beat()
        for chain in self._chains:
            chain.die()
        with self._world.records.read() as rows:
            before = rows.slots.get(self.name)
        self.register(dict(before.trainers) if before else {})


def _seen(ranks: e.RanksProfiled | None, most: int, batch: Mapping[str, Any]) -> e.RanksProfiled:
    """What is found when so many ranks are measured."""
    measured = ranks or even_ranks(1.0, most)
    seconds = {name: each for name, each in measured.step_seconds.items() if int(name) <= most}
    return replace(measured, step_seconds=seconds, batch=dict(batch))


def anywhere(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A study file without the kinds of device that it names: virtual slots are of one, which is taken to be right."""
    return {name: value for name, value in spec.items() if name != "devices"}


def placed_anywhere(event: e.Event) -> e.Event:
    """The same of a study of a log."""
    if not isinstance(event, e.StudySubmitted) or "devices" not in event.spec:
        return event
    return replace(event, spec=anywhere(event.spec))
