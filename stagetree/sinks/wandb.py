"""W&B: a run for each trial, in a group that bears the study's name.

Runs have names of their own making, so going on resumes them. A run's summary holds which point was logged last: the
one that was logged and not noted, when the process was killed, is known by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stagetree.sinks.base import Began, Ended, Link, Mark, Point, Record, Run, SinkError, Struck, errors_of, title_of

STEP = "step"
"""The name of the axis: trials are measured at steps of the study, in whatever order."""

MOST_OPEN = 32
"""Runs at once: each takes threads and memory."""

_LAST = "stagetree/last"


class Wandb:
    """Writes runs to `project`. Raises `SinkError` where the library is missing."""

    def __init__(self, project: str, folder: Path) -> None:
        self.folder = folder
        self._project, self._study = project, ""
        self._runs: dict[Run, Any] = {}
        self._last: dict[Run, Any] = {}
        try:
            import wandb
        except ImportError:
            raise SinkError("W&B is not installed: pip install wandb") from None
        self._wandb: Any = wandb

    def resume(self, study: str, marks: Mapping[Run, Mark]) -> None:
        """Runs are resumed as they are needed."""
        self._study = study

    def write(self, record: Record) -> Mark:
        """Write to the trial's run, which is opened where it is not."""
        with errors_of("W&B", self._wandb.Error):
            self._write(self._run(record), record)
        return None

    def _write(self, run: Any, record: Record) -> None:
        match record:
            case Began():
                run.config.update(record.values, allow_val_change=True)
            case Link():
                run.config.update({"shared": record.sentence}, allow_val_change=True)
                run.summary.update({"shares_with_trial": record.other, "shares_steps": record.end})
            case Point():
                name = f"{record.key[0]} {record.step}"
                if name != self._last[record.run]:
                    run.log({**record.numbers, STEP: record.step, _LAST: name})
            case Struck():
                run.config.update({"struck": record.sentence}, allow_val_change=True)
                self._finish(record, exit_code=1)
            case Ended():
                if record.exactness or run.config.get("exactness"):
                    run.config.update({"exactness": record.exactness}, allow_val_change=True)
                run.summary.update({"state": record.state})
                self._finish(record, exit_code=1 if record.state == "failed" else 0)

    def _finish(self, record: Record, exit_code: int) -> None:
        self._runs.pop(record.run).finish(exit_code=exit_code)

    def _run(self, record: Record) -> Any:
        if record.run not in self._runs:
            self._finish_oldest()
            run = self._wandb.init(
                project=self._project,
                group=self._study,
                id=f"{self._study}-{record.run}",
                name=title_of(record),
                resume="allow",
                reinit="create_new",
            )
            run.define_metric(STEP)
            run.define_metric("*", step_metric=STEP)
            self._runs[record.run], self._last[record.run] = run, run.summary.get(_LAST)
        return self._runs[record.run]

    def _finish_oldest(self) -> None:
        """Make room for one more; the run is resumed when there is more to write to it."""
        while len(self._runs) >= MOST_OPEN:
            self._runs.pop(next(iter(self._runs))).finish()

    def close(self) -> None:
        """What is under way is sent."""
        for run in self._runs.values():
            run.finish()
        self._runs.clear()
