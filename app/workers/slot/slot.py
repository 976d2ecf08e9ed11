"""One GPU, or a share of the CPU: at most one chain in training, and those whose last checkpoints are on their way.

The message that begins a stage is a hint; the chain's row is the truth. The thread that brings the messages trains;
what else there is to do has threads of its own: `outbox`, `saver`, `heartbeat`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from app.domain import events as e
from app.domain.ids import ChainId
from app.domain.states import ChainOutcome
from app.events.records import Records
from app.events.rows import ChainFlags, ChainNotClaimable, Lease
from app.object_store import ObjectStore
from app.registry import TrainerSource
from app.scheduling.assignment import ChainAssignment, UnknownFormat
from app.workers.slot import quarantine
from app.workers.slot.chain_run import ChainRun
from app.workers.slot.checkpoint_store import CheckpointStore
from app.workers.slot.claim import Claim, Claimed, Claiming
from app.workers.slot.health import Health
from app.workers.slot.heartbeat import Description, Heartbeat, Pulse
from app.workers.slot.notes import Notes
from app.workers.slot.outbox import FactOutbox
from app.workers.slot.owner import Owner
from app.workers.slot.packs import Packs
from app.workers.slot.parts import Parts
from app.workers.slot.patience import Closing, Patience
from app.workers.slot.proving import ProofRun
from app.workers.slot.resuming import CheckpointReader
from app.workers.slot.saver import Saver
from app.workers.slot.trainer_host import TrainerHost
from app.workers.slot.trial_log import TrialLogs
from app.workers.slot.watch import StopWatch
from app.workers.trainer_process import TrainerProcess

logger = logging.getLogger(__name__)
Run = ChainRun | ProofRun


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, and bytes.

    heartbeat: between two signs of life. grace: for what is on its way when the slot is to end. strike: how long a
    missing or damaged checkpoint is looked at again. silence: after which a trainer counts as hung, at least.
    overhead: the share of training time that intermediate checkpoints may take. memory_bytes: for recent states.
    """

    lease: float = 60.0
    heartbeat: float = 2.0
    grace: float = 20.0
    strike: float = 30.0
    silence: float = 1800.0
    overhead: float = 0.01
    memory_bytes: int = 256 * 2**20
    growth_bytes: int = 2**30


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a slot works with.

    start: a fresh process that trains. sources: the trainers that are here, by name. notify: tells the scheduler that
    something happened, without waiting. logs: the folder for what trainers print. is_retiring: whether the worker is to
    end. end: asks that it does, and says why. clock: any that does not go back. wall_clock: Unix seconds. wait: for
    so many seconds at most.
    """

    records: Records
    store: ObjectStore
    start: Callable[[], TrainerProcess]
    sources: Callable[[], Mapping[str, TrainerSource]]
    notify: Callable[[], None]
    logs: Path
    is_retiring: Callable[[], bool] = lambda: False
    end: Callable[[str], None] = lambda why: None
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    wait: Callable[[float], object] | None = None


class Slot:
    """me: the hold of this process on the slot. device: as it is shown."""

    def __init__(self, me: Owner, device: str, around: Surroundings, limits: Limits) -> None:
        self._me, self._device, self._around, self._limits = me, device, around, limits
        self._patience, self._notes = Patience(around.wait), Notes()
        self._claiming = Claiming(around.records, me.owner, limits.lease, self._patience)
        self._runs: tuple[Run, ...] = ()  # in training, or between two stages: one, or those of a pack
        self._live: tuple[Run, ...] = ()
        self._is_closing = False
        self._host = TrainerHost(around.start, around.sources, limits.silence, around.clock, limits.growth_bytes)
        self._store = CheckpointStore(around.store, limits.memory_bytes)
        self._parts = self._make_parts()
        self._packs = Packs(self._host, self._device)
        self._watch = StopWatch(self._host.kill, self._patience.close, limits.grace)

    def start(self) -> None:
        """Put the slot on record, free for work, and keep it alive."""
        self.heartbeat.start()
        self._around.notify()

    def run_stage(self, chain: str, index: int) -> bool:
        """Train one stage of a chain; False if the message is stale or a copy, or the chain ended early.

        On False the next message of the chain must not be sent.
        """
        runs = self._claim(chain) if index == 0 else self._runs
        run = runs[0] if runs else None
        if run is None or run.claim.chain != chain or not run.execution.can_begin(index):
            logger.info("stage %s of chain %s is not ours to run", index, chain)
            return False
        pack = [each for each in runs if isinstance(each, ChainRun) and each.work.pack]
        is_complete = self._packs.run(pack) if pack else run.run_stage()
        if not run.is_between_stages:
            self._runs = ()
        self._prune()
        return is_complete

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all checkpoints are stored and all facts on record, or for so many seconds; whether they are."""
        ends_at = None if seconds is None else time.monotonic() + seconds
        saver, outbox = self._parts.saver, self._parts.outbox
        while not (saver.is_idle and outbox.is_idle):  # each may bring the other something to do
            for part in (saver, outbox):
                if not part.drain(None if ends_at is None else max(0.0, ends_at - time.monotonic())):
                    return False
        return True

    def close(self) -> None:
        """Give back what is not begun, and end within the grace; what is not on record by then is done again."""
        self._is_closing, ends_at = True, time.monotonic() + self._limits.grace
        for run in self._runs:
            run.give_back()
        if not self.drain(self._limits.grace):
            logger.warning("slot %s ends before all was saved: that will be trained again", self._me.slot)
        self.heartbeat.close(max(1.0, ends_at - time.monotonic()))
        self._patience.close()
        for part in (self._parts.saver, self._parts.outbox, self._store):
            part.close()
        self._host.end_process()

    # ------------------------------------------------------------------------------------------------ its parts

    def _make_parts(self) -> Parts:
        around, limits = self._around, self._limits
        return Parts(
            me=self._me,
            records=around.records,
            patience=self._patience,
            notes=self._notes,
            outbox=FactOutbox(around.records, self._patience, clock=around.wall_clock, notify=around.notify),
            saver=Saver(self._store, self._patience, self._notes, around.clock),
            reader=CheckpointReader(self._store, self._patience, self._notes, around.clock, limits.strike),
            host=self._host,
            logs=TrialLogs(around.logs, self._me.slot),
            health=Health(),
            clock=around.clock,
            flags=self._flags,
            overhead=limits.overhead,
        )

    @cached_property
    def heartbeat(self) -> Heartbeat:
        return Heartbeat(
            self._me,
            self._device,
            self._around.records,
            pulses=self._pulses,
            describe=self._describe,
            is_retiring=self._is_retiring,
            look=self._look,
            on_taken=self._around.end,
            clock=self._around.clock,
            lease_seconds=self._limits.lease,
            heartbeat_seconds=self._limits.heartbeat,
        )

    # ------------------------------------------------------------------------------------------------ chains

    def _claim(self, chain: str) -> tuple[Run, ...]:
        """The chain, and those that are packed with it; none of them if it is not to be had."""
        if self.heartbeat.is_taken or self._is_retiring():
            return ()
        first = self._claimed(chain)
        works = [] if first is None else [first, *(self._claimed(other) for other in first.work.pack if other != chain)]
        claimed = [each for each in works if each is not None]
        if not claimed:  # whatever waits for its next message goes on waiting
            return ()
        if claimed[0].work.pack:
            self._runs = tuple(self._packs.made(claimed, self._parts))
        else:
            self._runs = tuple(map(self._run_of, claimed))
        self._live = (*self._live, *self._runs)
        return self._runs

    def _run_of(self, each: Claimed) -> Run:
        if each.work.proof is not None:
            return ProofRun(each.lease, each.claim, each.work, self._parts, self._host, self._device)
        return ChainRun(each.lease, each.claim, each.work, self._parts)

    def _claimed(self, chain: str) -> Claimed | None:
        try:
            lease = self._claiming.claim(chain, self._is_retiring)
        except (ChainNotClaimable, Closing) as refused:
            logger.info("chain %s is not claimed: %s", chain, refused or "this worker is to end")
            return None
        claim = Claim(lease.chain, lease.stream, lease.fence)
        try:
            return Claimed(lease, claim, ChainAssignment.from_json(lease.assignment))
        except (UnknownFormat, TypeError, KeyError) as unknown:
            self._hand_back(lease, claim, str(unknown))
            return None

    def _hand_back(self, lease: Lease, claim: Claim, reason: str) -> None:
        """What this version cannot read is for others."""
        logger.error("chain %s is given back: %s", lease.chain, reason)
        self._parts.health.had_accident()
        ended = e.ChainEnded(chain=ChainId(lease.chain), outcome=ChainOutcome.INTERRUPTED)
        sentence = quarantine.after_accident(self._parts, reason, is_hopeless=True)
        over = sentence.added_to(lambda rows: rows.chains.end(claim.chain, claim.fence)) if sentence else None
        self._parts.outbox.put(claim, [ended], over, is_last=True)

    def _prune(self) -> None:
        """Forget the chains that are over."""
        over = [run for run in self._live if run.claim.over.is_set()]
        for run in over:
            run.execution.closed()
        self._live = tuple(run for run in self._live if run not in over)

    # ------------------------------------------------------------------------------- looked at from other threads

    def _pulses(self) -> list[Pulse]:
        return [run.pulse for run in self._live]

    def _flags(self, chain: str) -> ChainFlags:
        """What is wanted of a chain; everything stops when the worker is to end."""
        flags = self.heartbeat.flags.get(chain, ChainFlags())
        return replace(flags, stop=True) if self._is_retiring() else flags

    def _describe(self) -> Description:
        return Description(self._host.versions, self._notes.text)

    def _is_retiring(self) -> bool:
        return self._is_closing or self._around.is_retiring()

    def _look(self) -> None:
        """A trainer that should stop and does not is ended."""
        self._watch.look(
            self._around.clock(),
            is_retiring=self._is_retiring(),
            is_unwanted=all(run.flags.stop for run in self._runs),  # where there are none, nothing is busy
            busy_since=self._host.busy_since,
        )
