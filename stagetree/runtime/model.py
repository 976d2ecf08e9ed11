"""A trainer at a place in a plan: it takes the next step, evaluates, and gives or takes back its whole state.

Law 3 of CONTRIBUTING.md lives here: a step depends only on the state, the values of the hyper-parameters and the
generators, and nothing that happens between steps disturbs them.
Values of hyper-parameters come from the pieces that nodes are named by. What is logged is rows in a file, not facts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stagetree.runtime import state_format
from stagetree.runtime.averaging import Averaging
from stagetree.runtime.buffers import Buffer, Buffers
from stagetree.runtime.failures import UNSAVABLE, TrainerFailed, plain, user_code
from stagetree.runtime.launched import LaunchedTrainer as LaunchedTrainer
from stagetree.runtime.scripted import Script, place_text
from stagetree.runtime.weight_files import load_weights
from stagetree.sequences import Form, Scalar, is_same_value, parse
from stagetree.trainer import Trainer, generators
from stagetree.trainer.base import MetricSums, TrainsAhead, finite_metrics
from stagetree.trainer.values import GivenValues


class HpTimeline:
    """All hyper-parameters of a trial. hp: the JSON of its sequences. Raises `stagetree.sequences.SequenceError`."""

    def __init__(self, hp: Mapping[str, Any]) -> None:
        self._hp, self._tracks = hp, {name: _Track(hp[name]) for name in sorted(hp)}

    def is_of(self, hp: Mapping[str, Any]) -> bool:
        return is_same_value(self._hp, hp)

    def at(self, step: int) -> dict[str, Scalar]:
        """All values in force at a step."""
        return {name: track.at(step) for name, track in self._tracks.items()}

    def changes(self, step: int) -> dict[str, Scalar]:
        """The values that are new at a step: all of them at the first."""
        now, before = self.at(step), self.at(max(0, step - 1))
        return {name: value for name, value in now.items() if step == 0 or not is_same_value(value, before[name])}


class _Track:
    """One hyper-parameter. Its pieces may be endless, so they are computed as far as they are needed."""

    def __init__(self, sequence: Any) -> None:
        self._pieces = parse(sequence).pieces()
        self._starts, self._forms = list[int](), list[Form]()
        self._next = next(self._pieces, None)

    def at(self, step: int) -> Scalar:
        while self._next is not None and self._next.start <= step:
            self._starts.append(self._next.start)
            self._forms.append(self._next.form)
            self._next = next(self._pieces, None)
        return self._forms[bisect_right(self._starts, step) - 1].at(step)


class Model:
    """One trainer object on one device. `step` is how many steps it has been trained for."""

    def __init__(self, trainer: Trainer, device: str) -> None:
        self.trainer, self.device, self.step = trainer, device, 0
        vars(trainer)["_is_driven"] = True
        self._generators, self.averaging = generators.state(device), Averaging(trainer)
        self._set_up_at = -1  # the step that it was set up for without taking it
        self.given = GivenValues()

    @classmethod
    def build(cls, kind: type[Trainer], args: Mapping[str, Any], seed: int, device: str) -> Model:
        """The model before its first step. Raises `TrainerFailed`."""
        generators.seed(seed)
        with user_code():
            return cls(kind(seed=seed, device=device, **args), device)

    def unread(self) -> list[str]:
        """The hyper-parameters that the trainer has read in no step so far."""
        return self.trainer.unread() if isinstance(self.trainer, Script) else self.given.unread()

    def load(self, saved: dict[str, Any], timeline: HpTimeline, step: int) -> None:
        """Become the model that was saved after `step` steps of training on `timeline`. Raises `TrainerFailed`.

        saved: what `state_format.read` or `unpack` made of the image.
        """
        with user_code():
            self.trainer.setup(self.given.give(timeline.at(step - 1)))
            self.trainer.load_state_dict(saved["trainer"])
        self.step, self._generators = step, saved["generators"]
        self._forget_logged()

    def begin(self, fd: int, timeline: HpTimeline, *, is_whole: bool) -> None:
        """Take over the weights in a file before the first step or, if it is whole, all of the state in it.

        Raises `TrainerFailed`.
        """
        if is_whole:
            with user_code():
                saved = state_format.read(fd)
                self.trainer.setup(self.given.give(timeline.at(0)))
                self.trainer.load_state_dict(saved["trainer"])
            self._generators = saved["generators"]  # what the study's own values are is set up again at the step
            self._forget_logged()
            return
        self.set_up(timeline.changes(0))
        generators.restore(self._generators, self.device)
        with user_code():
            self.trainer.begin(load_weights(f"/proc/self/fd/{fd}"))
        self._generators = generators.state(self.device)

    def advance(self, timeline: HpTimeline) -> None:
        """Train one step. Raises `TrainerFailed`."""
        changes = timeline.changes(self.step)
        generators.restore(self._generators, self.device)
        with user_code():
            if changes and self._set_up_at != self.step:
                self.trainer.setup(self.given.give(changes))
            self.trainer.train()
        self.advanced(generators.state(self.device))

    def advance_some(self, timeline: HpTimeline, until: int, goes_on: Callable[[int], bool]) -> None:
        """Train one step, or several of a script in processes of its own, up to `until`. Raises `TrainerFailed`.

        goes_on: asked meanwhile, with the number of steps that are done, whether more are wanted.
        """
        if not isinstance(self.trainer, LaunchedTrainer):
            return self.advance(timeline)
        begun, before, coming = self.step, self.trainer.steps, map(timeline.changes, range(self.step, until))
        try:
            with user_code():
                return self.trainer.train_on(coming, lambda steps: goes_on(begun + steps))
        finally:
            self.step = begun + self.trainer.steps - before

    def expect(
        self, timeline: HpTimeline, until: int, stop: int, evaluate: Collection[int], passed: Collection[int] = ()
    ) -> None:
        """Tell a trainer that trains ahead what comes: `until` is where it stops first, and `stop` where its state may
        be asked for, if nothing but the steps `evaluate` lies between. Raises `TrainerFailed`.
        """
        if isinstance(self.trainer, TrainsAhead):
            stop = stop if until in evaluate or until in passed else until
            with user_code():
                self.trainer.expect(stop, frozenset(step for step in evaluate if step <= stop), timeline.at)

    def settle(self, timeline: HpTimeline) -> list[tuple[int, dict[str, float | None]]]:
        """The training ends before the step that was expected, here or further on; the metrics of the steps
        between. Raises `TrainerFailed`.
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
        """Use what each step uses, and change nothing: in a fork, memory is slow when it is used first."""
        generators.restore(self._generators, self.device)
        HpTimeline({"": 0.0}).changes(0)

    # What is done of a step where models take it together: see `stagetree.runtime.packed`

    @property
    def generators(self) -> dict[str, Any]:
        """Where the global generators must be at the next step."""
        return self._generators

    def set_up(self, values: Mapping[str, Any]) -> None:
        """Bring values into force for the coming step, without taking it, once. Raises `TrainerFailed`."""
        if self._set_up_at == self.step:
            return
        generators.restore(self._generators, self.device)
        with user_code():
            self.trainer.setup(self.given.give(values))
        self._generators, self._set_up_at = generators.state(self.device), self.step

    def advanced(self, at: dict[str, Any]) -> None:
        """A step was taken, and left the global generators there."""
        self._generators = at
        self.step += 1

    def logged(self) -> dict[str, float | None]:
        """The means of what the trainer has logged since the last time. Raises `TrainerFailed`."""
        logged = vars(self.trainer).get("_logged")
        with user_code():  # a device says so late that a step has failed
            return logged.means() if isinstance(logged, MetricSums) else {}

    def _forget_logged(self) -> None:
        if isinstance(logged := vars(self.trainer).get("_logged"), MetricSums):
            logged.clear()

    def evaluate(self) -> dict[str, float | None]:
        """The metrics as they stand; None for one that is not a finite number. Raises `TrainerFailed`."""
        generators.restore(self._generators, self.device)
        with user_code():
            finite = _metrics(self.trainer.evaluate())
        self._forget_logged()  # what is said while measuring is not about training
        return finite

    def state(self) -> dict[str, Any]:
        """The whole state as it stands; training on may change it. Raises `TrainerFailed`."""
        generators.restore(self._generators, self.device)
        with user_code():
            return {"trainer": self.trainer.state_dict(), "generators": self._generators}

    def save(self, machine: Mapping[str, Any] | None = None, **more: Any) -> tuple[int, int]:
        """The whole state in a file without a name: its descriptor and size. Raises `TrainerFailed`, OSError.

        machine: what must be known of where it was made; it changes nothing of what is loaded. more: is saved beside
        the state.
        """
        with self._unsavable():
            return state_format.write({**self.state(), "machine": dict(machine or {}), **more})

    def save_in(self, buffers: Buffers, machine: Mapping[str, Any], **more: Any) -> tuple[Buffer, int]:
        """As `save`, in a buffer that is used again once it is given back."""
        with self._unsavable():
            return _filled(state_format.Layout.of({**self.state(), "machine": dict(machine), **more}), buffers)

    def save_part_in(self, buffers: Buffers) -> tuple[Buffer, int] | None:
        """The divided tensors of a rank that does not lead; None where none is divided."""
        with self._unsavable():
            layout = state_format.Layout.of_part(self.state())
            return None if layout is None else _filled(layout, buffers)

    @contextmanager
    def _unsavable(self) -> Iterator[None]:
        try:
            with self.given.looked_at():
                yield
        except state_format.Unsavable as error:
            words = f"{place_text(self.trainer, error.place)} {error.problem}"
            raise TrainerFailed("exception", plain(words), signature=UNSAVABLE) from error
        except RuntimeError as error:  # torch's: the device, for one
            raise TrainerFailed.of(error) from error


def _filled(layout: state_format.Layout, buffers: Buffers) -> tuple[Buffer, int]:
    buffer = buffers.take(layout.size)
    try:
        layout.fill(buffer.area)
    except BaseException:
        buffers.give_back([buffer.number])
        raise
    return buffer, layout.size


def _metrics(metrics: Any) -> dict[str, float | None]:
    return {plain(name): each for name, each in finite_metrics(metrics).items()}


DRAIN_SECONDS = 1.0
"""How often what was logged is fetched from the device; after each step, if steps are longer."""

MOST_BYTES = 2**24
"""Of one file; nothing is added to one that is longer."""


class Journal:
    """Appends a row for each time that it is drained. A file that cannot be written costs rows, and no training.

    drained_at: when that was last, by the monotonic clock.
    """

    def __init__(self) -> None:
        self._file = -1
        self.drained_at = time.monotonic()

    def write_to(self, file: int) -> None:
        """From here on, rows go there; the descriptor is the journal's to close."""
        if self._file >= 0:
            os.close(self._file)
        self._file = file

    def look(self, model: Model, now: float) -> None:
        """Write what was logged, if the last time is long enough ago. Raises `TrainerFailed`."""
        if now - self.drained_at >= DRAIN_SECONDS:
            self.write(model, now)

    def write(self, model: Model, now: float) -> None:
        """Write what was logged since the last time. Raises `TrainerFailed`."""
        self.drained_at = now
        if metrics := model.logged():
            self._append({"step": model.step, "metrics": metrics})

    def _append(self, row: dict[str, object]) -> None:
        if self._file < 0:
            return
        try:
            if os.fstat(self._file).st_size < MOST_BYTES:
                os.write(self._file, json.dumps(row).encode() + b"\n")
        except OSError as problem:
            print(f"--- what is logged is not kept: {problem}", file=sys.stderr)
