"""Runs on: the tick's thread; another fence on the retention thread.

One study can never stop another. A tick does the work of each plan, and of each study, inside a fence: an error there
holds up that study or plan alone, until the next tick, and its user sees the error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeVar

from app.domain.terms import Refused
from app.events import PlanUnusable
from app.outages import LostRace, Unavailable

logger = logging.getLogger(__name__)

READING = "reading its events"
"""What a plan is held up in by a `PlanUnusable`, wherever it is raised."""


class HeldUp(Exception):
    """A study or a plan has to wait. The message is a sentence that names it."""


class Named(Protocol):
    """A plan, as the tick has it."""

    @property
    def id(self) -> str: ...


Plan = TypeVar("Plan", bound=Named)
Result = TypeVar("Result")


class Fence:
    """Knows which plans and studies are held up and why. No other part of the scheduler catches their errors.

    An outage is raised again: it is no study's fault, and ends the tick. Any unexpected error is raised again, too,
    where the fence `is_strict`, as in simulations: their caller has to know.
    """

    def __init__(self, *, is_strict: bool = False) -> None:
        self._is_strict = is_strict
        self._held = set[str]()  # the plans and studies that are left alone for the rest of this tick
        self._sentences = dict[Work, str]()
        self._logged = set[tuple[Work, type]]()  # errors that are in the log already

    def begin_tick(self) -> None:
        """The tick tries again all work that was held up."""
        self._held.clear()

    def keep(self, plans: Collection[str]) -> None:
        """Forget all plans but these."""
        self._sentences = {work: text for work, text in self._sentences.items() if work.plan in plans}
        self._logged = {each for each in self._logged if each[0].plan in plans}

    def forget_problems(self, plan: str) -> None:
        """The plan has changed: what held it up may be over."""
        for work in [work for work in self._sentences if work.plan == plan]:
            del self._sentences[work]

    def is_held(self, name: str) -> bool:
        """Whether a plan or a study is left alone for the rest of this tick."""
        return name in self._held

    def problems(self) -> dict[str, str]:
        """What holds up plans and studies, in a sentence each, by the name of the study, or else of the plan."""
        texts = dict[str, list[str]]()
        for work, text in dict(self._sentences).items():  # another thread may ask
            texts.setdefault(work.name, []).append(text)
        return {name: "; ".join(dict.fromkeys(each)) for name, each in texts.items()}

    def around(self, plan: str, doing: str, study: str = "") -> FencedWork:
        """A `with` block for the work of one plan, or of one of its studies. An error ends only the block."""
        return FencedWork(self, Work(plan, study, doing))

    def those(self, plans: Sequence[Plan], doing: str, is_so: Callable[[Plan], object]) -> list[Plan]:
        """The plans of which something holds. Those for which that cannot be told are held up."""
        found = list[Plan]()
        for plan in plans:
            with self.around(plan.id, doing):
                if is_so(plan):
                    found.append(plan)
        return found

    def among(self, plans: Sequence[Plan], doing: str, do: Callable[[Sequence[Plan]], Result]) -> Result:
        """What `do` makes of all plans together; without those with which it raises, which are held up.

        `do` may be called several times, so it must change nothing.
        """
        try:
            return do(plans)
        except Unavailable:
            raise
        except Exception:  # the next lines find the plan, and raise its error inside its fence
            sound = list[Plan]()
            for plan in plans:
                with self.around(plan.id, doing):
                    do([*sound, plan])
                    sound.append(plan)
            return do(sound)

    def passed(self, work: Work) -> None:
        """The work was done."""
        self._sentences.pop(work, None)

    def takes(self, work: Work, error: BaseException) -> bool:
        """Hold up the plan or study; False where the error is not theirs."""
        if isinstance(error, Unavailable) or not isinstance(error, Exception):
            return False
        if isinstance(error, LostRace | Refused):  # something else has happened there, which the next tick sees
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


@dataclass(frozen=True, slots=True)
class Work:
    """What a tick does for a plan or, where one is named, for a study of it."""

    plan: str
    study: str
    doing: str

    @property
    def name(self) -> str:
        return self.study or self.plan

    @property
    def title(self) -> str:
        return f"study {self.study}" if self.study else f"plan {self.plan}"


@dataclass(frozen=True, slots=True)
class FencedWork:
    """The `with` block of `Fence.around`."""

    fence: Fence
    work: Work

    def __enter__(self) -> None:
        """Nothing is needed."""

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            self.fence.passed(self.work)
            return False
        return self.fence.takes(self.work, error)
