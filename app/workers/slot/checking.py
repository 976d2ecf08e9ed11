"""Runs on: the thread that trains.

Whether a trainer can be trained at all, and whether its first steps come out the same in a new and in a used object.

    first     a fresh process: train to step 1, save; train to the end, save, evaluate
    used      the state of step 1 into the same object; train to the end, and compare
    watched   a new object in the same process: train to step 1, evaluate and save twice; train to the end, and compare

Up to three more trainings tell the causes of a difference apart, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

from app.domain.assignment import ProofOrder
from app.domain.objectives import problem_of
from app.domain.terms import FailureKind
from app.found import look_at_found
from app.workers.slot.bench import OFF, Bench, last_line
from app.workers.slot.surroundings import written_records
from app.workers.state import State
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.inexact import (
    LOST,
    SAVING,
    UNREPEATABLE,
    WATCHED,
    is_of_metrics,
    of_metrics,
    other_metrics,
)

SAVED = "when it was saved"
REBUILT = "Likely: it reads what the object before it has left in the process: a global, or an attribute of a class"


Metrics = Mapping[str, float | None]
Files = Sequence[Mapping[str, Any]]
Way = Callable[[State, Metrics], str]


class CheckFailed(Exception):
    """The user's code failed in the first way, in which any training goes. step: how far it was trained."""

    def __init__(self, kind: FailureKind, error: str, step: int, signature: str) -> None:
        super().__init__(error)
        self.kind, self.error, self.step, self.signature = kind, error, step, signature


@dataclass(slots=True)
class Checked:
    """difference: the first that was found, with its likely cause. stray: what does not come back with the state.

    unproven: why a difference need not be the trainer's fault; then none is said. unread: hyper-parameters that the
    trainer has read in none of the steps. files: records of the data files that it read.
    """

    difference: str = ""
    unproven: str = ""
    stray: Mapping[str, str] = field(default_factory=dict)
    unread: Sequence[str] = ()
    files: Files = ()


def check(bench: Bench, order: ProofOrder, steps: int, go_on: Callable[[Files], None]) -> Checked:
    """Try a trainer for so many steps. Raises `CheckFailed`, and `TrainerFailed` for an accident, as `Bench` does.

    go_on: called when what follows only compares, with the files: the trainer can be trained, and its state be loaded.
    """
    with ExitStack() as held:
        check = _Check(bench, order, steps, held, go_on)
        for text in check.ways():
            if text and bench.operations:
                check.found.unproven = f"the trainer {bench.operations[0]}"
                break
            if text:
                check.found.difference = text
                break
        return check.found


class _Check:
    def __init__(
        self, bench: Bench, order: ProofOrder, steps: int, held: ExitStack, go_on: Callable[[Files], None]
    ) -> None:
        self._bench, self._order, self._steps, self._held, self._go_on = bench, order, steps, held, go_on
        self.found = Checked()

    def ways(self) -> Iterator[str]:
        """What differs in each way."""
        try:
            first, end, metrics = self._first()
            self._reload(first)
        except TrainerFailed as failed:
            raise self._fault(failed) from failed
        if not self._bench.is_exact:
            self.found.unproven = OFF
            return
        more = self._steps - 1
        if self._bench.is_worth(more):
            self._go_on(self.found.files)
            yield self._or_failing(self._used, end, metrics, "it went on from its state in a used object")
        if self._bench.is_worth(self._steps):
            yield self._or_failing(self._watched, end, metrics, "it was built a second time in the same process")

    def _or_failing(self, way: Way, end: State, metrics: Metrics, when: str) -> str:
        """An error where the first way had none is a difference, too."""
        try:
            return way(end, metrics)
        except TrainerFailed as failed:
            if failed.kind != "exception":
                raise
            return f"the trainer failed when {when}: {last_line(failed)}"

    def _fault(self, failed: TrainerFailed) -> Exception:
        """What is no accident is the user's, and there is no second try."""
        if failed.kind != "exception":
            return failed
        return CheckFailed(FailureKind.EXCEPTION, failed.error, failed.step, failed.signature)

    # ------------------------------------------------------------------------------------------------ the ways

    def _first(self) -> tuple[State, State, Metrics]:
        bench = self._bench
        bench.build()
        bench.train(1)
        first = self._held.enter_context(closing(bench.save()))
        bench.look("first")
        bench.train(self._steps)
        end = self._held.enter_context(closing(bench.save()))
        metrics = bench.evaluate()
        problems = [problem_of(name, metrics, bench.step) for name in self._order.metrics]
        for problem in problems:
            if problem is not None and problem["kind"] == FailureKind.METRIC:
                raise CheckFailed(FailureKind.METRIC, problem["error"], bench.step, "metric")
        return first, end, metrics

    def _reload(self, first: State) -> None:
        bench = self._bench
        bench.look("before")
        bench.load(first, 1)
        bench.look("used")
        stray = bench.stray(SAVED)
        self.found.stray, self.found.unread = stray.names, stray.unread
        self.found.files = [*look_at_found(stray.files), *written_records(bench.written())]

    def _used(self, end: State, metrics: Metrics) -> str:
        text = self._to_the_end(end, metrics)
        if not text:
            return ""
        cause = self._bench.stray(SAVED).cause  # before the process is another one
        if is_of_metrics(text):
            cause = of_metrics(self._bench.why_measured_otherwise(), self.found.stray)
        if not self._is_repeatable(end, metrics):
            cause = UNREPEATABLE
        elif cause == LOST and self._differs_unsaved(end):
            cause = SAVING
        return self._told("in a used object", text, cause)

    def _watched(self, end: State, metrics: Metrics) -> str:
        bench = self._bench
        bench.build(is_fresh=False)
        bench.train(1)
        for _ in range(2):  # the first way was saved once: what counts how often that is done differs now
            bench.evaluate()
            bench.save().close()
        text = self._to_the_end(end, metrics)
        if not text:
            return ""
        cause = of_metrics(bench.why_measured_otherwise()) if is_of_metrics(text) else WATCHED
        if not self._is_repeatable(end, metrics):
            return self._told("a second time", text, UNREPEATABLE)
        if self._differs_unwatched(end, metrics):
            return self._told("in a new object of a used process", text, self._globals())
        return self._told("with an evaluation and a saved state on the way", text, cause)

    def _to_the_end(self, end: State, metrics: Metrics) -> str:
        self._bench.train(self._steps)
        return self._differs(end) or other_metrics(metrics, self._bench.evaluate())

    def _differs(self, end: State) -> str:
        with closing(self._bench.save()) as again:
            return self._bench.compare(again, end).difference

    # ------------------------------------------------------------------------------------------------ causes

    def _is_repeatable(self, end: State, metrics: Metrics) -> bool:
        """Whether the first way comes out the same in another fresh process."""
        self._bench.build()
        self._bench.train(1)
        self._bench.save().close()
        return not self._to_the_end(end, metrics)

    def _differs_unsaved(self, end: State) -> bool:
        """In a fresh process, with nothing between its steps."""
        self._bench.build()
        self._bench.train(self._steps)
        return bool(self._differs(end))

    def _differs_unwatched(self, end: State, metrics: Metrics) -> bool:
        """The process is used now: a new object in it, which goes the first way."""
        self._bench.build(is_fresh=False)
        self._bench.train(1)
        self._bench.save().close()
        return bool(self._to_the_end(end, metrics))

    def _globals(self) -> str:
        names = [name for name in self.found.stray if not name.startswith("self.")]
        return f"Likely: {', '.join(names[:3])} is not what it was at the start" if names else REBUILT

    @staticmethod
    def _told(way: str, text: str, cause: str) -> str:
        return f"{way}, {text}. {cause}"
