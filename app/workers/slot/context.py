"""Runs on: any thread; what it holds is never exchanged.

The parts of a slot, which all that it trains share, and those among them that its process gave it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.events import ChainFlags, Records
from app.events.trial_logs import TrialLogTable
from app.registry import TrainerSource
from app.storage.object_store import ObjectStore
from app.workers.ownership import Owner
from app.workers.slot.checkpoint_store import SMALL, CheckpointReader, CheckpointStore
from app.workers.slot.health import Health, Quarantine
from app.workers.slot.outbox import FactOutbox
from app.workers.slot.retry import Clock, RetryPolicy, SlotStatus, monotonic
from app.workers.slot.saver import HostBacklog, Saver
from app.workers.slot.surroundings import LookAround, Surveyor
from app.workers.slot.trainer_host import TrainerHost
from app.workers.threads import THREADS, Executor
from app.workers.trainer_process import TrainerProcess
from app.workers.trial_logs import TrialLogs


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, and bytes.

    heartbeat: between two signs of life. grace: for what is on its way when the slot must end. strike: how long a
    missing or damaged checkpoint is looked at again. silence: after which a trainer counts as hung, at least.
    overhead: the share of training time that intermediate checkpoints may take. memory_bytes: for recent states.
    cached_bytes: larger states are handed to slots of this machine before they are stored.
    """

    lease: float = 60.0
    heartbeat: float = 2.0
    grace: float = 20.0
    strike: float = 30.0
    silence: float = 1800.0
    overhead: float = 0.01
    memory_bytes: int = 256 * 2**20
    cached_bytes: int = SMALL
    growth_bytes: int = 2**30


@dataclass(frozen=True, slots=True)
class SlotDependencies:
    """What a slot works with.

    start: a fresh process that trains; called with `work.lent_slots`, a rank on each device of a gang, as one
    process; with its `rank`, one of a gang on several machines. sources: the trainers that are here, by name. notify:
    tells the scheduler that something happened, without waiting. send_next: sends the message of the stage that follows
    the one under way, once and without waiting; by default it comes when that has ended. logs: the folder for what
    trainers print. log_table: where that is sent to; None where the API reads it from the folder. is_retiring: whether
    the worker must end. end: asks that it does, and says why. clock: any that does not go back. wall_clock: Unix
    seconds. wait: for at most so many seconds. executor: of its heartbeat, outbox and saver. backlog: of the states
    that wait on this host; None bounds no bytes.
    """

    records: Records
    store: ObjectStore
    start: Callable[..., TrainerProcess]
    sources: Callable[[], Mapping[str, TrainerSource]]
    notify: Callable[[], None]
    logs: Path
    log_table: TrialLogTable | None = None
    send_next: Callable[[], None] = lambda: None
    is_retiring: Callable[[], bool] = lambda: False
    end: Callable[[str], None] = lambda why: None
    clock: Clock = monotonic
    wall_clock: Callable[[], float] = time.time
    wait: Callable[[float], object] | None = None
    executor: Executor = THREADS
    backlog: HostBacklog | None = None


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
        cls, me: Owner, device: str, deps: SlotDependencies, limits: Limits, flags: Callable[[str], ChainFlags]
    ) -> SlotContext:
        """All of it, with the threads of outbox and saver begun."""
        retry, status = RetryPolicy(deps.wait, deps.executor), SlotStatus()
        store = CheckpointStore(deps.store, limits.memory_bytes)
        outbox = FactOutbox(deps.records, retry, clock=deps.wall_clock, notify=deps.notify, executor=deps.executor)
        saver = Saver(store, retry, status, deps.clock, deps.executor, deps.backlog, cached_bytes=limits.cached_bytes)
        return cls(
            me=me,
            device=device,
            given=deps,
            retry=retry,
            status=status,
            outbox=outbox,
            saver=saver,
            store=store,
            reader=CheckpointReader(store, retry, status, deps.clock, limits.strike),
            trainer=TrainerHost(deps.start, deps.sources, limits.silence, deps.clock, limits.growth_bytes),
            logs=TrialLogs(deps.logs, me.slot, deps.log_table, deps.executor),
            quarantine=Quarantine(me, deps.records, retry, status, Health()),
            around=LookAround(Surveyor(saver, outbox, device, deps.sources), deps.clock),
            flags=flags,
            overhead=limits.overhead,
        )
