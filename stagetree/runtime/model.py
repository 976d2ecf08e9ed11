"""A trainer at a position in a plan: it takes steps, evaluates, and saves and loads its whole state.

Implements law 3 of CONTRIBUTING.md: a step depends only on the state, the hyper-parameters' values and the generators,
and nothing between steps disturbs them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from greenlet import getcurrent, greenlet

from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.checkpoints.buffers import Buffer, Buffers
from stagetree.runtime.checkpoints.weight_files import load_weights
from stagetree.runtime.failures import UNSAVABLE, TrainerFailed, plain, user_code
from stagetree.runtime.scripts.interface import Script, place_text
from stagetree.runtime.scripts.launched_trainer import LaunchedTrainer
from stagetree.sequences import Form, as_lists, is_same_value, parse
from stagetree.system.files import descriptor_path
from stagetree.trainer import Trainer, generators
from stagetree.trainer.base import MetricSums, TrainsAhead, construct, finite_metrics
from stagetree.trainer.divided_tensors import Unsavable
from stagetree.trainer.generators import GeneratorStates
from stagetree.trainer.values import GivenValues


class HpTimeline:
    """A trial's hyper-parameters. hp: the JSON of their sequences. Raises `stagetree.sequences.SequenceError`."""

    def __init__(self, hp: Mapping[str, Any]) -> None:
        self.hp, self._tracks = hp, {name: _Track(hp[name]) for name in sorted(hp)}

    def at(self, step: int) -> dict[str, Any]:
        """All values in force at a step."""
        return {name: track.at(step) for name, track in self._tracks.items()}

    def changes(self, step: int) -> dict[str, Any]:
        """The values that are new at a step: all of them at step 0."""
        now, before = self.at(step), self.at(max(0, step - 1))
        return {name: value for name, value in now.items() if step == 0 or not is_same_value(value, before[name])}


class _Track:
    """One hyper-parameter. Its pieces may be endless, so they are computed on demand."""

    def __init__(self, sequence: Any) -> None:
        self._pieces = parse(sequence).pieces()
        self._starts, self._forms = list[int](), list[Form]()
        self._next = next(self._pieces, None)

    def at(self, step: int) -> Any:
        while self._next is not None and self._next.start <= step:
            self._starts.append(self._next.start)
            self._forms.append(self._next.form)
            self._next = next(self._pieces, None)
        return as_lists(self._forms[bisect_right(self._starts, step) - 1].at(step))


class Model:
    """One trainer object on one device. step: the number of steps trained."""

    def __init__(self, trainer: Trainer, device: str) -> None:
        self.trainer, self.device, self.step = trainer, device, 0
        vars(trainer)["_is_driven"] = True
        self._generators, self.averaging = generators.state(device), Averaging(trainer)
        self._set_up_at = -1  # the step for which `set_up` was called in advance
        self.given = GivenValues()

    @classmethod
    def build(cls, kind: type[Trainer], args: Mapping[str, Any], seed: int, device: str) -> Model:
        """The model before its first step. Raises `TrainerFailed`."""
        generators.seed(seed)
        with user_code():
            return cls(construct(kind, args, seed, device), device)

    def unread(self) -> list[str]:
        """The hyper-parameters that the trainer has not read yet."""
        return self.trainer.unread() if isinstance(self.trainer, Script) else self.given.unread()

    def load(self, saved: dict[str, Any], timeline: HpTimeline, step: int) -> None:
        """Load the state after `step` steps of training on `timeline`. Raises `TrainerFailed`.

        saved: the result of `state_format.read` or `unpack`.
        """
        with user_code():
            self.trainer.setup(self.given.give(timeline.at(step - 1)))
            self.trainer.load_state_dict(saved["trainer"])
        self.step, self._generators = step, GeneratorStates.from_saved(saved["generators"])
        self._forget_logged()

    def begin(self, fd: int, timeline: HpTimeline, *, is_whole: bool) -> None:
        """Load initial weights from a file before the first step, or a whole state.

        Raises `TrainerFailed`.
        """
        if is_whole:
            with user_code():
                saved = state_format.read(fd)
                self.trainer.setup(self.given.give(timeline.at(0)))
                self.trainer.load_state_dict(saved["trainer"])
            self._generators = GeneratorStates.from_saved(saved["generators"])
            self._forget_logged()
            return  # the study's own values are set up again at the step
        self.set_up(timeline.changes(0))
        generators.restore(self._generators, self.device)
        with user_code():
            self.trainer.begin(load_weights(descriptor_path(fd)))
        self._generators = generators.state(self.device)

    def advance(self, timeline: HpTimeline) -> None:
        """Train one step. Raises `TrainerFailed`."""
        changes = timeline.changes(self.step)
        generators.restore(self._generators, self.device)
        with user_code():
            if changes and self._set_up_at != self.step:
                self.trainer.setup(self.given.give(changes))
            self.trainer.train()
        self.finish_step(generators.state(self.device))

    def advance_some(self, timeline: HpTimeline, until: int, is_wanted: Callable[[int], bool]) -> None:
        """Train one step, or several of a launched script, up to `until`. Raises `TrainerFailed`.

        is_wanted: called meanwhile with the number of finished steps; returns whether to continue.
        """
        if not isinstance(self.trainer, LaunchedTrainer):
            return self.advance(timeline)
        begun, before, coming = self.step, self.trainer.steps, map(timeline.changes, range(self.step, until))
        try:
            with user_code():
                return self.trainer.train_on(coming, lambda steps: is_wanted(begun + steps))
        finally:
            self.step = begun + self.trainer.steps - before

    def expect(
        self, timeline: HpTimeline, until: int, stop: int, evaluate: Collection[int], passed: Collection[int] = ()
    ) -> None:
        """Announce the coming steps to a trainer that trains ahead. until: the first stop. stop: where its state may be
        requested, if only the steps `evaluate` lie between. Raises `TrainerFailed`.
        """
        if isinstance(self.trainer, TrainsAhead):
            stop = stop if until in evaluate or until in passed else until
            with user_code():
                self.trainer.expect(stop, frozenset(step for step in evaluate if step <= stop), timeline.at)

    def settle(self, timeline: HpTimeline) -> list[tuple[int, dict[str, float | None]]]:
        """End the training before the announced step. Returns the metrics of evaluated steps in between.

        Raises `TrainerFailed`.
        """
        if not isinstance(self.trainer, TrainsAhead):
            return []
        with user_code():
            step, passed = self.trainer.settle()
            if step > self.step:
                self.trainer.setup(self.given.give(timeline.at(step - 1)))
            self.step = step
            return [(step, _metrics(each)) for step, each in sorted(passed.items())]

    def touch(self) -> None:
        """Use what each step uses, without changing it: in a fork, the first use of memory is slow."""
        generators.restore(self._generators, self.device)
        HpTimeline({"": 0.0}).changes(0)

    # The parts of a step, for models that take steps together: see `stagetree.runtime.packed`

    @property
    def generators(self) -> GeneratorStates:
        """The states of the global generators at the next step."""
        return self._generators

    def set_up(self, values: Mapping[str, Any]) -> None:
        """Set up the values of the coming step, once, without taking it. Raises `TrainerFailed`."""
        if self._set_up_at == self.step:
            return
        generators.restore(self._generators, self.device)
        with user_code():
            self.trainer.setup(self.given.give(values))
        self._generators, self._set_up_at = generators.state(self.device), self.step

    def finish_step(self, at: GeneratorStates) -> None:
        """Record that a step was taken. at: the global generators after it."""
        self._generators = at
        self.step += 1

    def logged_means(self) -> dict[str, float | None]:
        """The means of values logged since the last call. Raises `TrainerFailed`."""
        logged = vars(self.trainer).get("_logged")
        with user_code():  # an asynchronous device error of a step may appear here
            return logged.means() if isinstance(logged, MetricSums) else {}

    def _forget_logged(self) -> None:
        if isinstance(logged := vars(self.trainer).get("_logged"), MetricSums):
            logged.clear()

    def evaluate(self) -> dict[str, float | None]:
        """The current metrics; None for one that is not finite. Raises `TrainerFailed`."""
        generators.restore(self._generators, self.device)
        with user_code():
            finite = _metrics(self.trainer.evaluate())
        self._forget_logged()  # values logged while evaluating are not about training
        return finite

    def state(self) -> dict[str, Any]:
        """The whole current state; training changes its tensors. Raises `TrainerFailed`."""
        generators.restore(self._generators, self.device)
        with user_code():
            return {"trainer": self.trainer.state_dict(), "generators": self._generators.saved()}

    def save(self, machine: Mapping[str, Any] | None = None, **more: Any) -> tuple[int, int]:
        """Save the whole state in an anonymous file: its descriptor and size. Raises `TrainerFailed`, OSError.

        machine: where the state was made, for information only. more: values to save beside the state.
        """
        with self._unsavable():
            return state_format.write({**self.state(), "machine": dict(machine or {}), **more})

    def save_in(
        self,
        buffers: Buffers,
        machine: Mapping[str, Any],
        describe: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None,
    ) -> tuple[Buffer, int]:
        """As `save`, in a reusable buffer. describe: what to save beside the state, given the state."""
        with self._unsavable():
            state = self.state()
            more = {} if describe is None else describe(state)
            return _fill_buffer(state_format.Layout.plan({**state, "machine": dict(machine), **more}), buffers)

    def save_part_in(self, buffers: Buffers) -> tuple[Buffer, int] | None:
        """Save the divided tensors of a rank that does not lead; None if there are none."""
        with self._unsavable():
            layout = state_format.Layout.build_part(self.state())
            return None if layout is None else _fill_buffer(layout, buffers)

    @contextmanager
    def _unsavable(self) -> Iterator[None]:
        try:
            with self.given.ignoring_reads():
                yield
        except Unsavable as error:
            words = f"{place_text(self.trainer, error.place)} {error.problem}"
            raise TrainerFailed("exception", plain(words), signature=UNSAVABLE) from error
        except RuntimeError as error:  # of torch, for example a device error
            raise TrainerFailed.from_error(error) from error


def _fill_buffer(layout: state_format.Layout, buffers: Buffers) -> tuple[Buffer, int]:
    buffer = buffers.take(layout.size)
    try:
        layout.fill(buffer.area)
    except BaseException:
        buffers.give_back([buffer.number])
        raise
    return buffer, layout.size


def _metrics(metrics: Any) -> dict[str, float | None]:
    return {_plain_name(name): each for name, each in finite_metrics(metrics).items()}


_plain_name = lru_cache(maxsize=1000)(plain)
"""As `plain`, which decodes the whole environment; the same few names come again at each evaluation."""


DRAIN_SECONDS = 1.0
"""The interval for fetching logged values from the device; longer steps are fetched one by one."""

MOST_BYTES = 2**24
"""The most bytes in a file of logged values."""


class Journal:
    """Appends rows of logged values to a file. If the file cannot be written, rows are lost and training continues.

    drained_at: the time of the last row, by the monotonic clock.
    """

    def __init__(self) -> None:
        self._file = -1
        self.drained_at = time.monotonic()

    def write_to(self, file: int) -> None:
        """Write rows to another file; the journal closes the descriptor."""
        if self._file >= 0:
            os.close(self._file)
        self._file = file

    def look(self, model: Model, now: float) -> None:
        """Write logged values if `DRAIN_SECONDS` have passed. Raises `TrainerFailed`."""
        if now - self.drained_at >= DRAIN_SECONDS:
            self.write(model, now)

    def write(self, model: Model, now: float) -> None:
        """Write the values logged since the last row. Raises `TrainerFailed`."""
        self.drained_at = now
        if metrics := model.logged_means():
            self._append({"step": model.step, "metrics": metrics})

    def _append(self, row: dict[str, object]) -> None:
        if self._file < 0:
            return
        try:
            if os.fstat(self._file).st_size < MOST_BYTES:
                os.write(self._file, json.dumps(row).encode() + b"\n")
        except OSError as problem:
            print(f"--- logged values are not kept: {problem}", file=sys.stderr)


Saved = dict[str, Any]
Weighted = tuple[Saved, float]


class Averaging:
    """Computes means, one after the other. All but the trainer's part is taken from the first state.

    `Trainer.average` iterates over the states in its own loop. The loop runs in a greenlet and waits for each next
    state, so that only one state is in memory beside the sums.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._fiber: _Average | None = None
        self._first, self._left = Saved(), 0

    def add(self, saved: Saved, weight: float, left: int) -> Saved:
        """Add a saved state. With the last one, returns the mean in the form of a saved state.

        left: the number of states still to come. Raises `TrainerFailed`.
        """
        if self._fiber is None or self._left != left + 1:  # otherwise an earlier mean was broken off
            self._fiber, self._first = _Average(self._trainer), saved
        self._left = left
        with user_code():
            self._fiber.take((saved["trainer"], weight))
            if left:
                return saved
            fiber, self._fiber, first, self._first = self._fiber, None, self._first, Saved()
            return {**first, "trainer": fiber.take(None)}


class _Average(greenlet):
    """A trainer's `average`, paused between states."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(lambda first: trainer.average(self._states(first)))
        self._trainer = trainer

    def take(self, last: Weighted | None) -> Any:
        """Continue with one more state, or with None to the end, which returns the mean. Raises the errors of
        `average`."""
        if self.dead:
            raise RuntimeError(f"average of trainer {self._trainer.name!r} must go through all states that it is given")
        self.parent = getcurrent()
        return self.switch(last)

    def _states(self, state: Weighted | None) -> Iterator[Weighted]:
        while state is not None:
            yield state
            assert self.parent is not None
            state = self.parent.switch()
