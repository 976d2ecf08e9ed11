"""Virtual slots: they claim chains and say how far they are as workers do, and train nothing."""

from __future__ import annotations

from math import inf

from app.simulation.pace import Place
from app.simulation.virtual_chain import VirtualChain, World


class VirtualSlot:
    """One slot and its worker."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self._world = name, world
        self._lives = 0
        self._chain: VirtualChain | None = None

    @property
    def is_idle(self) -> bool:
        return self._chain is None or self._chain.is_trained

    @property
    def free_since(self) -> float:
        """When the last chain was trained; 0 if there was none."""
        return 0.0 if self._chain is None else self._chain.trained_at

    @property
    def _owner(self) -> str:
        return f"{self.name}/{self._lives}"

    def register(self, trainers: dict[str, str]) -> None:
        """A new worker has the slot; with the one before it, its chain is gone."""
        before = self._owner if self._lives else None
        self._lives, self._chain = self._lives + 1, None
        with self._world.records.write() as rows:
            rows.slots.take(self.name, self._owner, instead_of=before, device="cpu", host="", pid=self._lives)
        self.describe(trainers)

    def describe(self, trainers: dict[str, str]) -> None:
        """Say which trainers there are."""
        with self._world.records.write() as rows:
            rows.slots.describe(self.name, self._owner, trainers=trainers, note=None)

    def begin(self, chain: str) -> None:
        """The message that starts a chain is there."""
        resident: Place | None = None if self._chain is None else self._chain.resident
        with self._world.records.write() as rows:
            lease = rows.chains.claim(chain, self._owner, inf)
        self._chain = VirtualChain(self.name, lease, self._world, resident, self._begin_again)

    def look(self) -> None:
        """A chain under way was told something."""
        if self._chain is not None and not self._chain.is_trained:
            self._chain.look()

    def beat(self) -> None:
        """Say how far the chain under way is."""
        if self._chain is not None and not self._chain.is_trained:
            self._chain.beat()

    def _begin_again(self) -> None:
        """Another worker has the slot at once."""
        with self._world.records.read() as rows:
            before = rows.slots.get(self.name)
        self.register(dict(before.trainers) if before else {})
