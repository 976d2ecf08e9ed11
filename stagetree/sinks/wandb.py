"""W&B: a run for each trial, in a group that bears the study's name.

Runs have names of their own making, so going on resumes them. A run's summary holds which point was logged last: the
one that was logged and not noted, when the process was killed, is known by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stagetree.sinks.base import Began, Ended, Link, Mark, Point, Record, SinkError, errors_of

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
        self._runs: dict[int, Any] = {}
        self._last: dict[int, Any] = {}
        try:
            import wandb
        except ImportError:
            raise SinkError("W&B is not installed: pip install wandb") from None
        self._wandb: Any = wandb

    def resume(self, study: str, marks: Mapping[int, Mark]) -> None:
        """Runs are resumed as they are needed."""
        self._study = study

    def write(self, record: Record) -> Mark:
        """Write to the trial's run, which is opened where it is not."""
        with errors_of("W&B", self._wandb.Error):
            self._write(self._run(record.trial), record)
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
                if name != self._last[record.trial]:
                    run.log({**record.numbers, STEP: record.step, _LAST: name})
            case Ended():
                run.summary.update({"state": record.state})
                run.finish(exit_code=1 if record.state == "failed" else 0)
                del self._runs[record.trial]

    def _run(self, trial: int) -> Any:
        if trial not in self._runs:
            self._finish_oldest()
            run = self._wandb.init(
                project=self._project,
                group=self._study,
                id=f"{self._study}-{trial}",
                name=f"trial {trial}",
                resume="allow",
                reinit="create_new",
            )
            run.define_metric(STEP)
            run.define_metric("*", step_metric=STEP)
            self._runs[trial], self._last[trial] = run, run.summary.get(_LAST)
        return self._runs[trial]

    def _finish_oldest(self) -> None:
        """Make room for one more; the run is resumed when there is more to write to it."""
        while len(self._runs) >= MOST_OPEN:
            self._runs.pop(next(iter(self._runs))).finish()

    def close(self) -> None:
        """What is under way is sent."""
        for run in self._runs.values():
            run.finish()
        self._runs.clear()
