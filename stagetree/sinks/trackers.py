"""W&B and MLflow: one run per trial, under the study's name.

W&B's forks are not used: they need its cloud and increasing steps, while points of an extended trial arrive late.

Runs at W&B have derived names, so they can be resumed. The summary of a run holds the last logged point, which
identifies a point that was logged but not noted before a kill.

At MLflow, a run of the study's experiment is identified by its tags. Its points are fetched once on resume, so that a
point that was logged but not noted is not logged again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stagetree.sinks.base import (
    Artifact,
    Began,
    Ended,
    Link,
    Mark,
    Point,
    Record,
    Run,
    RunRecord,
    SinkError,
    Struck,
    errors_of,
    run_of,
    title_of,
)

STEP = "step"
"""The name of the axis. Trials are measured at steps of the study, in any order."""

MOST_OPEN = 32
"""Open runs at a time. Each takes threads and memory."""

_LAST, _SHARED = "stagetree/last", "shared_with"
_TYPES = {"weights": "model", "report": "report"}
"""W&B's types of the artifacts."""


class Wandb:
    """Writes runs to `project`. Raises `SinkError` if the library is missing.

    artifacts: the requested kinds of `Artifact`.
    """

    def __init__(self, project: str, folder: Path, artifacts: Sequence[str] = ()) -> None:
        self.folder, self.artifacts = folder, artifacts
        self._project, self._study = project, ""
        self._runs: dict[Run, Any] = {}
        self._last: dict[Run, Any] = {}
        try:
            import wandb
        except ImportError:
            raise SinkError("W&B is not installed: pip install wandb") from None
        self._wandb: Any = wandb

    def resume(self, study: str, marks: Mapping[Run, Mark]) -> None:
        """Runs are resumed on demand."""
        self._study = study

    def write(self, record: Record) -> Mark:
        """Write to the trial's run, opening it if necessary."""
        with errors_of("W&B", self._wandb.Error):
            self._write(self._run(record), record)
        return None

    def write_artifact(self, artifact: Artifact) -> Mark:
        """Log `STUDY-KIND` as an artifact of the run. W&B makes a new version if the files differ."""
        with errors_of("W&B", self._wandb.Error):
            files = self._wandb.Artifact(f"{self._study}-{artifact.kind}", type=_TYPES[artifact.kind])
            files.add_dir(str(artifact.folder))
            self._run(artifact).log_artifact(files)
        return None

    def _write(self, run: Any, record: Record) -> None:
        match record:
            case Began():
                run.config.update(record.values, allow_val_change=True)
            case Link():
                run.config.update({"shared": record.sentence}, allow_val_change=True)
                run.summary.update({"shares_with_trial": record.other, "shares_steps": record.end})
                if record.is_parent:
                    parent = {"parent_trial": record.other, "parent_step": record.end}
                    run.config.update(parent, allow_val_change=True)
            case Point():
                name = f"{record.key[0]} {record.step}"
                if name != self._last[record.run]:
                    shared = {} if record.shared_with is None else {_SHARED: record.shared_with}
                    run.log({**record.numbers, **shared, STEP: record.step, _LAST: name})
            case Struck():
                run.config.update({"struck": record.sentence}, allow_val_change=True)
                self._finish(record, exit_code=1)
            case Ended():
                if record.exactness or run.config.get("exactness"):
                    run.config.update({"exactness": record.exactness}, allow_val_change=True)
                run.summary.update({"state": record.state} | ({} if record.value is None else {"value": record.value}))
                self._finish(record, exit_code=1 if record.state == "failed" else 0)

    def _finish(self, record: Record, exit_code: int) -> None:
        self._runs.pop(record.run).finish(exit_code=exit_code)

    def _run(self, record: RunRecord) -> Any:
        if record.run not in self._runs:
            # Close the oldest run to make room. It is resumed when needed.
            while len(self._runs) >= MOST_OPEN:
                self._runs.pop(next(iter(self._runs))).finish()
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

    def close(self) -> None:
        """Finish all open runs."""
        for run in self._runs.values():
            run.finish()
        self._runs.clear()


_TRIAL, _ALONE, _EXACTNESS = "stagetree.trial", "stagetree.alone", "stagetree.exactness"
_LONGEST_VALUE = 6000
"""MLflow's limit for the length of a parameter."""


class Mlflow:
    """Writes runs to the tracking server or folder at `uri`. Raises `SinkError` if the library is missing.

    artifacts: the requested kinds of `Artifact`.
    """

    def __init__(self, uri: str, folder: Path, artifacts: Sequence[str] = ()) -> None:
        self.folder, self.artifacts = folder, artifacts
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
        """Find or create the experiment, and find its runs."""
        with errors_of("MLflow", self._refusal):
            there = self._client.get_experiment_by_name(study)
            self._experiment = there.experiment_id if there else self._client.create_experiment(study)
            token = None
            while token is None or token:
                page = self._client.search_runs([self._experiment], page_token=token)
                ours = [run for run in page if _TRIAL in run.data.tags]
                self._runs |= {run_of(int(r.data.tags[_TRIAL]), _ALONE in r.data.tags): r.info.run_id for r in ours}
                token = page.token or ""

    def write(self, record: Record) -> Mark:
        """Write to the trial's run, creating it if necessary."""
        with errors_of("MLflow", self._refusal):
            self._write(self._run(record), record)
        return None

    def write_artifact(self, artifact: Artifact) -> Mark:
        """Write the files to a folder of the run's artifacts, named by their kind."""
        with errors_of("MLflow", self._refusal, OSError):
            self._client.log_artifacts(self._run(artifact), str(artifact.folder), artifact.kind)
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
                if record.is_parent:  # MLflow shows the run below it
                    self._client.set_tag(run, "mlflow.parentRunId", self._runs[run_of(record.other, record.is_alone)])
            case Point():
                self._log(run, record)
            case Struck():
                self._client.set_tag(run, "stagetree.struck", record.reason)
                self._client.set_tag(run, "mlflow.note.content", record.sentence)
                self._client.set_terminated(run, "KILLED", end_time=_milliseconds(record.at))
            case Ended():
                if record.exactness:
                    self._client.set_tag(run, _EXACTNESS, record.exactness)
                elif _EXACTNESS in self._client.get_run(run).data.tags:
                    self._client.delete_tag(run, _EXACTNESS)
                self._client.set_tag(run, "stagetree.state", record.state)
                if record.value is not None:
                    self._client.set_tag(run, "stagetree.value", repr(record.value))
                self._client.set_terminated(
                    run,
                    {"failed": "FAILED", "cancelled": "KILLED"}.get(record.state, "FINISHED"),
                    end_time=_milliseconds(record.at),
                )

    def _log(self, run: str, point: Point) -> None:
        from mlflow.entities import Metric

        if point.run not in self._logged:
            names = self._client.get_run(run).data.metrics
            self._logged[point.run] = {
                (name, each.step) for name in names for each in self._client.get_metric_history(run, name)
            }
        at, there = _milliseconds(point.at), self._logged[point.run]
        new = [name for name in point.numbers if (name, point.step) not in there]
        metrics = [Metric(name, point.numbers[name], at, point.step) for name in new]
        self._client.log_batch(run, metrics=metrics)

    def _run(self, record: RunRecord) -> str:
        if record.run not in self._runs:
            created = self._client.create_run(
                self._experiment,
                start_time=_milliseconds(record.at),
                tags={_TRIAL: str(record.trial)} | ({_ALONE: "true"} if record.is_alone else {}),
                run_name=title_of(record),
            )
            self._runs[record.run] = created.info.run_id
        return self._runs[record.run]

    def close(self) -> None:
        """Nothing stays open."""


def _milliseconds(at: float) -> int:
    return int(at * 1000)
