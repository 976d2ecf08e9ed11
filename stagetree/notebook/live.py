"""Shows a study: its progress while a program waits for it, and the properties of `Study` and `AsyncStudy`.

Progress is one changing line in a terminal, a table in a notebook's cell, or lines in a file.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from html import escape
from types import TracebackType
from typing import Any

from pydantic import PrivateAttr

from stagetree.client.http import Json
from stagetree.client.trial_requests import Known
from stagetree.errors import FailedStudy
from stagetree.models import StudyAnswer, Trial, TrialDetail, UnderWay
from stagetree.notebook import frames
from stagetree.text import FINAL, decision_text, duration, mark_word, saved_text, value_text
from stagetree.time_left import TimeLeft

SLOTS = 16
"""The number of slots that are shown; the others are only counted."""

_CELL = "text-align:left;padding:0 1em 0 0"


def html(study: StudyAnswer) -> str:
    """The table of a notebook's cell: bars, rungs, the best trial, the last decision, and each slot."""
    left = study.progress.seconds_left
    time = f"{duration(study.wall_seconds)} elapsed" + (f", about {duration(left)} left" if left else "")
    title = f"<b>{escape(study.study)}</b> · {escape(study.tuner)} · {escape(study.state)} · {time}"
    rows = "".join(
        f'<tr><td style="{_CELL};opacity:.6">{escape(label)}</td><td style="{_CELL}">{shown}</td></tr>'
        for label, shown in _rows(study)
    )
    return f"<div>{title}<table>{rows}</table></div>"


def _rows(study: StudyAnswer) -> Iterator[tuple[str, str]]:
    """The rows of the table, each as a label and HTML."""
    progress, over = study.progress, study.state in FINAL
    if progress.trials is not None:
        failed = f" <b style='color:red'>{study.counts['failed']} failed</b>" if study.counts.get("failed") else ""
        resting = f" {progress.trials.resting} {'at rungs' if progress.rungs else 'suspended'}"
        yield (
            "trials",
            _bar(progress.trials.done, progress.trials.expected)
            + failed
            + (resting if progress.trials.resting else ""),
        )
    if progress.steps is not None:
        yield (
            "unique steps",
            _bar(progress.steps.done, progress.steps.expected, about=bool(progress.rungs) and not over),
        )
    if progress.rungs:
        yield "rungs", " · ".join(f"step {each.steps}: {each.arrived}/{each.entered}" for each in progress.rungs)
    yield "saved", saved_text(study.cost.saved_by_sharing, study.cost.saved_by_stopping)
    if study.best is not None:
        value = f"<b>{study.best.value:.6g}</b>"
        hp = "  ".join(f"{name}={value}" for name, value in frames.flat_hp(study.best.hp))
        yield (
            "best",
            f"{escape(study.metric)} {value} (trial {study.best.trial} after {study.best.steps} steps) {escape(hp)}",
        )
    if (last := progress.last) is not None:
        decision = f"{decision_text(last.kind, last.trial, last.steps)}: {frames.words(last.reason)}"
        yield "last", escape(decision.removesuffix(": "))
    if study.exactness.mark:
        yield "mark", escape(study.exactness.mark)
    if study.ending:
        yield "ended", escape(study.ending)
    if study.error:
        yield "error", f"<span style='color:red'>{escape(study.error)}</span>"
    yield from _slots(progress.running)


def _bar(done: int, expected: int | None, *, about: bool = False) -> str:
    if expected is None:
        return str(done)
    return f'<progress value="{done}" max="{max(expected, 1)}"></progress> {done}/{"about " if about else ""}{expected}'


def _slots(running: list[UnderWay]) -> Iterator[tuple[str, str]]:
    shown = sorted(running, key=lambda each: each.slot)
    for each in shown[:SLOTS]:
        values = "  ".join(f"{name} {text}" for name, text in each.forms.items())
        bar = f'<progress value="{each.step - each.start}" max="{max(each.end - each.start, 1)}"></progress>'
        yield each.slot, f"{bar} {each.step}/{each.end} · {_served(each)} · {escape(values)}"
    if len(shown) > SLOTS:
        yield "", f"and {len(shown) - SLOTS} more slots"


def _served(run: UnderWay) -> str:
    """The trials that a stage serves or verifies."""
    if not run.trials:
        return "verification" if run.proof else "another study's"
    if run.proof:
        return "verifies " + (f"trial {run.trials[0]}" if run.trial_count == 1 else f"{run.trial_count} trials")
    return f"trial {run.trials[0]}" if run.trial_count == 1 else f"{run.trial_count} trials share it"


_LINE_SECONDS = 5.0
"""The time between two lines of `Lines`."""


class Live:
    """Shows the state of a study, and replaces it when it changes. This one shows nothing."""

    def show(self, study: StudyAnswer) -> None:
        """Show the current state."""

    def close(self) -> None:
        """Nothing more is shown."""


class Terminal(Live):
    """Replaces the last line of a terminal."""

    def show(self, study: StudyAnswer) -> None:
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[2K{progress_text(study)[:width]}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print(file=sys.stderr, flush=True)


class Lines(Live):
    """Prints a line every few seconds, for files and for terminals without escape codes. The last state is always
    printed.
    """

    def __init__(self) -> None:
        self._next, self._last, self._printed = 0.0, "", ""

    def show(self, study: StudyAnswer) -> None:
        self._last = progress_text(study)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_SECONDS
            self._print()

    def close(self) -> None:
        if self._last != self._printed:
            self._print()

    def _print(self) -> None:
        self._printed = self._last
        print(self._last, file=sys.stderr, flush=True)


class Cell(Live):
    """Replaces the output of a notebook's cell."""

    def __init__(self, display: Any) -> None:
        self._display, self._handle = display, None

    def show(self, study: StudyAnswer) -> None:
        bundle = {"text/plain": progress_text(study), "text/html": html(study)}
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


class Showing:
    """Shows a study inside a `with` block; shows nothing if `show` is false."""

    def __init__(self, show: bool = True) -> None:
        self._live = _choose_display() if show else Live()
        self._left = TimeLeft()

    def __enter__(self) -> Showing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.close()

    def show(self, study: StudyAnswer) -> None:
        """Show the current state. Raises `FailedStudy` if the study has failed."""
        self._live.show(self._smoothed(study))
        if study.state == "failed":
            raise FailedStudy(study.study, study.error or "")

    def _smoothed(self, study: StudyAnswer) -> StudyAnswer:
        """The study with the smoothed time left, as the command line shows it."""
        if study.state != "running":
            return study
        left = {"seconds_left": self._left.next(study.progress.seconds_left)}
        return study.model_copy(update={"progress": study.progress.model_copy(update=left)})


def _choose_display() -> Live:
    if display := notebook_display():
        return Cell(display)
    return Terminal() if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else Lines()


def notebook_display() -> Any:
    """IPython's function to show something in a notebook's cell; None outside of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display


def progress_text(study: StudyAnswer) -> str:
    """A study as one line: its state, trials, steps, failures, best trial and duration."""
    parts = [f"{study.study} {study.state}"]
    if (trials := study.progress.trials) is not None:
        parts.append(f"{trials.done}{'' if trials.expected is None else f'/{trials.expected}'} trials")
    parts.append(f"{study.steps.executed} steps run")
    if failed := study.counts.get("failed", 0):
        parts.append(f"{failed} failed")
    if study.best is not None:
        marked = f", {word}" if (word := mark_word(study.best.exactness)) else ""
        parts.append(f"best {study.metric} {study.best.value:.6g} (trial {study.best.trial}{marked})")
    if study.exactness.isolated:
        parts.append("each trial alone: the trainer is not exact")
    return " · ".join([*parts, duration(study.wall_seconds)])


_DETAIL_FIELDS = TrialDetail.model_fields.keys() - Trial.model_fields.keys()
"""The fields that lists of trials omit."""


class StudyView:
    """The last fetched state of a study; `refresh` fetches it again."""

    _known: Known

    @property
    def url(self) -> str:
        """The URL of its server."""
        raise NotImplementedError

    @property
    def id(self) -> str:
        """Its name in URLs and on the command line."""
        return str(self._known.study["study"])

    @property
    def state(self) -> str:
        """`running`, `paused`, `completed`, `failed` or `cancelled`."""
        return str(self._known.study["state"])

    @property
    def metric(self) -> str:
        """The metric that the study optimizes."""
        return str(self._known.study["metric"])

    @property
    def mode(self) -> str:
        """`max` if larger values of the metric are better, `min` if smaller ones are."""
        return str(self._known.study["mode"])

    @property
    def answer(self) -> StudyAnswer:
        """The server's last answer: costs, counts, times; without the trials."""
        return StudyAnswer.from_json(self._known.study)

    @property
    def trials(self) -> list[Trial]:
        """Its trials, in the order of their numbers."""
        return [_list_entry(self._known.trials[number], self.metric) for number in sorted(self._known.trials)]

    @property
    def best(self) -> Trial | None:
        """The trial with the best value, ties to the lower number; None while no trial has one."""
        best = frames.best(self._known.trials.values(), self.mode)
        return None if best is None else _list_entry(best, self.metric)

    def front(self) -> list[Trial]:
        """The last fetched Pareto front of a study with several metrics; otherwise the best trial."""
        front = [trial for trial in self.trials if trial.front]
        return front or [best for best in (self.best,) if best is not None and not self._known.study.get("metrics")]

    def __repr__(self) -> str:
        return frames.text(type(self).__name__, self.url, self._known.study, self._known.trials.values())

    def _repr_html_(self) -> str:
        return frames.html(repr(self), self._known.study, self._known.trials.values())


class ListedTrial(Trial, needs=()):
    """A trial that prints like a result: trial 4, val_loss 0.0323793 at step 12: lr=0.1  momentum=0.9."""

    _metric: str = PrivateAttr("")

    def __str__(self) -> str:
        measured = next((each for each in (self.last, self.best) if each and each.value == self.value), None)
        value = f"{self._metric} {value_text(measured.to_json())} at step {measured.step}" if measured else self.state
        mark = f" ({word})" if (word := mark_word(self.exactness)) else ""
        hp = "  ".join(f"{name}={value}" for name, value in frames.flat_hp(self.hp))
        return f"trial {self.trial}, {value}{mark}: {hp}"

    def __repr__(self) -> str:
        return f"<{self}>"


def _list_entry(trial: Json, metric: str) -> Trial:
    """The trial without the fields that lists of trials omit."""
    fields = {name: value for name, value in trial.items() if name not in _DETAIL_FIELDS}
    listed = ListedTrial.from_json(fields)
    listed._metric = metric
    return listed
