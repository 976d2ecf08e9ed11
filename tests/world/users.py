"""The users of a simulated world, and the APIs that they call: several servers of one database.

A command has a key. A user without an answer asks again, through any API, and an impatient one asks at both at once:
it must be done once, and all callers get the same answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stacks import Json

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.terms import StateConflict, StudyId, TrialState
from app.events.log import Idempotency, StoredEvent, VersionConflict
from app.events.plans import Plans
from app.events.records import Write, transact
from app.outages import DatabaseUnavailable
from app.registry import TrainerSource
from app.service.submission import opening_event, plan_name
from app.workers.threads import Flag
from stagetree.spec import StudySpec

if TYPE_CHECKING:
    from tests.world.system import Member, World


PATIENCE = 20.0
"""The longest wait for an answer, in seconds."""

AGAIN = 1.0
"""Seconds before the next attempt."""


class Request:
    """A command on its way. answer: the recorded one; None where there was nothing to do any more."""

    def __init__(self, key: str, make: Callable[[], Write], done: Flag) -> None:
        self.key, self.make, self.done = key, make, done
        self.answer: Sequence[StoredEvent] | None = None
        self.is_answered = False


class Doors:
    """The APIs. Each is a process with plans of its own, which may be behind."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: dict[str, deque[Request]] = {}
        self._flags: dict[str, Flag] = {}
        self.answers: dict[str, Sequence[StoredEvent]] = {}

    def serve(self, me: Member) -> None:
        """Be the API of that name. Open requests of the one before it are lost."""
        waiting, asked = deque[Request](), me.fibers_of.flag()
        self._waiting[me.name], self._flags[me.name] = waiting, asked
        plans = Plans(me.records.log, clock=self._world.time.clock)
        while True:
            asked.wait()
            asked.clear()
            while waiting:
                request = waiting.popleft()
                me.fibers_of.spawn("request", lambda request=request: self._answer(me, plans, request))  # type: ignore[misc]

    def ask(self, door: str, request: Request) -> None:
        """The request is lost while that API is down."""
        if door in self._flags:
            self._waiting[door].append(request)
            self._flags[door].set()

    def _answer(self, me: Member, plans: Plans, request: Request) -> None:
        me.effects.moment("before an answer")
        try:
            recorded = transact(me.records.log, plans, request.make(), pause=me.rest)
        except StateConflict:
            recorded = None
        except (DatabaseUnavailable, VersionConflict):
            return  # like an error: the user asks again
        self._world.database.catch_up()  # lost commands must be sent again
        me.effects.moment("after a command")
        if self._world.faults.strikes("client's answer is lost", f"{me.name}, {request.key}"):
            return
        if recorded is not None:
            before = self.answers.setdefault(request.key, recorded)
            assert before == recorded, f"{request.key} was answered with {recorded} after {before}"
        request.answer, request.is_answered = recorded, True
        request.done.set()


class Users:
    """Submit the studies of a world, and change their minds about some of them.

    submitted, streams: the id and the plan of each study, by its number. wanting: how many of them will ask for more.
    """

    def __init__(self, world: World, sources: dict[str, TrainerSource]) -> None:
        self._world, self._sources = world, sources
        self.doors = Doors(world)
        self.submitted: dict[int, StudyId] = {}
        self.streams: dict[int, str] = {}
        self.wanting = sum(map(bool, world.setting.averages))

    def are_content(self) -> bool:
        """Whether all averages were requested and taken."""
        return not self.wanting

    def submit_all(self, me: Member) -> None:
        """Each after its time, until it is accepted."""
        world = self._world
        for number, spec in enumerate(world.setting.studies):
            world.time.wait(world.setting.gaps[number])
            self._submit(me, number, spec)
            if world.setting.averages and world.setting.averages[number]:
                me.fibers_of.spawn("averages", lambda number=number: self._average(me, number))  # type: ignore[misc]
            if world.setting.whims and world.setting.whims[number] != "wait":
                me.fibers_of.spawn("user", lambda number=number: self._change_mind(me, number))  # type: ignore[misc]

    def _change_mind(self, me: Member, number: int) -> None:
        study, world = self.submitted[number], self._world
        world.time.wait(float(world.time.chance.random()) * 60)
        if world.setting.whims[number] == "cancel":
            self._command(me, number, c.CancelStudy(study=study, at=world.wall_clock()))
            return
        self._command(me, number, c.PauseStudy(study=study))
        world.time.wait(float(world.time.chance.random()) * 60)
        self._command(me, number, c.ResumeStudy(study=study))

    def _average(self, me: Member, number: int) -> None:
        """Of trials that have come to their end; again as long as their plan is archived."""
        study, world = self.submitted[number], self._world
        for place, each in enumerate(world.setting.averages[number]):
            while not self._are_completed(number, each.trials):
                world.time.wait(AGAIN)
            world.time.wait(float(world.time.chance.random()) * 40)
            wanted = c.AverageTrials(study=study, trials=each.trials, steps=each.steps, time=world.wall_clock())
            while self._command(me, number, wanted, f"average {place}") is None:
                world.time.wait(AGAIN)
        self.wanting -= 1

    def _are_completed(self, number: int, numbers: Sequence[int]) -> bool:
        trials = self._world.study(number).trials
        return all(each < len(trials) and trials[each].state == TrialState.COMPLETED for each in numbers)

    def _command(self, me: Member, number: int, asked: c.Command, name: str = "") -> Sequence[StoredEvent] | None:
        self._world.faults.tell(f"asked: {asked}")
        key = f"api:{number}:{name or type(asked).__name__}"
        return self._ask(me, key, lambda: self._write(self.streams[number], asked, key))

    def _submit(self, me: Member, number: int, spec: Json) -> None:
        checked, world, key = StudySpec.from_dict(spec), self._world, f"api:{number}"
        plan = opening_event(checked, self._sources[checked.trainer])
        stream = plan_name(plan)

        def make() -> Write:
            study = StudyId(f"{world.time.chance.getrandbits(32):08x}")
            command = c.SubmitStudy(plan=plan, study=study, spec=checked.to_json(), at=world.wall_clock())
            return self._write(stream, command, key)

        while (recorded := self._ask(me, key, make)) is None:  # the plan is archived
            world.time.wait(AGAIN)
        (taken,) = [each.event.study for each in recorded if isinstance(each.event, e.StudySubmitted)]
        self.streams[number], self.submitted[number] = stream, taken

    def _write(self, stream: str, command: c.Command, key: str) -> Write:
        return Write(
            stream=stream,
            decide=lambda plan: decide(plan, command),
            at=self._world.wall_clock(),
            idempotency=Idempotency(key),
        )

    def _ask(self, me: Member, key: str, make: Callable[[], Write]) -> Sequence[StoredEvent] | None:
        """By any door, until there is an answer."""
        chance, doors = self._world.time.chance, [f"api-{number}" for number in range(self._world.setting.apis)]
        while True:
            request = Request(key, make, me.fibers_of.flag())
            is_doubled = self._world.faults.strikes("command comes twice", key)
            for door in doors if is_doubled else [chance.choice(doors)]:
                self.doors.ask(door, request)
            request.done.wait(PATIENCE)
            if request.is_answered:
                return request.answer
            self._world.time.wait(AGAIN)
