"""The parts of a slot that all its lanes share, and the dependencies that its process provides.

Runs on: any thread; its fields are never reassigned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.events import ChainFlags, Records
from app.events.trial_logs import TrialLogTable
from app.input_reader import InputReader
from app.registry import TrainerSource
from app.storage.object_store import ObjectStore
from app.workers.ownership import Owner
from app.workers.slot.checkpoint_store import SMALL, CheckpointReader, CheckpointStore
from app.workers.slot.environment import Surveyor
from app.workers.slot.health import Health, Quarantine
from app.workers.slot.host_backlog import HostBacklog
from app.workers.slot.input_watch import InputWatch, StudyFiles
from app.workers.slot.outbox import FactOutbox
from app.workers.slot.retry import Clock, RetryPolicy, monotonic
from app.workers.slot.saver import Saver
from app.workers.slot.slot_status import SlotStatus
from app.workers.slot.trainer_host import TrainerHost
from app.workers.threads import THREADS, Executor
from app.workers.trainer_client import TrainerClient
from app.workers.trial_logs import TrialLogs


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds and bytes.

    heartbeat: the interval.
    grace: for unfinished saves and facts when the slot must end.
    strike: how long a missing or damaged checkpoint is read again.
    reading: how long a chain waits for its inputs to be read.
    silence: the shortest silence after which a trainer counts as hung.
    overhead: the share of training time that intermediate checkpoints may take.
    memory_bytes: for recent states.
    cached_bytes: larger states are handed to this machine's slots before they are stored.
    """

    lease: float = 60.0
    heartbeat: float = 2.0
    grace: float = 20.0
    strike: float = 30.0
    reading: float = 60.0
    silence: float = 1800.0
    overhead: float = 0.01
    memory_bytes: int = 256 * 2**20
    cached_bytes: int = SMALL
    growth_bytes: int = 2**30


@dataclass(frozen=True, slots=True)
class SlotDependencies:
    """What a slot works with.

    start: starts a fresh trainer process; with `ChainAssignment.lent_slots`, a rank on each device of a gang;
        with `rank`, one rank of a gang on several machines.
    sources: this slot's trainers by name.
    notify: wakes the scheduler without waiting.
    study_folders: the folders that studies may name in `inputs`.
    log_table: where logs are sent; None if the API reads the folder `logs`.
    send_next: sends the message of the following stage early, once and without waiting.
    is_retiring: whether the worker must end.
    end: asks the worker to end, with a reason.
    clock: monotonic. wall_clock: Unix seconds.
    wait: waits for at most this long.
    executor: of heartbeat, outbox and saver.
    backlog: of states waiting on this host; None: no limit.
    """

    records: Records
    store: ObjectStore
    start: Callable[..., TrainerClient]
    sources: Callable[[], Mapping[str, TrainerSource]]
    notify: Callable[[], None]
    logs: Path
    study_folders: Sequence[str] = ()
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
    """me: this process's claim to the slot.
    device: as in the slot's row.
    flags: what the scheduler wants of a chain now.
    overhead: the share of training time that intermediate checkpoints may take.
    input_watch: examines the inputs of chains.
    """

    me: Owner
    device: str
    dependencies: SlotDependencies
    retry: RetryPolicy
    status: SlotStatus
    outbox: FactOutbox
    saver: Saver
    store: CheckpointStore
    reader: CheckpointReader
    trainer: TrainerHost
    logs: TrialLogs
    quarantine: Quarantine
    input_watch: InputWatch
    flags: Callable[[str], ChainFlags]
    overhead: float

    @classmethod
    def create(
        cls, me: Owner, device: str, deps: SlotDependencies, limits: Limits, flags: Callable[[str], ChainFlags]
    ) -> SlotContext:
        """Creates all parts and starts the threads of outbox and saver."""
        retry, status = RetryPolicy(deps.wait, deps.executor), SlotStatus()
        store = CheckpointStore(deps.store, limits.memory_bytes)
        outbox = FactOutbox(deps.records, retry, clock=deps.wall_clock, notify=deps.notify, executor=deps.executor)
        saver = Saver(store, retry, status, deps.clock, deps.executor, deps.backlog, cached_bytes=limits.cached_bytes)
        return cls(
            me=me,
            device=device,
            dependencies=deps,
            retry=retry,
            status=status,
            outbox=outbox,
            saver=saver,
            store=store,
            reader=CheckpointReader(store, retry, status, deps.clock, limits.strike),
            trainer=TrainerHost(deps.start, deps.sources, limits.silence, deps.clock, limits.growth_bytes),
            logs=TrialLogs(deps.logs, me.slot, deps.log_table, deps.executor),
            quarantine=Quarantine(me, deps.records, retry, status, Health()),
            input_watch=InputWatch(
                StudyFiles(InputReader(limits.reading), deps.study_folders, status),
                Surveyor(saver, outbox, device, deps.sources),
                deps.clock,
            ),
            flags=flags,
            overhead=limits.overhead,
        )
