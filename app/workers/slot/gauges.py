"""What a slot measures about itself for its row, which `GET /metrics` shows.

Runs on: the heartbeat's thread.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence

from app.workers.slot.claim import Pulse
from app.workers.slot.context import SlotContext
from app.workers.slot.retry import Clock, Instant
from stagetree.system.memory import resident_bytes


class SlotGauges:
    """`memory`, `trainer_memory`: bytes of the worker's process, and of the one that trains for it.
    `outbox`, `saver`: how many facts and states wait. `outbox_seconds`, `saver_seconds`: since one was done.
    `step_age`: seconds since the last step, only while something is trained.

    Ages begin with the heartbeat that sees the change, so they are too small by a heartbeat at most.
    """

    def __init__(self, slot: SlotContext) -> None:
        self._slot, clock = slot, slot.dependencies.clock
        self._steps, self._outbox, self._saver = _Constancy(clock), _Constancy(clock), _Constancy(clock)

    def measure(self, pulses: Sequence[Pulse]) -> Mapping[str, float]:
        """pulses: of the chains in training."""
        slot = self._slot
        gauges: dict[str, float] = {
            "memory": resident_bytes(os.getpid()),
            "trainer_memory": slot.trainer.resident_bytes,
        }
        outbox, saver = slot.outbox.backlog, slot.saver.backlog
        for name, backlog, constancy in (("outbox", outbox, self._outbox), ("saver", saver, self._saver)):
            is_waiting = backlog.items > 0
            gauges |= {name: backlog.items, f"{name}_seconds": constancy.seconds((is_waiting, backlog.done))}
        age = self._steps.seconds(frozenset((pulse.claim.chain, pulse.step) for pulse in pulses))
        return {**gauges, "step_age": age} if pulses else gauges


class _Constancy:
    """For how long a value has been the same."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._value: Hashable = None
        self._since: Instant = clock()

    def seconds(self, value: Hashable) -> float:
        if value != self._value:
            self._value, self._since = value, self._clock()
        return round(self._clock() - self._since, 3)
