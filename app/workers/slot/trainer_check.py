"""Checks that a trainer works, and that its first steps have the same bits when it resumes from a state.

    first      a fresh process: train to step 1, save; train to the end, save, evaluate
    resumed    another one: load the state of step 1, evaluate and save twice; train to the end, and compare

If something differs, up to two more trainings distinguish the causes.

Runs on: the thread that trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

from app.domain.chain_assignment import VerificationOrder
from app.domain.objectives import metric_problem
from app.domain.terms import FailureKind
from app.workers.slot.verification_bench import OFF, Bench, last_line
from app.workers.state import State
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.inexact_reasons import (
    LOST,
    UNREPEATABLE,
    WATCHED,
    is_of_metrics,
    metric_cause,
    other_metrics,
    unrestored_cause,
)

Metrics = Mapping[str, float | None]
Files = Sequence[Mapping[str, Any]]


class CheckFailed(Exception):
    """The user's code failed in the first training, as it would in any. step: how far it had trained."""

    def __init__(self, kind: FailureKind, error: str, step: int, signature: str) -> None:
        super().__init__(error)
        self.kind, self.error, self.step, self.signature = kind, error, step, signature


@dataclass(slots=True)
class CheckResult:
    """difference: the first one, with its likely cause.
    unproven: why a difference may not be the trainer's fault; then none is reported.
    unread: hyper-parameters that the trainer read in no step.
    files: records of the data files that it read.
    """

    difference: str = ""
    unproven: str = ""
    unread: Sequence[str] = ()
    files: Files = ()


def check(bench: Bench, order: VerificationOrder, steps: int, let_others_train: Callable[[Files], None]) -> CheckResult:
    """Train a trainer's first steps. Raises `CheckFailed`, and `TrainerFailed` for an accident, as `Bench` does.

    let_others_train: called with the files when only comparisons remain: the trainer trains, and its state loads.
    """
    with ExitStack() as held:
        return _Check(bench, order, steps, held).run(let_others_train)


class _Check:
    def __init__(self, bench: Bench, order: VerificationOrder, steps: int, held: ExitStack) -> None:
        self._bench, self._order, self._steps, self._held = bench, order, steps, held

    def run(self, let_others_train: Callable[[Files], None]) -> CheckResult:
        bench, found = self._bench, CheckResult()
        try:
            first, end, metrics = self._train()
            found.unread, found.files = bench.seen()
            bench.load(first, 1)  # may raise; the used object is not needed afterwards
        except TrainerFailed as failed:
            if failed.kind != "exception":  # an accident; the user's code is not tried again
                raise
            raise CheckFailed(FailureKind.EXCEPTION, failed.error, failed.step, failed.signature) from failed
        if not bench.is_exact:
            found.unproven = OFF
        elif bench.is_affordable(self._steps - 1):
            let_others_train(found.files)
            text = self._resumed_differs(first, end, metrics)
            if text and bench.operations:
                found.unproven = f"the trainer {bench.operations[0]}"
            else:
                found.difference = text
        return found

    def _train(self) -> tuple[State, State, Metrics]:
        bench = self._bench
        bench.build()
        bench.train(1)
        first = self._held.enter_context(closing(bench.save()))
        bench.train(self._steps)
        end = self._held.enter_context(closing(bench.save(look=True)))
        metrics = bench.evaluate()
        problems = [metric_problem(name, metrics, bench.step) for name in self._order.metrics]
        for problem in problems:
            if problem is not None and problem["kind"] == FailureKind.METRIC:
                raise CheckFailed(FailureKind.METRIC, problem["error"], bench.step, "metric")
        return first, end, metrics

    def _resumed_differs(self, first: State, end: State, metrics: Metrics) -> str:
        """The difference when training resumes from the first state, with its likely cause; empty if there is none."""
        try:
            text, stray = self._resume(first, end, metrics, is_watched=True)
        except TrainerFailed as failed:  # an error that the first training did not have is a difference, too
            if failed.kind != "exception":
                raise
            return f"the trainer failed when it resumed from its state: {last_line(failed)}"
        return f"{text}. {self._cause(text, stray, first, end, metrics)}" if text else ""

    def _resume(self, first: State, end: State, metrics: Metrics, *, is_watched: bool) -> tuple[str, Sequence[str]]:
        bench = self._bench
        bench.build()
        bench.load(first, 1)
        for _ in range(2 if is_watched else 0):  # training must not notice that it is evaluated and saved
            bench.evaluate()
            bench.save().close()
        return self._compare(end, metrics)

    def _compare(self, end: State, metrics: Metrics) -> tuple[str, Sequence[str]]:
        bench = self._bench
        bench.train(self._steps)
        with closing(bench.save(look=True)) as again:
            compared = bench.compare(again, end)
        return compared.difference or other_metrics(metrics, bench.evaluate()), compared.stray

    def _cause(self, text: str, stray: Sequence[str], first: State, end: State, metrics: Metrics) -> str:
        self._bench.build()
        if self._compare(end, metrics)[0]:
            return UNREPEATABLE
        if is_of_metrics(text):
            return metric_cause(stray)
        is_lost, names = self._resume(first, end, metrics, is_watched=False)
        return state_cause(names) if is_lost else WATCHED


def state_cause(stray: Sequence[str]) -> str:
    """The likely cause of a state that differs after a resume: these names, if there are any."""
    return unrestored_cause(stray) or LOST
