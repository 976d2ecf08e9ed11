"""Requests the tuners' next actions, and records them. A slow tuner blocks no other study.

A study fails here only because its own tuner or sampler raises, or because its trials failed. Any other error holds up
only its study.

Runs on: the tick's thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Sequence
from itertools import count

from app.domain import commands as c
from app.domain.decide import decide
from app.domain.events import Event
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import Refused, StudyId
from app.domain.trial_requests import stop_at_known_result
from app.events import OPTIMISTIC, Moved
from app.search.tuners.base import context_of
from app.search.tuners.driver import TunerDriver, TunerFailed
from app.workers.scheduler.fence import HeldUp
from app.workers.scheduler.ports import Ports
from stagetree.spec import SpecError

logger = logging.getLogger(__name__)

ASKING = "asking its tuner"

Ending = c.CloseStudy | c.EndStudy | c.FailStudy | c.CheckFailures


class Tuning:
    """The tuners of all running studies. `room`: the limit on a study's active trials.

    slots: the number of slots, for tuners that use it.
    is_due: whether a study waits for a verification.
    """

    slots = 1
    is_due: Callable[[SearchPlan, Study], bool]

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._drivers: dict[str, dict[StudyId, TunerDriver]] = {}  # by plan
        self._asked: dict[str, tuple[int, int]] = {}  # by plan: the version and room of the last request
        self._deadlines: dict[str, float] = {}  # by plan: the time of the next request without news

    def tune(self, stream: str, room: int) -> None:
        """Ask the tuners of a plan. Raises `DatabaseUnavailable`."""
        self._asked.pop(stream, None)  # until all have answered
        with self._ports.plans.holding(stream, fresh=False) as plan:
            version, running = plan.version, [study.id for study in plan.studies.values() if study.is_running]
        before = self._drivers.get(stream, {})
        drivers = self._drivers[stream] = {name: before[name] for name in running if name in before}
        self._deadlines[stream] = math.inf
        has_changed = False
        for name in [name for name in running if not self._ports.fence.is_held(name)]:
            with self._ports.fence.guard(stream, ASKING, name):
                has_changed = self._tune_study(stream, name, room) or has_changed
            if self._ports.fence.is_held(name) and name in self._ports.fence.problems():
                drivers.pop(name, None)  # an error may have left it inconsistent
        if has_changed:
            with self._ports.plans.holding(stream, fresh=False) as plan:
                version = plan.version
        if not any(map(self._ports.fence.is_held, running)):
            self._asked[stream] = (version, room)

    def forget(self, busy: Container[str]) -> None:
        """Drop the tuners of plans that are no longer busy."""
        for stream in [stream for stream in self._drivers if stream not in busy]:
            del self._drivers[stream], self._deadlines[stream]
            self._asked.pop(stream, None)

    def was_asked(self, stream: str, version: int, room: int) -> bool:
        """Whether nothing has changed for a plan's tuners at that version. Needs no hold on the plan."""
        at, before = self._asked.get(stream, (0, 0))
        is_due = stream in self._deadlines and self._ports.clock() >= self._deadlines[stream]
        return at == version and room <= before and not is_due

    def studies_wanting_more(self) -> set[StudyId]:
        """The studies whose tuners would have more active trials if there were slots."""
        found = set[StudyId]()
        for stream, drivers in self._drivers.items():
            for name, driver in drivers.items():
                with self._ports.fence.guard(stream, "asking for further requests", name):
                    if _wants_more(driver):
                        found.add(name)
        return found

    def _tune_study(self, stream: str, name: StudyId, room: int) -> bool:
        """Record the tuner's actions until it wants nothing more, or the study's end. Return whether anything was
        recorded.
        """
        try:
            with self._ports.plans.holding(stream, fresh=False) as plan:
                study = plan.studies.get(name)
                if study is None or not study.is_running:
                    return False
                failing = self._failure_check(plan, study)
                if failing is None:
                    driver = self._current_driver(stream, plan, study)
            return self._ask(stream, name, driver, room) if failing is None else self._end(stream, failing)
        except TunerFailed as failed:
            logger.exception("study %s fails: its tuner raised", name, extra={"study": name, "plan": stream})
            return self._end(stream, c.FailStudy(study=name, error=str(failed), at=self._ports.clock()))
        except Refused as refused:
            text = f"its tuner asks for what may not be: {refused}"
            return self._end(stream, c.FailStudy(study=name, error=text, at=self._ports.clock()))

    def _failure_check(self, plan: SearchPlan, study: Study) -> c.CheckFailures | None:
        """The command that ends the study if too many of its trials fail."""
        check = c.CheckFailures(study=study.id, at=self._ports.clock())
        return check if decide(plan, check) else None

    def _current_driver(self, stream: str, plan: SearchPlan, study: Study) -> TunerDriver:
        """The driver of a running study, with all news observed."""
        driver = self._drivers[stream].get(study.id)
        if driver is None or driver.spec is not study.spec.json:
            driver = self._drivers[stream][study.id] = self._make_driver(study)
        self._observe(plan, study, driver)
        self._deadlines[stream] = min(self._deadlines[stream], study.submitted_at + driver.seconds)
        return driver

    def _observe(self, plan: SearchPlan, study: Study, driver: TunerDriver) -> bool:
        return driver.observe(study, context_of(plan, study, self._ports.clock(), self.slots))

    def _make_driver(self, study: Study) -> TunerDriver:
        """A new driver. A study file that this version cannot read waits for one that can."""
        try:
            return self._ports.make_driver(study.id, study.spec.json)
        except SpecError as error:
            text = f"study {study.id} waits: this version does not read its study file: {error}"
            raise HeldUp(text) from error

    def _ask(self, stream: str, name: StudyId, driver: TunerDriver, room: int) -> bool:
        has_suggested = False
        while driver.suggest(room) and self._apply(stream, name, driver, room):
            has_suggested = True
        if driver.end() is not None:
            return self._end_early(stream, name, driver)
        if driver.is_done() and not self._awaits_verification(stream, name):
            return self._end(stream, c.CloseStudy(study=name, at=self._ports.clock()))
        return has_suggested

    def _apply(self, stream: str, name: StudyId, driver: TunerDriver, room: int) -> bool:
        """Record what the tuner wants given the observed history, and observe the result."""
        decide_actions = self._action_decision(name, driver, room)
        if not self._ports.transact(
            stream, decide_actions, prepare=lambda: self._prepare_actions(stream, name, driver, room)
        ):
            return False
        with self._ports.plans.holding(stream, fresh=False) as plan:
            self._observe(plan, plan.studies[name], driver)
            return plan.studies[name].is_running

    def _action_decision(
        self, name: StudyId, driver: TunerDriver, room: int
    ) -> Callable[[SearchPlan], Sequence[Event]]:
        """The decision to apply the tuner's actions.

        If the study has changed meanwhile, the tuner gets another request outside the transaction; after some
        attempts, inside it.
        """
        attempts = count(1)

        def decide_actions(plan: SearchPlan) -> Sequence[Event]:
            study = plan.studies[name]
            if study.spec.json is not driver.spec:  # it was reopened with another one
                return ()
            if self._observe(plan, study, driver) and next(attempts) <= OPTIMISTIC:
                raise Moved(f"Study {name} has moved.")
            events = decide(plan, c.ApplyTunerActions(study=name, actions=driver.suggest(room)), self._ports.limits)
            return tuple(stop_at_known_result(plan, events)) if driver.hangs_on_results else events

        return decide_actions

    def _end_early(self, stream: str, name: StudyId, driver: TunerDriver) -> bool:
        """End a study for a reason other than its tuner, if the reason still holds in the transaction."""

        def decide_actions(plan: SearchPlan) -> Sequence[Event]:
            study = plan.studies[name]
            if study.spec.json is not driver.spec:  # it was reopened with another one
                return ()
            self._observe(plan, study, driver)
            end, at = driver.end(), self._ports.clock()
            return () if end is None else decide(plan, c.EndStudy(study=name, reason=dict(end.reason), at=at))

        return bool(self._ports.transact(stream, decide_actions))

    def _awaits_verification(self, stream: str, name: StudyId) -> bool:
        """Whether the study's first hand-over must still be compared, since its result includes that."""
        with self._ports.plans.holding(stream, fresh=False) as plan:
            return self._ports.proofs and self.is_due(plan, plan.studies[name])

    def _prepare_actions(self, stream: str, name: StudyId, driver: TunerDriver, room: int) -> None:
        with self._ports.plans.holding(stream, fresh=False) as plan:
            self._observe(plan, plan.studies[name], driver)
        driver.suggest(room)

    def _end(self, stream: str, command: Ending) -> bool:
        self._ports.transact(stream, lambda plan: decide(plan, command))
        self._drivers[stream].pop(command.study, None)
        return True


def _wants_more(driver: TunerDriver) -> bool:
    try:
        return driver.wants_more()
    except TunerFailed:  # which the study says at the next tick
        return False
