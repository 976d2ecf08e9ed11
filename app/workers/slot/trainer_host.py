"""Runs on: the thread that trains; the heartbeat's reads `busy_since` and calls `kill`.

The process that trains, and the one model in it: the next stage goes on with it, and no checkpoint is read.

A fresh process is started for another trainer file or version, after any failure, when asked, and between two chains
if the one before has kept more and more memory, or has left something in the process that the next one would find.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from contextlib import closing, suppress
from typing import Any, TypeVar

from app.domain.assignment import ChainAssignment, Lent, ResumePoint
from app.registry import TrainerSource
from app.workers.slot.beginnings import Built, ModelMisplaced, arguments, beginning, source_of
from app.workers.slot.beginnings import Place as Place
from app.workers.slot.claim import NoRanks, NoTrainerProcess, OtherVersion, Stopped
from app.workers.slot.retry import Clock, Instant
from app.workers.state import State
from app.workers.trainer_connection import Deadline, TrainerKilled
from app.workers.trainer_process import TrainedTo, TrainerProcess
from app.workers.trial_logs import StageFiles
from app.workers.warm import MemoryWatch, WarmFailed
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.inexact import used

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

CLOSE_SECONDS = 1.0
"""A process that is not wanted any more has so long to end by itself."""


class TrainerHost:
    """start: a fresh process; called with what is lent to a chain, it has a rank on each device: see `TrainerGroup`.
    sources: the trainers that this slot has, by name. silence_seconds: how long a process may be silent before it
    counts as hung, at least. growth_bytes: by how much its memory may grow.

    `busy_since` is when the call under way began, by the clock; None while there is none. `inexact_reasons` say how the
    state that the stage under way was begun with was made elsewhere: see `stagetree.runtime.inexact`. `has_failed` is
    whether the user's code has failed in the process that is there, which others still use.
    """

    def __init__(
        self,
        start: Callable[..., TrainerProcess],
        sources: Callable[[], Mapping[str, TrainerSource]],
        silence_seconds: float,
        clock: Clock,
        growth_bytes: int = 2**30,
    ) -> None:
        self._start, self._sources, self._clock = start, sources, clock
        self._memory = MemoryWatch(growth_bytes)
        self._silence_seconds = silence_seconds
        self._process: TrainerProcess | None = None
        self._source: TrainerSource | None = None  # of what the process has imported
        self._lent: Lent = ()  # the slots that are lent to it
        self._built: Built | None = None
        self._place: Place | None = None  # None while it is on its way, and when it cannot be relied on
        self._deadlines: dict[str, Deadline] = {}
        self.busy_since: Instant | None = None
        self.has_failed = False
        self._written = list[Any]()
        self.inexact_reasons: tuple[str, ...] = ()

    @property
    def operations(self) -> tuple[str, ...]:
        """Why what the model did is not exact: a reason for each operation without a deterministic form."""
        return () if self._process is None else tuple(map(used, self._process.not_exact))

    @property
    def versions(self) -> dict[str, str]:
        """The version of each trainer that this slot has."""
        return {name: source.version for name, source in self._sources().items()}

    def begin(
        self, work: ChainAssignment, index: int, read: Callable[[ResumePoint], State], log: StageFiles | None
    ) -> None:
        """Have the model where stage `index` begins, on its way from here on. read: fetches a checkpoint.

        A chain goes on with the code that it began with, whatever becomes of the files meanwhile.
        Raises `OtherVersion`, `NoTrainerProcess`, `ModelMisplaced`, `TrainerFailed`, and what `read` does.
        """
        source = (index > 0 and self._source) or source_of(work, self._sources())
        built = Built.of(source, work)
        place, self._place = self._place, None
        self.inexact_reasons = ()
        if index == 0:
            self._replace_if_grown(work.alone)
        self._end_another(built.source, work.lent)
        fits = self._built == built
        if fits and place is not None and place == beginning(work, index):
            self.print_to(log)
        elif index > 0:
            raise ModelMisplaced(f"the model in memory is at {place}, not at {beginning(work, index)}")
        else:
            self._renew(work, built, fits, read, log)

    def build_lane(self, work: ChainAssignment, tolerated: Container[str]) -> None:
        """Have a new model in the process, before its first step, to join a pack there. tolerated: as of `call`.

        Raises `OtherVersion`, `NoTrainerProcess`, `TrainerFailed`.
        """
        built = Built.of(source_of(work, self._sources()), work)
        self._place = None
        self._end_another(built.source)
        if self._process is None:
            self._fresh_process()
        self._build(work, built, tolerated, names=sorted(work.hp), is_resumed=bool(work.resume or work.mean))
        self._built = None  # it will be the pack's

    def load(self, work: ChainAssignment, read: Callable[[ResumePoint], State], tolerated: Container[str] = ()) -> None:
        """Have the model where the chain begins; of states whose mean that is, one is read after the other. tolerated:
        as of `call`. Raises `TrainerFailed`, and what `read` does.
        """
        for number, point in enumerate(work.reads):
            with closing(read(point)) as state:
                self._load(work, state, number, tolerated)

    def _load(self, work: ChainAssignment, state: State, number: int, tolerated: Container[str]) -> None:
        """At step 0, `state` has the weights that the chain begins with."""
        if work.resume is None and work.begin is not None:
            whole, waits = bool(work.begin["state"]), self.deadline("begin")
            self.call(lambda process: process.begin(state, work.hp, whole=whole, deadline=waits), tolerated)
            return
        step, deadline = work.stages[0].start, self.deadline("load")
        mean = {"weight": work.mean[number][1], "left": len(work.mean) - number - 1} if work.mean else {}
        reasons = self.call(lambda process: process.load(state, work.hp, step, deadline=deadline, **mean), tolerated)
        self.inexact_reasons = tuple(dict.fromkeys((*(self.inexact_reasons if number else ()), *reasons)))

    def train(self, work: ChainAssignment, until: int, on_progress: Callable[[int], int | None]) -> TrainedTo:
        """Train on until that step, or until `on_progress` says. Raises `TrainerFailed`."""
        deadline = self.deadline("train").of_steps(is_patient=work.patient)
        return self.call(lambda p: p.train(work.hp, until, work.ahead, deadline=deadline, on_progress=on_progress))

    def evaluate(self) -> dict[str, float | None]:
        """The metrics of the model where it is. Raises `TrainerFailed`."""
        return self.call(lambda process: process.evaluate(deadline=self.deadline("evaluate")))

    def save(self) -> State:
        """The state of the model where it is. Raises `TrainerFailed`."""
        return self.call(lambda process: process.save(deadline=self.deadline("save")))

    def uses(self) -> Mapping[str, Any]:
        """The files that the process has opened since the last time, and what processes before it had `written`. Raises
        `TrainerFailed`."""
        uses: Mapping[str, Any] = {}
        if self._process is not None and self._process.opened:
            uses = self.call(lambda process: process.uses(deadline=self.deadline("look")))
        written, self._written = [*self._written, *uses.get("written", ())], []
        return {**uses, "written": written}

    def uses_before(self) -> Mapping[str, Any]:
        """The same at the beginning of a chain. A process that does not answer is replaced, and nothing is known."""
        try:
            return self.uses()
        except TrainerFailed as failed:
            logger.warning("the trainer's process is replaced: %s", failed)
            return {}

    def mark_at(self, place: Place) -> None:
        """The model has been trained to that place, and stays there."""
        self._place = place
        self._memory.note(self._built, self.call(lambda process: process.resident_bytes()))

    def check(self) -> None:
        """Whether a fresh process starts and its device works. Raises `NoTrainerProcess`."""
        self.end_process()
        self._fresh_process()

    def kill(self) -> None:
        """End the process in the middle of whatever it does. From any thread."""
        if (process := self._process) is not None:
            process.kill()

    def _end_another(self, source: TrainerSource, lent: Lent = ()) -> None:
        """A process serves one trainer, in one version, on the same devices."""
        if self._source != source or self._lent != lent:
            self.end_process()
        self._lent = lent

    def _replace_if_grown(self, is_wanted: bool) -> None:
        grown = self._memory.growth / 2**20
        if self._memory.has_grown:
            logger.warning("the trainer's process has grown by %.0f MiB since its first stages: it is replaced", grown)
        if self._memory.has_grown or is_wanted:
            self.end_process()

    def end_process(self) -> None:
        """Its memory, of the GPU as well, is free after that."""
        process, self._process = self._process, None
        if process is not None and process.opened and not self.has_failed:
            with suppress(TrainerFailed):  # it has died
                self._written += process.uses(deadline=self.deadline("look"))["written"]
        self.has_failed = False
        self._built, self._place, self._source, self._lent = None, None, None, ()
        self._deadlines.clear()
        self._memory.begin()
        if process is not None:
            process.close(CLOSE_SECONDS)

    # ------------------------------------------------------------------------------------------------ a model anew

    def _renew(
        self,
        work: ChainAssignment,
        built: Built,
        fits: bool,
        read: Callable[[ResumePoint], State],
        log: StageFiles | None,
    ) -> None:
        if self._process is None:
            self._fresh_process()
        self.print_to(log)
        if work.resume is None or not fits:
            self._build(work, built)
        self.load(work, read)
        if work.proof is None and self.call(lambda process: process.left):  # alone, it would not find that there
            self.end_process()
            self._renew(work, built, False, read, log)  # in a fresh process nothing is left

    def _build(self, work: ChainAssignment, built: Built, tolerated: Container[str] = (), **lane: Any) -> None:
        self._built, self._source = None, built.source
        self._deadlines.clear()  # another model takes its own time
        path, args, deadline = built.source.path, arguments(work), self.deadline("build")
        how = {"deadline": deadline, "determinism": work.determinism, **lane}
        how |= {"shards": work.shards, "parallel": work.parallel} if work.shards or work.parallel != "tree" else {}
        self.call(lambda process: process.build(path, work.trainer, args, work.seed, **how), tolerated)
        if self._sources().get(work.trainer) != built.source:
            self.end_process()
            raise OtherVersion(f"the code of trainer {work.trainer!r} was changed while it was loaded")
        self._built = built

    def _fresh_process(self) -> None:
        try:
            self._process = self._start(*self._lent)
        except (WarmFailed, TrainerFailed) as failed:
            raise (NoRanks if getattr(failed, "kind", "") == "rank" else NoTrainerProcess)(str(failed)) from failed

    def print_to(self, log: StageFiles | None, **lane: int) -> None:
        """What the trainer, or that of a `lane`, prints goes there; else where the slot's own log is."""

        def tell(process: TrainerProcess) -> None:
            assert log is not None
            try:
                process.log(log.printed, log.rows, **lane)
            except OSError as problem:
                logger.warning("what the trainer prints is not kept in %s: %s", log.printed, problem)

        if log is not None:
            self.call(tell)

    @property
    def process(self) -> TrainerProcess | None:
        """The one that is there: another, once it was ended."""
        return self._process

    def call(self, do: Callable[[TrainerProcess], Result], tolerated: Container[str] = ()) -> Result:
        """Whatever goes wrong in a call, that process is used no more. tolerated: kinds of failures that do it no harm.
        Raises `TrainerFailed`, and `Stopped` where `kill` has ended the process."""
        process = self._process
        if process is None:
            raise ModelMisplaced("there is no process with a model")
        self.busy_since = self._clock()
        try:
            return do(process)
        except BaseException as error:
            self.has_failed = True
            if not (isinstance(error, TrainerFailed) and error.kind in tolerated):
                self.end_process()
            if isinstance(error, TrainerKilled):
                raise Stopped from error
            raise
        finally:
            self.busy_since = None

    def deadline(self, kind: str) -> Deadline:
        """What is learnt of one kind of call is kept as long as the process."""
        return self._deadlines.setdefault(kind, Deadline(self._silence_seconds))
