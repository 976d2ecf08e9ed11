"""How a study that is waited for is shown: a line that changes in a terminal, a view in a notebook, or lines."""

from __future__ import annotations

import os
import shutil
import sys
import time
from types import TracebackType
from typing import Any, Protocol

from stagetree.models import StudyAnswer
from stagetree.notebook import cell
from stagetree.text import duration

_LINE_SECONDS = 5.0
"""Where lines cannot change, how long it is from one to the next."""


class Live(Protocol):
    """Shows a study as it stands, in place of how it stood before."""

    def show(self, study: StudyAnswer) -> None: ...

    def close(self) -> None: ...


class Nothing:
    """Shows nothing."""

    def show(self, study: StudyAnswer) -> None: ...

    def close(self) -> None: ...


class Terminal:
    """The last line of a terminal."""

    def show(self, study: StudyAnswer) -> None:
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[2K{progress_text(study)[:width]}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print(file=sys.stderr, flush=True)


class Lines:
    """A line now and then, for files and for terminals that know no escapes; the last one is always there."""

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


class Cell:
    """A place in the output of a notebook's cell."""

    def __init__(self, display: Any) -> None:
        self._display, self._handle = display, None

    def show(self, study: StudyAnswer) -> None:
        bundle = {"text/plain": progress_text(study), "text/html": cell.html(study)}
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def close(self) -> None: ...


class Showing:
    """Shows a study as long as the block lasts, where `show` is not false."""

    def __init__(self, show: bool = True) -> None:
        self._live = _fitting() if show else Nothing()

    def __enter__(self) -> Showing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.close()

    def show(self, study: StudyAnswer) -> None:
        """Show how it stands now."""
        self._live.show(study)


def _fitting() -> Live:
    if display := notebook_display():
        return Cell(display)
    return Terminal() if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else Lines()


def notebook_display() -> Any:
    """What shows something in a notebook's cell; None where there is no notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display


def progress_text(study: StudyAnswer) -> str:
    """A study in a line: its state, trials, steps, failures, best trial, and the time it has taken."""
    parts = [f"{study.study} {study.state}"]
    if (trials := study.progress.trials) is not None:
        parts.append(f"{trials.done}{'' if trials.expected is None else f'/{trials.expected}'} trials")
    parts.append(f"{study.steps.executed} steps run")
    if failed := study.counts.get("failed", 0):
        parts.append(f"{failed} failed")
    if study.best is not None:
        parts.append(f"best {study.metric} {study.best.value:.6g} (trial {study.best.trial})")
    if study.exactness.isolated:
        parts.append("each trial alone: the trainer is not exact")
    return " · ".join([*parts, duration(study.wall_seconds)])
