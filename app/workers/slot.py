"""A slot at work: claims a chain, trains its stages in a row on one model in memory, and puts facts on record.

The message that starts a stage is a hint; the chain's row is the truth. Every fact is written together with the proof
that the chain is still ours, and who has lost it falls silent at the next step.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from threading import Event as Flag
from threading import Thread
from typing import Any

from app.domain import events as e
from app.domain.ids import ChainId, NodeId
from app.events.database import DatabaseUnavailable
from app.events.log import Alongside, Conflict
from app.events.records import Records
from app.events.rows import ChainNotClaimable, Fenced, Rows
from app.events.transact import record
from app.workers.checkpoints import CheckpointLost, Checkpoints, Stored
from app.workers.memory import ModelInMemory
from app.workers.run import Run, Work
from app.workers.saver import Saver
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.model import Model
from stagetree.runtime.timeline import Timeline
from stagetree.trainer import Trainer

logger = logging.getLogger(__name__)

PEEK_SECONDS = 0.01
"""A running stage looks for new actions after each step, but not more often than this."""

WRITES = 20
"""How often a fact is tried again when other transactions are faster."""

MOST_SPARES = 64
"""How many spare checkpoints one stage may keep."""


class Stopped(Exception):
    """The tick asked for the chain to stop."""


class Slot:
    """One GPU, or a share of the CPU: at most one chain in training, and those whose last checkpoints are on their way.

    nudge: tells the scheduler that something happened. trainer: the class of a name; versions: of their files, by name.
    """

    def __init__(
        self,
        name: str,
        *,
        device: str,
        owner: str,
        records: Records,
        checkpoints: Checkpoints,
        trainer: Callable[[str], type[Trainer] | None],
        versions: Callable[[], dict[str, str]],
        nudge: Callable[[], None],
        lease_seconds: float,
        heartbeat_seconds: float,
        spare_overhead: float,
    ) -> None:
        self.name, self.device = name, device
        self._owner, self._records, self._log = owner, records, records.log
        self._saver = Saver(checkpoints)
        self._memory = ModelInMemory(name, device, checkpoints, trainer, versions)
        self._nudge = nudge
        self._lease_seconds, self._heartbeat_seconds = lease_seconds, heartbeat_seconds
        self._spare_overhead = spare_overhead
        self._run: Run | None = None
        self._held: list[Run] = []
        self._stopped = Flag()
        self._heart = Thread(target=self._beat_for_ever, name="heartbeat", daemon=True)

    def register(self) -> None:
        """Put the slot on record, free for work, and keep it alive."""
        with self._records.write() as rows:
            self._take(rows)
        self._heart.start()
        self._nudge()

    def _take(self, rows: Rows) -> None:
        before = rows.slots.get(self.name)
        host, pid = socket.gethostname(), os.getpid()
        instead_of = None if before is None else before.owner
        rows.slots.take(self.name, self._owner, instead_of=instead_of, device=self.device, host=host, pid=pid)

    def close(self) -> None:
        """Finish what is being saved, give back a chain whose next stage is not begun, and fall silent."""
        self._saver.wait()
        if self._run is not None:
            self._give_back(self._run, [*self._run.take_spares(), _ended(self._run, "stopped")])
            self._nudge()
        self._stopped.set()
        self._heart.join()

    # ------------------------------------------------------------------------------------------------ one stage

    def run_stage(self, chain: str, index: int) -> bool:
        """Train one stage of a chain; False if the message is stale or a copy, or the chain ended early.

        On False the next message of the chain must not be sent.
        """
        try:
            run = self._claim(chain) if index == 0 else self._run
        except ChainNotClaimable as refused:
            logger.info("%s", refused)
            return False
        if run is None or (run.chain, run.index) != (chain, index):
            logger.info("stage %s of chain %s is not ours to run", index, chain)
            return False
        try:
            self._train(run)
        except Fenced:
            self._abandon(run, "was lost to another worker")
        except Stopped:
            self._stop(run)
        except TrainerFailed as failed:
            self._fail(run, failed)
        except CheckpointLost as lost:
            self._report_lost_checkpoint(run, lost)
        except DatabaseUnavailable as problem:
            self._abandon(run, f"is given up: {problem}")
        except Exception:
            self._fail(run, TrainerFailed("internal", traceback.format_exc()))
        else:
            return True
        self._nudge()
        return False

    def _claim(self, chain: str) -> Run:
        with self._records.write() as rows:
            lease = rows.chains.claim(chain, self._owner, self._lease_seconds)
        work = Work.read(lease.assignment)
        timeline = Timeline(work.hp)
        run = Run(chain, lease.stream, lease.fence, work, timeline, lease.flags, step=work.stages[0].start)
        self._run, self._held = run, [*self._held, run]
        return run

    def _train(self, run: Run) -> None:
        stage = run.stage
        run.begun_at, run.idle_since, run.spare_seconds = time.monotonic(), None, 0.0
        self._tell_news(run)
        run.sound = stage.start if stage.start < stage.end else stage.start - 1
        model = self._memory.at_beginning(run)
        found: list[e.Event] = self._look(run, model) if stage.start == stage.end else []
        while model.step < stage.end:
            self._record(run, found)
            if found and model.step in run.beat.extra_eval_steps:
                self._nudge()
            found = self._step(run, model)
        state = _image(model) if stage.start < stage.end else None
        self._memory.stay(run, stage.end)
        self._complete(run, found, state)

    def _step(self, run: Run, model: Model) -> list[e.Event]:
        """Train one step and do what someone wants done after it; the facts that follow. Raises `Stopped`."""
        model.advance(run.timeline)
        run.step = model.step
        self._peek(run)
        found = self._look(run, model)
        run.sound = min(model.step, run.stage.end - 1)
        if run.beat.stop and model.step < run.stage.end:
            self._record(run, found)
            raise Stopped
        self._keep_spare(run, model)
        return found

    def _look(self, run: Run, model: Model) -> list[e.Event]:
        """Evaluate, and keep the state inside a stage, where someone wants that."""
        stage, step, marked = run.stage, model.step, model.step in run.beat.extra_eval_steps
        if marked and step < stage.end:
            self._keep(run, stage.node, step, _image(model))
        if not marked and step not in stage.evaluate:
            return []
        return [e.Evaluated(node=stage.node, step=step, metrics=model.evaluate())]

    def _complete(self, run: Run, found: Sequence[e.Event], state: bytes | None) -> None:
        """The stage is done; after the last one the slot is free, and the chain is closed when all is saved.

        Saving begins after that, so that the two do not wait for each other's transactions.
        """
        stage, last = run.stage, run.index + 1 == len(run.work.stages)
        warm = {"plan": run.work.plan, "node": stage.node, "step": stage.end}
        seconds = time.monotonic() - run.begun_at
        done = e.StageCompleted(chain=ChainId(run.chain), index=run.index, seconds=seconds)

        def mine(rows: Rows) -> None:
            if last:
                rows.chains.release(run.chain, run.fence, warm)
            else:
                rows.chains.advance(run.chain, run.fence, run.index + 1)

        self._write(run, [*found, *run.take_spares(), done], mine)
        run.index += 1
        if state is not None:
            self._keep(run, stage.node, stage.end, state)
        if last:
            self._run = None
            self._saver.submit(lambda: self._finish(run))
            self._nudge()
        else:
            run.idle_since, run.has_news = time.monotonic(), bool(found)

    def _tell_news(self, run: Run) -> None:
        if run.has_news:
            run.has_news = False
            self._nudge()

    # ------------------------------------------------------------------------------------------------ checkpoints

    def _keep(self, run: Run, node: NodeId, step: int, state: bytes) -> None:
        """Save a state in the background; it exists when the fact that names it is on record."""

        def kept(stored: Stored, _: float) -> None:
            self._note(run, e.CheckpointKept(node=node, step=step, **_fields(stored)))

        def failed(reason: str) -> None:
            self._note(run, e.CheckpointDropped(node=node, step=step, key="", reason=reason))

        self._saver.save(f"{run.work.plan}/{node}/{step}", state, kept, failed)

    def _keep_spare(self, run: Run, model: Model) -> None:
        """Save the state inside a stage as well, if that is cheap."""
        if not self._may_spare(run, model.step):
            return
        node, step, begun = run.stage.node, model.step, time.monotonic()
        state = _image(model)
        run.spare_seconds += time.monotonic() - begun

        def kept(stored: Stored, seconds: float) -> None:
            run.spare_seconds += seconds
            run.spare_size += stored.size
            run.spares.append(e.CheckpointKept(node=node, step=step, **_fields(stored), spare=True))

        self._saver.save(f"{run.work.plan}/{node}/{step}", state, kept, lambda reason: None)

    def _may_spare(self, run: Run, step: int) -> bool:
        stage = run.stage
        spacing = max(1, (stage.end - stage.start) // MOST_SPARES)
        is_due = step < stage.end and (step - stage.start) % spacing == 0 and step not in run.beat.extra_eval_steps
        is_cheap = run.spare_seconds <= self._spare_overhead * (time.monotonic() - run.begun_at)
        return is_due and is_cheap and run.spare_size < run.work.spare_bytes and self._saver.is_idle()

    def _finish(self, run: Run) -> None:
        """All is trained and saved."""
        ended = _ended(run, "done")
        try:
            self._write(run, [*run.take_spares(), ended], lambda rows: rows.chains.finish(run.chain, run.fence))
        except Fenced:
            logger.warning("chain %s was over before its last checkpoint was saved", run.chain)
        self._let_go(run)

    # ------------------------------------------------------------------------------------------------ facts and leases

    def _record(self, run: Run, facts: Sequence[e.Event]) -> None:
        """Put facts on record if the chain is still ours. Raises `Fenced`."""
        if facts:
            self._write(run, facts, lambda rows: rows.chains.guard(run.chain, run.fence))

    def _write(self, run: Run, facts: Sequence[e.Event], proof: Alongside) -> None:
        """Append facts with the proof of the right to state them; again when another transaction was faster."""
        for _ in range(WRITES):
            try:
                record(self._log, run.stream, facts, at=time.time(), alongside=proof)
                return
            except Conflict:
                continue
        raise DatabaseUnavailable(f"The facts of chain {run.chain} could not be written in {WRITES} attempts.")

    def _note(self, run: Run, fact: e.Event) -> None:
        """As `_record`, from the saver's thread: the training finds out by itself that the chain is lost."""
        try:
            self._record(run, [fact])
        except Fenced:
            run.lost = True
        if isinstance(fact, e.CheckpointDropped) or self._is_a_slot_idle():
            self._nudge()

    def _is_a_slot_idle(self) -> bool:
        """Whether anyone could begin where a checkpoint was just kept; who gets idle later asks for work by itself."""
        with self._records.read() as rows:
            return bool(rows.slots.free(self._lease_seconds))

    def _peek(self, run: Run) -> None:
        """What the tick wants of the chain by now. Raises `Fenced`."""
        if run.lost:
            raise Fenced(run.chain)
        if time.monotonic() - run.looked_at >= PEEK_SECONDS:
            with self._records.read() as rows:
                run.beat = rows.chains.flags(run.chain, run.fence)
            run.looked_at = time.monotonic()

    def _stop(self, run: Run) -> None:
        """Nobody wants the chain any more: keep what is there, so that nothing is lost, and free the slot."""
        self._keep(run, run.stage.node, run.step, _image(self._memory.stay(run, run.step)))
        self._saver.wait()
        self._end(run, "stopped")

    def _fail(self, run: Run, failed: TrainerFailed) -> None:
        logger.warning("stage %s of chain %s failed after step %s:\n%s", run.index, run.chain, run.sound, failed.error)
        self._memory.drop()
        self._saver.wait()
        fact = e.StageFailed(
            chain=ChainId(run.chain),
            index=run.index,
            step=run.sound,
            kind=failed.kind,
            error=failed.error,
            seconds=time.monotonic() - run.begun_at,
        )
        self._give_back(run, [*run.take_spares(), fact])

    def _report_lost_checkpoint(self, run: Run, lost: CheckpointLost) -> None:
        """The checkpoint to resume from is gone: it is struck from the plan, and its steps are trained again."""
        resume = run.work.resume
        assert resume is not None
        logger.warning("%s", lost)
        fact = e.CheckpointDropped(node=resume["node"], step=resume["step"], key=resume["key"], reason=str(lost))
        self._end(run, "stopped", fact)

    def _end(self, run: Run, outcome: str, *facts: e.Event) -> None:
        steps, seconds = run.step - run.stage.start, time.monotonic() - run.begun_at
        ended = e.ChainEnded(chain=ChainId(run.chain), outcome=outcome, steps=steps, seconds=seconds)
        self._give_back(run, [*run.take_spares(), *facts, ended])

    def _give_back(self, run: Run, facts: Sequence[e.Event]) -> None:
        """Last words about a chain that ends early."""
        try:
            self._write(run, facts, lambda rows: rows.chains.end(run.chain, run.fence))
        except Fenced:
            self._abandon(run, "was over already")
        self._let_go(run)

    def _abandon(self, run: Run, why: str) -> None:
        logger.warning("chain %s %s", run.chain, why)
        self._memory.distrust()
        self._let_go(run)

    def _let_go(self, run: Run) -> None:
        self._held = [held for held in self._held if held is not run]
        if self._run is run:
            self._run = None

    def _beat_for_ever(self) -> None:
        while not self._stopped.wait(self._heartbeat_seconds):
            try:
                with self._records.write() as rows:
                    rows.slots.touch(self.name, self._owner)
                for run in self._held:
                    self._beat(run)
            except DatabaseUnavailable as problem:
                logger.warning("no heartbeat: %s", problem)

    def _beat(self, run: Run) -> None:
        try:
            with self._records.write() as rows:
                rows.chains.heartbeat(run.chain, run.fence, self._lease_seconds, run.step)
            self._record(run, run.take_spares())
        except Fenced:
            run.lost = True
        idle_since = run.idle_since
        if idle_since and time.monotonic() - idle_since > self._lease_seconds and self._saver.is_idle():
            self._give_up(run)

    def _give_up(self, run: Run) -> None:
        """The message that starts the next stage did not come. If it does now, it is stale."""
        logger.warning("chain %s waited in vain for the message that starts stage %s", run.chain, run.index)
        self._give_back(run, [*run.take_spares(), _ended(run, "undelivered")])
        self._nudge()


def _ended(run: Run, outcome: str) -> e.ChainEnded:
    """The end of a chain between two stages."""
    return e.ChainEnded(chain=ChainId(run.chain), outcome=outcome)


def _image(model: Model) -> bytes:
    fd, size = model.save()
    with os.fdopen(fd, "rb") as file:
        return file.read(size)


def _fields(stored: Stored) -> dict[str, Any]:
    return {"key": stored.key, "sha256": stored.sha256, "size": stored.size}
