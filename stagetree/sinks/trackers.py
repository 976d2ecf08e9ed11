"""TensorBoard and W&B: a run for each trial, under the study's name.

In TensorBoard a run is one event file in a folder of its own. On going on, a file is cut to the length on record, so
that no point is in it twice. In W&B, runs have names of their own making, so going on resumes them. A run's summary
holds which point was logged last: after a kill, it tells the point that was logged and not noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from stagetree.sinks.base import Began, Ended, Link, Mark, Point, Record, Run, SinkError, Struck, errors_of, title_of

FILE = "events.out.tfevents.0.stagetree"


class TensorBoard:
    """Writes event files below `folder`. Raises `SinkError` where the library is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = self._runs = folder
        try:
            import tensorboard.summary.writer.record_writer  # noqa: F401
        except ImportError:
            raise SinkError("TensorBoard is not installed: pip install 'stagetree[tensorboard]'") from None

    def resume(self, study: str, marks: Mapping[Run, Mark]) -> None:
        """Cut the files to what was noted: a mark is a file's length."""
        self._runs = self.folder / study
        lengths = {str(run): mark for run, mark in marks.items()}
        for path in self._runs.glob(f"trial-*/{FILE}"):
            with path.open("r+b") as file:
                file.truncate(lengths.get(path.parent.name.removeprefix("trial-"), 0))

    def write(self, record: Record) -> Mark:
        """Append to the file of the run; its length then."""
        path = self._runs / f"trial-{record.run}" / FILE
        with errors_of(str(path), OSError):
            return self._append_to(path, record)

    def _append_to(self, path: Path, record: Record) -> int:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:  # not kept open: a study may have more trials than a process may have files
            if file.tell() == 0:
                _append(file, record.at, file_version="brain.Event:2")
            for summary in _summaries(record):
                step = record.step if isinstance(record, Point) else 0
                _append(file, record.at, step=step, summary=summary)
        return path.stat().st_size

    def close(self) -> None:
        """Nothing is open."""


def _append(file: IO[bytes], at: float, **fields: Any) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    RecordWriter(file).write(Event(wall_time=at, **fields).SerializeToString())


def _summaries(record: Record) -> list[Any]:
    """What TensorBoard is shown of a record."""
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.plugins.text.summary_v2 import text_pb

    match record:
        case Began():
            return [hparams_pb(record.values, trial_id=str(record.run), start_time_secs=record.at)]
        case Point():
            return [scalar_pb(name, value) for name, value in record.numbers.items()]
        case Link():
            return [text_pb("shared", record.sentence)]
        case Struck():
            return [text_pb("struck", record.sentence)]
        case Ended():
            marked = [text_pb("exactness", record.exactness)] if record.exactness else []
            return [text_pb("state", record.state), *marked]


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
