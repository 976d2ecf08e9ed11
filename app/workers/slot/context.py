"""Runs on: any thread; what it holds is never exchanged.

What a slot has, which all that it trains share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.events.rows import ChainFlags
from app.workers.ownership import Owner
from app.workers.slot.checkpoint_store import CheckpointReader, CheckpointStore
from app.workers.slot.dependencies import Limits, SlotDependencies
from app.workers.slot.health import Health, Quarantine
from app.workers.slot.outbox import FactOutbox
from app.workers.slot.retry import RetryPolicy, SlotStatus
from app.workers.slot.saver import Saver
from app.workers.slot.surroundings import LookAround, Surveyor
from app.workers.slot.trainer_host import TrainerHost
from app.workers.slot.trial_log import TrialLogs


@dataclass(frozen=True, slots=True)
class SlotContext:
    """me: the hold of this process on the slot. device: as the slot's row says it. given: by the process. flags: what
    is wanted of a chain, beyond what its lease said. overhead: the share of training time that intermediate checkpoints
    may take. around: sees what a chain is trained with besides its assignment.
    """

    me: Owner
    device: str
    given: SlotDependencies
    retry: RetryPolicy
    status: SlotStatus
    outbox: FactOutbox
    saver: Saver
    store: CheckpointStore
    reader: CheckpointReader
    trainer: TrainerHost
    logs: TrialLogs
    quarantine: Quarantine
    around: LookAround
    flags: Callable[[str], ChainFlags]
    overhead: float

    @classmethod
    def of(
        cls, me: Owner, device: str, given: SlotDependencies, limits: Limits, flags: Callable[[str], ChainFlags]
    ) -> SlotContext:
        """All of it, with the threads of outbox and saver begun."""
        retry, status = RetryPolicy(given.wait, given.executor), SlotStatus()
        store = CheckpointStore(given.store, limits.memory_bytes)
        outbox = FactOutbox(given.records, retry, clock=given.wall_clock, notify=given.notify, executor=given.executor)
        saver = Saver(store, retry, status, given.clock, given.executor)
        return cls(
            me=me,
            device=device,
            given=given,
            retry=retry,
            status=status,
            outbox=outbox,
            saver=saver,
            store=store,
            reader=CheckpointReader(store, retry, status, given.clock, limits.strike),
            trainer=TrainerHost(given.start, given.sources, limits.silence, given.clock, limits.growth_bytes),
            logs=TrialLogs(given.logs, me.slot),
            quarantine=Quarantine(me, given.records, retry, status, Health()),
            around=LookAround(Surveyor(saver, outbox, device, given.sources), given.clock),
            flags=flags,
            overhead=limits.overhead,
        )
