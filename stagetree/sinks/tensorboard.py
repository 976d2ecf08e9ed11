"""TensorBoard: one run per trial, which is an event file in its own folder below the study's.

On resume, a file is truncated to the recorded length, so that no point appears twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from stagetree.sinks.base import Began, Ended, Link, Mark, Point, Record, Run, SinkError, Struck, errors_of

FILE = "events.out.tfevents.0.stagetree"


class TensorBoard:
    """Writes event files below `folder`. Raises `SinkError` if the library is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = self._runs = folder
        try:
            import tensorboard.summary.writer.record_writer  # noqa: F401
        except ImportError:
            raise SinkError("TensorBoard is not installed: pip install 'stagetree[tensorboard]'") from None

    def resume(self, study: str, marks: Mapping[Run, Mark]) -> None:
        """Truncate the files to the recorded length, which is the mark."""
        self._runs = self.folder / study
        lengths = {str(run): mark for run, mark in marks.items()}
        for path in self._runs.glob(f"trial-*/{FILE}"):
            with path.open("r+b") as file:
                file.truncate(lengths.get(path.parent.name.removeprefix("trial-"), 0))

    def write(self, record: Record) -> Mark:
        """Append to the run's file. Returns the new length."""
        path = self._runs / f"trial-{record.run}" / FILE
        with errors_of(str(path), OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:  # not kept open: a study may have more trials than a process may have files
                if file.tell() == 0:
                    _append(file, record.at, file_version="brain.Event:2")
                for summary in _summaries(record):
                    step = record.step if isinstance(record, Point) else 0
                    _append(file, record.at, step=step, summary=summary)
            return path.stat().st_size

    def close(self) -> None:
        """No files stay open."""


def _append(file: IO[bytes], at: float, **fields: Any) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    RecordWriter(file).write(Event(wall_time=at, **fields).SerializeToString())


def _summaries(record: Record) -> list[Any]:
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
