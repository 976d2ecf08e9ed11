"""Weights and reports that MLflow and W&B get on request; MLflow into a folder, read back by itself."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from toys import SMALLEST

from stagetree.errors import NotFound
from stagetree.sinks import SinkError, follow, open_sink
from stagetree.sinks.addresses import Configured, progress_folder, split_artifacts
from stagetree.spec import SpecError, StudySpec
from tests.sinks.scripted import STUDY, Scripted, busy_study, isolated_study

BOTH = "?artifacts=weights+report"
WEIGHTS, REPORT = f"{STUDY}-trial-1-step-40.safetensors", f"{STUDY}.html"


class Kept(Scripted):
    """A study whose best trial is the second one, if it has one.

    gone: why its weights are deleted. fetched: the number of requests for them.
    """

    gone, has_best, fetched, finished_at = "", True, 0, 99.0

    def study(self, study: str, *, trials: bool = True) -> Any:
        best = {"trial": 1} if self.has_best else None
        return super().study(study) | {"best": best, "finished_at": self.finished_at}

    def checkpoint(self, study: str, to: Path) -> Path:
        self.fetched += 1
        if self.gone:
            raise NotFound(404, "Not Found", self.gone)
        (to / WEIGHTS).write_bytes(b"weights")
        return to / WEIGHTS

    def report(self, study: str, *, public: bool = False) -> str:
        return f"<!doctype html>{study} {public} {self.finished_at}"


@pytest.fixture(autouse=True)
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that is a folder. Positions are noted in the working folder."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    return f"file://{tmp_path / 'store'}"


def artifacts(uri: str) -> dict[str, dict[str, bytes]]:
    """By run, each file of its artifacts."""
    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name(STUDY).experiment_id])
    places = {run.info.run_name: Path(run.info.artifact_uri.removeprefix("file://")) for run in runs}
    return {
        name: {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*.*")}
        for name, place in places.items()
    }


def test_mlflow_gets_artifacts_in_the_run_of_the_best_trial(uri: str) -> None:
    source, said = Kept(busy_study()), list[str]()
    for _ in range(2):
        follow(source, STUDY, [open_sink(f"mlflow:{uri}{BOTH}")], said.append)
    report = f"<!doctype html>{STUDY} True 99.0".encode()
    assert artifacts(uri) == {"trial 0": {}, "trial 1": {f"weights/{WEIGHTS}": b"weights", f"report/{REPORT}": report}}
    assert (source.fetched, said) == (1, [])
    source.finished_at = 100.0  # it resumed, and completed again
    follow(source, STUDY, [open_sink(f"mlflow:{uri}?artifacts=report")])
    assert artifacts(uri)["trial 1"][f"report/{REPORT}"].endswith(b"100.0")


def test_without_a_request_no_artifact_is_fetched(uri: str) -> None:
    source = Kept(busy_study())
    follow(source, STUDY, [open_sink(f"mlflow:{uri}")])
    assert (artifacts(uri), source.fetched) == ({"trial 0": {}, "trial 1": {}}, 0)
    follow(source, STUDY, [open_sink(f"mlflow:{uri}?artifacts=weights")])  # fetched when the study completed
    assert list(artifacts(uri)["trial 1"]) == [f"weights/{WEIGHTS}"]


def test_deleted_weights_are_reported_and_do_not_end_the_sink(uri: str) -> None:
    source, said = Kept(busy_study()), list[str]()
    source.gone = "the state of trial 1 after step 40 is not kept; the steps that are: none"
    follow(source, STUDY, [open_sink(f"mlflow:{uri}{BOTH}")], said.append)
    assert said == [f"the run of trial 1 of {STUDY} gets no weights: {source.gone}"]
    assert list(artifacts(uri)["trial 1"]) == [f"report/{REPORT}"]
    source.has_best = False
    with pytest.warns(UserWarning, match=f"{STUDY} has no best trial, whose run would get its weights and report"):
        follow(source, STUDY, [open_sink(f"mlflow:{uri}{BOTH}")])


def test_artifacts_go_to_the_run_of_the_trial_trained_alone(uri: str) -> None:
    follow(Kept(isolated_study()), STUDY, [open_sink(f"mlflow:{uri}?artifacts=report")])
    assert {name for name, files in artifacts(uri).items() if files} == {"trial 1 (alone)"}


class Run:
    """A run of W&B's, while it is open."""

    def __init__(self, id: str, logged: list[Any]) -> None:
        self.id, self._logged = id, logged
        self.config, self.summary = SimpleNamespace(update=lambda *_, **__: None, get=lambda _: None), dict[str, Any]()

    def define_metric(self, name: str, step_metric: str | None = None) -> None: ...

    def log(self, row: dict[str, Any]) -> None: ...

    def log_artifact(self, artifact: Any) -> None:
        self._logged.append((self.id, artifact.name, artifact.type, artifact.files))

    def finish(self, exit_code: int = 0) -> None: ...


def test_wandb_gets_artifacts_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    logged = list[Any]()

    def artifact(name: str, type: str) -> Any:
        made = SimpleNamespace(name=name, type=type, files=list[str]())
        made.add_dir = lambda folder: made.files.extend(each.name for each in Path(folder).iterdir())
        return made

    def init(*, id: str, **_: Any) -> Run:
        return Run(id, logged)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Error=KeyError, Artifact=artifact))
    follow(Kept(busy_study()), STUDY, [open_sink(f"wandb:mine{BOTH}")])
    assert logged == [
        (f"{STUDY}-1", f"{STUDY}-weights", "model", [WEIGHTS]),
        (f"{STUDY}-1", f"{STUDY}-report", "report", [REPORT]),
    ]


def test_an_address_may_ask_for_artifacts() -> None:
    assert split_artifacts("mlflow:http://tracking/?team=a&artifacts=report") == (
        "mlflow:http://tracking/?team=a",
        ("report",),
    )
    assert progress_folder(f"wandb:mine{BOTH}") == progress_folder("wandb:mine")
    for address in (f"mlflow:ml{BOTH}", "wandb:mine?artifacts=weights", f"team{BOTH}"):
        assert StudySpec.from_dict({**SMALLEST, "sinks": [address]}).to_json()["sinks"] == [address]
    team = Configured.parse("team=mlflow:https://tracking?artifacts=report, alerts=webhook:https://host/?artifacts=x")
    assert team.address("team") == "mlflow:https://tracking?artifacts=report"
    assert team.address(f"team{BOTH}") == f"mlflow:https://tracking{BOTH}"
    assert team.address("alerts") == "webhook:https://host/?artifacts=x"
    with pytest.raises(SinkError, match="must be mlflow:URI or wandb:PROJECT where it asks for artifacts"):
        Configured.parse("board=tensorboard:runs").address(f"board{BOTH}")


@pytest.mark.parametrize("address", ["mlflow:ml?artifacts=weigths", "wandb:p?artifact=weights", "team?artifacts="])
def test_an_unknown_artifact_is_refused(address: str) -> None:
    with pytest.raises(SpecError, match=r"^sinks\[0\]: must end with \?artifacts=weights or .* for artifacts, got '"):
        StudySpec.from_dict({**SMALLEST, "sinks": [address]})


@pytest.mark.parametrize("address", ["tensorboard:runs?artifacts=report", "otlp:http://host:4318?artifacts=report"])
def test_other_sinks_take_no_artifacts(address: str) -> None:
    with pytest.raises(SpecError, match=r"^sinks\[0\]: must be mlflow:URI or wandb:PROJECT where it asks"):
        StudySpec.from_dict({**SMALLEST, "sinks": [address]})
