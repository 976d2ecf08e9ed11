"""The process that trains and the one model in it: the next stage continues with it, without reading a checkpoint.

Each chain begins in a process that has trained nothing: a fork of a template that has built the trainer, or, where
there can be no template, a process that builds it. Only a chain that resumes where the model in memory is continues in
its process, since that is the same training.

After an error in a call, the process is not used again.

Runs on: the thread that trains; the heartbeat's reads `busy_since` and `resident_bytes`, and calls `kill`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from app.domain.chain_assignment import ChainAssignment, LentSlots, ResumePoint
from app.registry import TrainerSource
from app.workers.preparation import Preparation
from app.workers.slot.beginnings import Built, ModelMisplaced, beginning, build_arguments, source_of, template_key
from app.workers.slot.beginnings import Place as Place
from app.workers.slot.claim import ChainStopped, NoTrainerProcess, RanksUnavailable, TrainerVersionMismatch
from app.workers.slot.retry import Clock, Instant
from app.workers.state import State
from app.workers.template import Fork, TemplateKey, Templates
from app.workers.trainer_client import TrainerClient
from app.workers.trainer_connection import CLOSE_SECONDS, Deadline, TrainerKilled
from app.workers.trainer_process import TrainerProcess
from app.workers.trial_logs import StageFiles
from app.workers.warm import MemoryWatch, WarmFailed
from stagetree.runtime.commands import Evaluation, Json, Trained, call_with
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.inexact_reasons import used

if TYPE_CHECKING:
    from app.workers.trainer_client import Child

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

STDERR = 2

LEAST_FREE_BYTES = 2**30
"""This much more than a training's peak must be free, or the next process starts only after it."""


class TrainerHost:
    """start: starts a fresh process; with the slots lent to a chain, it has a rank on each device: see `TrainerGroup`.
    sources: this slot's trainers by name.
    silence_seconds: the shortest silence after which a process counts as hung.
    growth_bytes: how much the memory of a process may grow.

    `busy_since` is when the current call began; None while there is none. `has_failed` is whether user code has failed
    in the present process, which other lanes still use.
    `inexact_reasons` say how the stage's first state was made elsewhere: see `stagetree.runtime.inexact_reasons`.
    `shares_process`: whether another chain has trained in the process before.
    """

    def __init__(
        self,
        start: Callable[..., TrainerClient],
        sources: Callable[[], Mapping[str, TrainerSource]],
        silence_seconds: float,
        clock: Clock,
        growth_bytes: int = 2**30,
    ) -> None:
        self._start, self._sources, self._silence_seconds, self._clock = start, sources, silence_seconds, clock
        self._process: TrainerClient | None = None
        self._deadlines: dict[str, Deadline] = {}
        self.busy_since: Instant | None = None
        self.has_failed = False
        self._memory, self._templates = MemoryWatch(growth_bytes), Templates()
        self._source: TrainerSource | None = None  # imported by the process
        self._lent: LentSlots = ()  # the slots lent to the process
        self._built: Built | None = None
        self._template: TemplateKey | None = None  # that the process was forked from
        self._key: TemplateKey | None = None  # that the process built for its first chain
        self._fresh_seconds: dict[TemplateKey, float] = {}  # the last start and build of a process
        self._has_room: dict[TemplateKey, bool] = {}  # whether there is memory for a second process
        self._preparation: Preparation | None = None
        self._place: Place | None = None  # None while it trains, and when unknown
        self._written = list[Any]()
        self.inexact_reasons: tuple[str, ...] = ()
        self.shares_process = False

    @property
    def versions(self) -> dict[str, str]:
        """The version of each of this slot's trainers."""
        return {name: source.version for name, source in self._sources().items()}

    def begin(
        self, work: ChainAssignment, index: int, read: Callable[[ResumePoint], State], log: StageFiles | None
    ) -> None:
        """Place the model where stage `index` begins. read: fetches a checkpoint.

        A chain keeps the code that it began with, even if the files change. Raises `TrainerVersionMismatch`,
        `NoTrainerProcess`, `ModelMisplaced`, `TrainerFailed`, and what `read` does.
        """
        source = (index > 0 and self._source) or source_of(work, self._sources())
        built = Built.from_assignment(source, work)
        place, self._place = self._place, None
        is_there = self._built == built and place is not None and place == beginning(work, index)
        self.inexact_reasons = ()
        if index > 0 and not is_there:
            raise ModelMisplaced(f"the model in memory is at {place}, not at {beginning(work, index)}")
        if is_there and (index > 0 or self._may_resume(work)):
            self.print_to(log)
            return
        if work.alone or work.members:
            self.begin_independently(work, read, log)
            return
        key = template_key(source, work)
        self.shares_process = self._may_share(work, key)
        if self.shares_process:
            self._build_here(work, built, log)
        else:
            self.end_process()
            self._begin_in_fork(work, key, log)
        self.load(work, read)
        process = self._process
        if self.shares_process and process is not None and process.leader.left:  # a chain alone would not find these
            self.begin_independently(work, read, log)

    def begin_independently(
        self, work: ChainAssignment, read: Callable[[ResumePoint], State], log: StageFiles | None
    ) -> None:
        """Place the model where the chain begins, in a fresh process that imports and builds it by itself.

        It shares nothing with an earlier process, such as addresses of objects. Raises as `begin`.
        """
        source = source_of(work, self._sources())
        self.inexact_reasons, self.shares_process = (), False
        self.end_process()
        self._lent = work.lent_slots
        self._build_here(work, Built.from_assignment(source, work), log)
        self.load(work, read)

    def build_lane(self, work: ChainAssignment, tolerated: Container[str]) -> None:
        """Build a model in the process to join a pack, before its first step. tolerated: as for `call`.

        Raises `TrainerVersionMismatch`, `NoTrainerProcess`, `TrainerFailed`.
        """
        built = Built.from_assignment(source_of(work, self._sources()), work)
        self._place = None
        if self._source != built.source or self._lent:  # a process serves one trainer, in one version, on its devices
            self.end_process()
        if self._process is None:
            self._start_process(self._lent)
        self._build(work, built, tolerated, names=sorted(work.hp), is_resumed=bool(work.resume or work.mean))
        self._built = None  # it will belong to the pack

    def load(self, work: ChainAssignment, read: Callable[[ResumePoint], State], tolerated: Container[str] = ()) -> None:
        """Load the state with which the chain begins, or one after the other the states to be averaged.

        tolerated: as for `call`. Raises `TrainerFailed`, and what `read` does.
        """
        for number, point in enumerate(work.reads):
            with closing(read(point)) as state:
                self._load(work, state, number, tolerated)

    def _load(self, work: ChainAssignment, state: State, number: int, tolerated: Container[str]) -> None:
        """At step 0, `state` has the weights that the chain begins with."""
        if work.resume is None and work.begin is not None:
            self.commands(tolerated).begin(fds=state.lend(), hp=dict(work.hp), whole=bool(work.begin["state"]))
            return
        mean: Any = {"weight": work.mean[number][1], "left": len(work.mean) - number - 1} if work.mean else {}
        start, hp = work.stages[0].start, dict(work.hp)
        reasons = self.commands(tolerated).load(fds=state.lend(), hp=hp, step=start, **mean)
        self.inexact_reasons = tuple(dict.fromkeys((*(self.inexact_reasons if number else ()), *reasons)))

    def train(self, work: ChainAssignment, until: int, on_progress: Callable[[int], int | None]) -> Trained:
        """Train to step `until`, or until `on_progress` ends it. Raises `TrainerFailed`."""
        deadline = self.deadline("train").limit_steps(is_patient=work.patient)

        def look(step: int) -> int | None:
            self._templates.kill_late_fork()
            return on_progress(step)

        self._prepare_next(work)
        try:
            trained = self.call(lambda p: p.train(work.hp, until, work.next_stop, deadline=deadline, on_progress=look))
        except TrainerFailed as failed:
            if failed.kind == "out_of_memory" and self._preparation is not None:
                self._has_room[self._preparation.key] = False
                self._drop_preparation()
                raise TrainerFailed("internal", f"{failed.error}\n\nThe next process was beside it.") from failed
            raise
        if self._key is not None and trained.free_bytes:
            has_room = trained.free_bytes >= trained.peak_bytes + LEAST_FREE_BYTES
            self._has_room[self._key] = self._has_room.get(self._key, True) and has_room
        return trained

    def uses(self) -> Mapping[str, Any]:
        """The files that the process has opened since the last call, and those `written` by earlier processes."""
        uses = self._process.leader.take_uses() if self._process is not None else {"read": [], "written": []}
        written, self._written = [*self._written, *uses["written"]], []
        return {**uses, "written": written}

    def set_place(self, place: Place) -> None:
        """Record that the model has been trained to that place."""
        self._place = place
        self._memory.note(self._built, self.call(lambda process: process.resident_bytes()))

    def check(self) -> None:
        """Check that a fresh process starts and its device works. Raises `NoTrainerProcess`."""
        self.close()
        self._start_process(self._lent)

    def _start_process(self, lent: LentSlots) -> None:
        """First end all other processes, such as ending forks and prepared ones, whose memory may be needed; for
        ranks also the templates, since they begin on empty devices. Raises `NoTrainerProcess`, `RanksUnavailable`.
        """
        self._drop_preparation()
        if lent:
            self._templates.close()
        self._templates.await_ending_fork()
        try:
            self._process = self._start(*lent)
        except (WarmFailed, TrainerFailed) as failed:
            is_of_ranks = isinstance(failed, TrainerFailed) and failed.kind == "rank"
            raise (RanksUnavailable if is_of_ranks else NoTrainerProcess)(str(failed)) from failed

    def _may_share(self, work: ChainAssignment, key: TemplateKey) -> bool:
        """Whether a chain may use the process in which another chain was trained, because a fresh one would take
        too much of its time.
        """
        if self._preparation is not None and self._preparation.key == key:
            return False
        seconds, most = self._fresh_seconds.get(key, 0.0), work.most_fresh_seconds
        is_there = self._process is not None and self._key == key and self._lent == work.lent_slots
        is_affordable = most is not None and seconds > most and not self._templates.can_be_built(key)
        return is_there and is_affordable and not self._memory.has_grown and work.proof is None

    def _may_resume(self, work: ChainAssignment) -> bool:
        """Whether the chain may continue with the model in memory, which is where the chain begins."""
        grown = self._memory.growth / 2**20
        if self._memory.has_grown:
            logger.warning("the trainer's process has grown by %.0f MiB since its first stages: it is replaced", grown)
        return not (self._memory.has_grown or work.alone) and self._lent == work.lent_slots

    def close(self) -> None:
        """End all processes."""
        self._drop_preparation()
        self.end_process()
        self._templates.close()

    def end_process(self) -> None:
        """End the process, which frees its memory, also on the GPU.

        A fork ends while the next chain begins: on a CPU, memory for two is available.
        """
        process, self._process = self._process, None
        has_failed, self.has_failed = self.has_failed, False
        self._built, self._place, self._source, self._lent = None, None, None, ()
        self._template, self._key = None, None
        self._memory.begin()
        self._deadlines.clear()
        if process is None:
            return
        self._written += process.leader.take_uses()["written"]
        if isinstance(process, Fork) and not has_failed:
            self._templates.end(process)
        else:
            process.close(CLOSE_SECONDS)

    def _give_up(self, error: BaseException) -> None:
        """Stop using the process."""
        template = self._template
        self.end_process()
        if template is not None and isinstance(error, TrainerFailed):
            self._templates.drop(template)

    # ------------------------------------------------------------------------------------------------ a model anew

    def _begin_in_fork(self, work: ChainAssignment, key: TemplateKey, log: StageFiles | None) -> None:
        """Fork the template, which the first chain builds. If there can be none, build in a fresh process."""
        built = Built.from_assignment(key.source, work)
        fork = self._fork(key, built)
        printed = self._use_prepared(key, built, work) if fork is None else fork.printed
        if printed is not None:
            if log is not None:
                log.add(printed)
            self.print_to(log)
            return
        size, begun_at = 0 if log is None else log.size(), self._clock()
        self._build_here(work, built, log)
        self._key, self._fresh_seconds = (
            key,
            dict([*self._fresh_seconds.items(), (key, self._clock() - begun_at)][-64:]),
        )
        if self._templates.can_be_built(key):
            self._become_template(key, b"" if log is None else log.read_since(size))
            if self._process is not None or self._fork(key, built) is not None:
                self.print_to(log)
            else:
                self._build_here(work, built, log)

    def _become_template(self, key: TemplateKey, printed: bytes) -> None:
        """Turn the process that has just built the model into a template, if that is safe. printed: its output."""
        process, deadline = self._process, self.deadline("build")
        unsafe, files = self.call(lambda process: process.call(deadline).become_template(fds=[STDERR]))
        if unsafe:
            self._templates.refuse(key, unsafe)
        elif isinstance(process, TrainerProcess):
            self._process = None
            self._templates.add(key, process, printed, files)

    def _fork(self, key: TemplateKey, built: Built) -> Fork | None:
        """Use a fork of the template, if there is one."""
        fork = self._templates.fork(key)
        if fork is not None:
            self._process, self._built, self._source, self._template = fork, built, key.source, key
            self._deadlines.clear()
        return fork

    def _prepare_next(self, work: ChainAssignment) -> None:
        """Let a second process build the same trainer for the next chain, if there is memory for two."""
        key = self._key
        if self._preparation is None and key is not None and self._has_room.get(key) and not self._lent:
            build, deadline = build_arguments(key.source, work), Deadline(self._silence_seconds)
            self._preparation = Preparation(key, self._start, lambda process: process.ask("build", build, deadline))

    def _use_prepared(self, key: TemplateKey, built: Built, work: ChainAssignment) -> bytes | None:
        """Use the prepared process, if there is one; returns its output."""
        preparation, self._preparation = self._preparation, None
        if preparation is None:
            return None
        if preparation.key != key or work.lent_slots:
            preparation.drop()
            return None
        if (ready := preparation.take()) is not None:
            self._process, self._built, self._source, self._key = ready[0], built, key.source, key
            self._deadlines.clear()
        return ready and ready[1]

    def _drop_preparation(self) -> None:
        preparation, self._preparation = self._preparation, None
        if preparation is not None:
            preparation.drop()

    def _build_here(self, work: ChainAssignment, built: Built, log: StageFiles | None) -> None:
        """Build a model in the present process, or in a fresh one."""
        if self._process is None:
            self._start_process(self._lent)
        self.print_to(log)
        self._build(work, built)

    def _build(self, work: ChainAssignment, built: Built, tolerated: Container[str] = (), **lane: Any) -> None:
        self._built, self._source = None, built.source
        self._deadlines.clear()  # another model has its own speed
        self.commands(tolerated).build(**build_arguments(built.source, work), **lane)
        if self._sources().get(work.trainer) != built.source:
            self.end_process()
            raise TrainerVersionMismatch(f"the code of trainer {work.trainer!r} was changed while it was loaded")
        self._built = built

    # ------------------------------------------------------------------------------------------------ calls

    @property
    def operations(self) -> tuple[str, ...]:
        """Why the model's results are not exact: a reason for each operation without a deterministic form."""
        return () if self._process is None else tuple(map(used, self._process.leader.not_exact))

    @property
    def resident_bytes(self) -> int:
        """The memory of the process; 0 if there is none. From any thread."""
        process = self._process
        return 0 if process is None else process.resident_bytes()

    def commands(self, tolerated: Container[str] = ()) -> Child:
        """The commands as methods, each with its own deadline. Raises as `call`."""

        def ask(do: str, given: Json) -> Any:
            return self.call(lambda process: process.ask(do, given, self.deadline(do)), tolerated)

        commands: Child = call_with(ask)
        return commands

    def evaluate(self, *, watch: bool = False, look: bool | None = None) -> Evaluation:
        """The model's metrics. watch, look: as for `TrainerClient.evaluate`. Raises as `call`."""
        deadline = self.deadline("evaluate")
        return self.call(lambda process: process.evaluate(deadline=deadline, watch=watch, look=look))

    def save(self, *, look: bool = False, lane: int | None = None, tolerated: Container[str] = ()) -> State:
        """The state of the model; look: as for `Child.save`. Raises as `call`."""
        return self.call(lambda process: process.save(deadline=self.deadline("save"), look=look, lane=lane), tolerated)

    def kill(self) -> None:
        """End the process during any call. From any thread."""
        if (process := self._process) is not None:
            process.kill()

    def print_to(self, log: StageFiles | None, lane: int | None = None) -> None:
        """Redirect the output of the trainer, or of a `lane`'s, to these files; None: to the slot's own log."""

        def tell(process: TrainerClient) -> None:
            assert log is not None
            try:
                process.log(log.printed, log.rows, lane)
            except OSError as problem:
                logger.warning("what the trainer prints is not kept in %s: %s", log.printed, problem)

        if log is not None:
            self.call(tell)

    @property
    def process(self) -> TrainerClient | None:
        """The present process."""
        return self._process

    def call(self, do: Callable[[TrainerClient], Result], tolerated: Container[str] = ()) -> Result:
        """Call the process; after an error it is not used again. tolerated: kinds of failures that leave it intact.

        Raises `TrainerFailed`, and `ChainStopped` if `kill` ended the process.
        """
        process = self._process
        if process is None:
            raise ModelMisplaced("there is no process with a model")
        self.busy_since = self._clock()
        try:
            return do(process)
        except BaseException as error:
            self.has_failed = True
            if not (isinstance(error, TrainerFailed) and error.kind in tolerated):
                self._give_up(error)
            if isinstance(error, TrainerKilled):
                raise ChainStopped from error
            raise
        finally:
            self.busy_since = None

    def deadline(self, kind: str) -> Deadline:
        """The deadline of one kind of call, learned as long as the process lives."""
        return self._deadlines.setdefault(kind, Deadline(self._silence_seconds))
