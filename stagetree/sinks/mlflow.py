"""MLflow: an experiment that bears the study's name, and in it a run for each trial.

A run is found by its tags. What it holds is asked once, when it is gone on with: a point that was logged and not noted,
when the process was killed, is not logged again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stagetree.sinks.base import (
    Began,
    Ended,
    Link,
    Mark,
    Point,
    Record,
    Run,
    SinkError,
    Struck,
    errors_of,
    run_of,
    title_of,
)

_TRIAL, _ALONE, _EXACTNESS = "stagetree.trial", "stagetree.alone", "stagetree.exactness"
_LONGEST_VALUE = 6000
"""Of a parameter, in characters: MLflow takes no longer ones."""


class Mlflow:
    """Writes runs to the tracking server, or the folder, at `uri`. Raises `SinkError` where the library is missing."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.folder = folder
        self._experiment = ""
        self._runs: dict[Run, str] = {}
        self._logged: dict[Run, set[tuple[str, int]]] = {}
        try:
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise SinkError("MLflow is not installed: pip install mlflow") from None
        self._refusal: type[Exception] = MlflowException
        with errors_of("MLflow", MlflowException):
            self._client: Any = MlflowClient(tracking_uri=uri)

    def resume(self, study: str, marks: Mapping[Run, Mark]) -> None:
        """The experiment, which is made where it is not there, and the runs in it."""
        with errors_of("MLflow", self._refusal):
            self._find(study)

    def _find(self, study: str) -> None:
        there = self._client.get_experiment_by_name(study)
        self._experiment = there.experiment_id if there else self._client.create_experiment(study)
        token = None
        while token is None or token:
            page = self._client.search_runs([self._experiment], page_token=token)
            ours = [run for run in page if _TRIAL in run.data.tags]
            self._runs |= {run_of(int(r.data.tags[_TRIAL]), _ALONE in r.data.tags): r.info.run_id for r in ours}
            token = page.token or ""

    def write(self, record: Record) -> Mark:
        """Write to the trial's run, which is made where it is not there."""
        with errors_of("MLflow", self._refusal):
            self._write(self._run(record), record)
        return None

    def _write(self, run: str, record: Record) -> None:
        match record:
            case Began():
                for name, value in record.values.items():
                    self._client.log_param(run, name, str(value)[:_LONGEST_VALUE])
            case Link():
                self._client.set_tag(run, "stagetree.shares_steps", str(record.end))
                self._client.set_tag(run, "stagetree.shares_with", self._runs[run_of(record.other, record.is_alone)])
                self._client.set_tag(run, "mlflow.note.content", record.sentence)
            case Point():
                self._log(run, record)
            case Struck():
                self._client.set_tag(run, "stagetree.struck", record.reason)
                self._client.set_tag(run, "mlflow.note.content", record.sentence)
                self._client.set_terminated(run, "KILLED", end_time=_milliseconds(record.at))
            case Ended():
                self._mark(run, record.exactness)
                self._client.set_tag(run, "stagetree.state", record.state)
                self._client.set_terminated(run, _status(record.state), end_time=_milliseconds(record.at))

    def _mark(self, run: str, exactness: str) -> None:
        """Say how far the trial's numbers are proven, or take that back."""
        if exactness:
            self._client.set_tag(run, _EXACTNESS, exactness)
        elif _EXACTNESS in self._client.get_run(run).data.tags:
            self._client.delete_tag(run, _EXACTNESS)

    def _log(self, run: str, point: Point) -> None:
        from mlflow.entities import Metric

        if point.run not in self._logged:
            self._logged[point.run] = self._steps(run)
        at, there = _milliseconds(point.at), self._logged[point.run]
        new = [name for name in point.numbers if (name, point.step) not in there]
        metrics = [Metric(name, point.numbers[name], at, point.step) for name in new]
        self._client.log_batch(run, metrics=metrics)

    def _steps(self, run: str) -> set[tuple[str, int]]:
        """Where the run has which metric."""
        names = self._client.get_run(run).data.metrics
        return {(name, each.step) for name in names for each in self._client.get_metric_history(run, name)}

    def _run(self, record: Record) -> str:
        if record.run not in self._runs:
            made = self._client.create_run(
                self._experiment,
                start_time=_milliseconds(record.at),
                tags={_TRIAL: str(record.trial)} | ({_ALONE: "true"} if record.is_alone else {}),
                run_name=title_of(record),
            )
            self._runs[record.run] = made.info.run_id
        return self._runs[record.run]

    def close(self) -> None:
        """Nothing is open."""


def _status(state: str) -> str:
    return {"failed": "FAILED", "cancelled": "KILLED"}.get(state, "FINISHED")


def _milliseconds(at: float) -> int:
    return int(at * 1000)
