"""Runs on: the tick's thread.

Asks the tuners what they want next, and puts it on record. What a tuner thinks of takes long: nobody waits for it.

A study fails here only by what its own tuner or sampler raises, or by what its trials failed of. A database that is
away, or writers that are faster, are nobody's failure.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Sequence
from itertools import count

from app.domain import commands as c
from app.domain.asking import until_answered
from app.domain.decide import decide
from app.domain.events import Event
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import Refused, StudyId
from app.events import OPTIMISTIC, Moved, PlanUnusable, VersionConflict
from app.tuning.tuners.base import context_of
from app.tuning.tuners.driver import TunerDriver, TunerFailed
from app.workers.scheduler.ports import Ports
from stagetree.spec import SpecError

logger = logging.getLogger(__name__)

Ending = c.CloseStudy | c.EndStudy | c.FailStudy | c.CheckFailures


class Tuning:
    """The tuners of all running studies. `room`: fewer than so many trials of a study may be active at once.

    slots: how many there are, for tuners that go by that. is_due: whether a study waits for a proof.
    """

    slots = 1
    is_due: Callable[[SearchPlan, Study], bool]

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._drivers: dict[str, dict[StudyId, TunerDriver]] = {}  # by plan
        self._asked: dict[str, tuple[int, int]] = {}  # by plan: the version and room it was asked at last
        self._deadlines: dict[str, float] = {}  # by plan: when it is asked again though nothing has happened

    def tune(self, stream: str, room: int) -> bool:
        """Ask the tuners of a plan; whether anything may have followed.

        Raises `DatabaseUnavailable`.
        """
        try:
            return self._tune_plan(stream, room)
        except PlanUnusable as problem:
            self._ports.problems.report(stream, str(problem))
        except VersionConflict as conflict:
            logger.info("the tuners of plan %s are asked again at the next tick: %s", stream, conflict)
        return True

    def forget(self, busy: Container[str]) -> None:
        """Let go of the plans that are not busy any more."""
        for stream in [stream for stream in self._asked if stream not in busy]:
            del self._asked[stream]
            self._drivers.pop(stream, None)
            self._deadlines.pop(stream, None)

    def _tune_plan(self, stream: str, room: int) -> bool:
        with self._ports.plans.holding(stream, fresh=False) as plan:
            version = plan.version
            failing = [check for study in _running(plan) if (check := self._failing(plan, study)) is not None]
            drivers = self._observing(stream, plan)
        for check in failing:
            self._end(stream, check)
        results = [self._tune_study(stream, name, driver, room) for name, driver in drivers.items()]
        has_changed = bool(failing) or any(results)
        if has_changed:
            with self._ports.plans.holding(stream, fresh=False) as plan:
                version = plan.version
        self._asked[stream] = (version, room)
        return has_changed

    def was_asked(self, stream: str, version: int, room: int) -> bool:
        """Whether nothing has changed for the tuners of a plan at that version. Needs no hold on the plan."""
        at, before = self._asked.get(stream, (0, 0))
        is_due = stream in self._deadlines and self._ports.clock() >= self._deadlines[stream]
        return at == version and room <= before and not is_due

    def wanting(self) -> set[StudyId]:
        """The studies whose tuners would have more under way if there were slots for it."""
        drivers = [each for drivers in self._drivers.values() for each in drivers.items()]
        return {study for study, driver in drivers if _wants_more(driver)}

    def _failing(self, plan: SearchPlan, study: Study) -> c.CheckFailures | None:
        """What ends the study if its trials fail too much."""
        check = c.CheckFailures(study=study.id, at=self._ports.clock())
        return check if decide(plan, check) else None

    def _observing(self, stream: str, plan: SearchPlan) -> dict[StudyId, TunerDriver]:
        """The drivers of the running studies, which have noted what is new."""
        before, drivers = self._drivers.get(stream, {}), dict[StudyId, TunerDriver]()
        for study in _running(plan):
            driver = before.get(study.id)
            if driver is None or driver.spec is not study.spec:
                driver = self._made(study)
            if driver is not None:
                self._observe(plan, study, driver)
                drivers[study.id] = driver
        self._drivers[stream] = drivers
        deadlines = [plan.studies[name].submitted_at + driver.seconds for name, driver in drivers.items()]
        self._deadlines[stream] = min(deadlines, default=math.inf)
        return dict(drivers)

    def _observe(self, plan: SearchPlan, study: Study, driver: TunerDriver) -> bool:
        return driver.observe(study, context_of(plan, study, self._ports.clock(), self.slots))

    def _made(self, study: Study) -> TunerDriver | None:
        """A new driver; None where this version does not read the study's file, which is said."""
        try:
            driver = self._ports.make_driver(study.id, study.spec)
        except SpecError as error:
            text = f"study {study.id} waits: this version does not read its study file: {error}"
            self._ports.problems.report(study.id, text)
            return None
        self._ports.problems.clear(study.id)
        return driver

    def _tune_study(self, stream: str, name: StudyId, driver: TunerDriver, room: int) -> bool:
        """Put on record what the tuner wants, until that is nothing more; whether there was anything."""
        has_suggested = False
        try:
            while driver.suggest(room) and self._apply(stream, name, driver, room):
                has_suggested = True
            if driver.end() is not None:
                return self._end_early(stream, name, driver)
            if driver.is_done() and not self._is_unproven(stream, name):
                self._end(stream, c.CloseStudy(study=name, at=self._ports.clock()))
                return True
        except TunerFailed as failed:
            logger.exception("study %s fails: its tuner raised", name, extra={"study": name, "plan": stream})
            self._end(stream, c.FailStudy(study=name, error=str(failed), at=self._ports.clock()))
            return True
        except Refused as refused:
            text = f"its tuner asks for what may not be: {refused}"
            self._end(stream, c.FailStudy(study=name, error=text, at=self._ports.clock()))
            return True
        return has_suggested

    def _apply(self, stream: str, name: StudyId, driver: TunerDriver, room: int) -> bool:
        """Put on record what the tuner wants of the history that it has seen, and see what became of it."""
        decided = self._applying(name, driver, room)
        if not self._ports.transact(stream, decided, prepare=lambda: self._think(stream, name, driver, room)):
            return False
        with self._ports.plans.holding(stream, fresh=False) as plan:
            self._observe(plan, plan.studies[name], driver)
            return plan.studies[name].is_running

    def _applying(self, name: StudyId, driver: TunerDriver, room: int) -> Callable[[SearchPlan], Sequence[Event]]:
        """The decision to do what the tuner says. Where its study has moved, it is asked anew while nobody waits; where
        that was in vain some times, at once.
        """
        attempts = count(1)

        def decided(plan: SearchPlan) -> Sequence[Event]:
            study = plan.studies[name]
            if study.spec is not driver.spec:  # it was reopened with another one
                return ()
            if self._observe(plan, study, driver) and next(attempts) <= OPTIMISTIC:
                raise Moved(f"Study {name} has moved.")
            events = decide(plan, c.ApplyTunerActions(study=name, actions=driver.suggest(room)), self._ports.limits)
            return tuple(until_answered(plan, events)) if driver.hangs_on_results else events

        return decided

    def _end_early(self, stream: str, name: StudyId, driver: TunerDriver) -> bool:
        """End a study that something else than its tuner ends, if that still holds when it is put on record."""

        def decided(plan: SearchPlan) -> Sequence[Event]:
            study = plan.studies[name]
            if study.spec is not driver.spec:  # it was reopened with another one
                return ()
            self._observe(plan, study, driver)
            end, at = driver.end(), self._ports.clock()
            return () if end is None else decide(plan, c.EndStudy(study=name, reason=dict(end.reason), at=at))

        return bool(self._ports.transact(stream, decided))

    def _is_unproven(self, stream: str, name: StudyId) -> bool:
        """Whether the study's first hand-over is still to be compared: what that shows is a part of its result."""
        with self._ports.plans.holding(stream, fresh=False) as plan:
            return self._ports.proofs and self.is_due(plan, plan.studies[name])

    def _think(self, stream: str, name: StudyId, driver: TunerDriver, room: int) -> None:
        with self._ports.plans.holding(stream, fresh=False) as plan:
            self._observe(plan, plan.studies[name], driver)
        driver.suggest(room)

    def _end(self, stream: str, command: Ending) -> None:
        self._ports.transact(stream, lambda plan: decide(plan, command))
        self._drivers[stream].pop(command.study, None)


def _wants_more(driver: TunerDriver) -> bool:
    try:
        return driver.wants_more()
    except TunerFailed:  # which the study says at the next tick
        return False


def _running(plan: SearchPlan) -> list[Study]:
    return [study for study in plan.studies.values() if study.is_running]
