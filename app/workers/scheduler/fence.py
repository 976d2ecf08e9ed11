"""Isolates errors: one study can never stop another.

A tick does the work of each plan and each study inside a fence. An error there holds up only that study or plan, until
the next tick, and its user sees the error.

Runs on: the tick's thread; another fence on the retention thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, TypeVar

from app.domain.terms import Refused
from app.events import PlanUnusable
from app.outages import LostRace, Unavailable

logger = logging.getLogger(__name__)

READING = "reading its events"
"""The work that is held up by a `PlanUnusable`, which any access to a plan may raise."""


class HeldUp(Exception):
    """A study or a plan must wait. The message is a sentence that names it."""


class HasId(Protocol):
    """A plan, as the tick has it."""

    @property
    def id(self) -> str: ...


Plan = TypeVar("Plan", bound=HasId)
Result = TypeVar("Result")


class Fence:
    """Knows which plans and studies are held up, and why. No other part of the scheduler catches their errors.

    An outage is raised again: it is no study's fault, and ends the tick. If `is_strict`, as in simulations, unexpected
    errors are raised again too.
    """

    def __init__(self, *, is_strict: bool = False) -> None:
        self._is_strict = is_strict
        self._held = set[str]()  # skipped for the rest of this tick
        self._sentences = dict[Work, str]()
        self._logged = set[tuple[Work, type]]()  # errors already in the process's log

    def begin_tick(self) -> None:
        """Retry all work that was held up."""
        self._held.clear()

    def retain(self, plans: Collection[str]) -> None:
        """Forget all plans but these."""
        self._sentences = {work: text for work, text in self._sentences.items() if work.plan in plans}
        self._logged = {each for each in self._logged if each[0].plan in plans}

    def forget_problems(self, plan: str) -> None:
        """The plan has changed, so its problems may be over."""
        for work in [work for work in self._sentences if work.plan == plan]:
            del self._sentences[work]

    def is_held(self, name: str) -> bool:
        """Whether a plan or a study is held up for the rest of this tick."""
        return name in self._held

    def problems(self) -> dict[str, str]:
        """The reasons why plans and studies are held up, by the name of the study or else of the plan."""
        texts = dict[str, list[str]]()
        for work, text in dict(self._sentences).items():  # another thread may ask
            texts.setdefault(work.name, []).append(text)
        return {name: "; ".join(dict.fromkeys(each)) for name, each in texts.items()}

    def guard(self, plan: str, doing: str, study: str = "") -> FencedWork:
        """A `with` block for the work of one plan, or of one of its studies. An error ends only the block."""
        return FencedWork(self, Work(plan, study, doing))

    def select(self, plans: Sequence[Plan], doing: str, is_so: Callable[[Plan], object]) -> list[Plan]:
        """The plans that satisfy a predicate. Plans for which it raises are held up."""
        found = list[Plan]()
        for plan in plans:
            with self.guard(plan.id, doing):
                if is_so(plan):
                    found.append(plan)
        return found

    def apply(self, plans: Sequence[Plan], doing: str, do: Callable[[Sequence[Plan]], Result]) -> Result:
        """`do` applied to all plans together, except plans for which it raises: they are held up.

        `do` may be called several times, so it must have no side effects.
        """
        try:
            return do(plans)
        except Unavailable:
            raise
        except Exception:  # find the plan that raises, inside its own fence
            sound = list[Plan]()
            for plan in plans:
                with self.guard(plan.id, doing):
                    do([*sound, plan])
                    sound.append(plan)
            return do(sound)

    def clear(self, work: Work) -> None:
        """The work is done, so it has no problem."""
        if self._sentences:
            self._sentences.pop(work, None)

    def hold_up(self, work: Work, error: BaseException) -> bool:
        """Hold up the plan or study; False if the error is not its own."""
        if isinstance(error, Unavailable) or not isinstance(error, Exception):
            return False
        if isinstance(error, LostRace | Refused):  # the plan has changed, which the next tick sees
            logger.info("%s is left to the next tick, at %s: %s", work.title, work.doing, error)
        elif isinstance(error, PlanUnusable):
            self._report(Work(work.plan, "", READING), error, str(error))
        elif isinstance(error, HeldUp):
            self._report(work, error, str(error))
        elif self._is_strict:
            return False
        else:
            text = f"{work.title} cannot be scheduled: {type(error).__name__}: {error}"
            self._report(work, error, text, is_unexpected=True)
        self._held.add(work.name)
        return True

    def _report(self, work: Work, error: Exception, text: str, *, is_unexpected: bool = False) -> None:
        self._sentences[work] = text
        self._held.add(work.name)
        if (work, type(error)) not in self._logged:
            self._logged.add((work, type(error)))
            about = {"plan": work.plan, "study": work.study}
            logger.warning("%s (at %s)", text, work.doing, exc_info=error if is_unexpected else None, extra=about)


class Work(NamedTuple):
    """A tick's work for a plan, or for one of its studies."""

    plan: str
    study: str
    doing: str

    @property
    def name(self) -> str:
        return self.study or self.plan

    @property
    def title(self) -> str:
        return f"study {self.study}" if self.study else f"plan {self.plan}"


class FencedWork(NamedTuple):
    """The `with` block of `Fence.guard`. A tick enters a dozen."""

    fence: Fence
    work: Work

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            self.fence.clear(self.work)
            return False
        return self.fence.hold_up(self.work, error)
