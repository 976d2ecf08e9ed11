"""Addresses of sinks: what a study file may name, and that one process at a time writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys import SMALLEST

from stagetree.sinks import SinkError, follow, open_sink
from stagetree.sinks.addresses import Configured
from stagetree.sinks.follower import Ledger, end_time, ledger_path
from stagetree.spec import SpecError, StudySpec
from tests.sinks.scripted import LOGGED, STUDY, Scripted, busy_study


@pytest.mark.parametrize(
    "address",
    ["tensorboard:runs", "wandb:my-project", "mlflow:http://tracking:5000", "mlflow:ml", "mlflow:sqlite:///ml.db"],
)
def test_a_study_names_sinks(address: str) -> None:
    assert StudySpec.from_dict({**SMALLEST, "sinks": [address]}).to_json()["sinks"] == [address]


def test_a_study_without_sinks_has_an_unchanged_file() -> None:
    assert "sinks" not in StudySpec.from_dict(SMALLEST).to_json()


@pytest.mark.parametrize("address", ["no where", "tensorboard:", "ftp:there", ""])
def test_an_invalid_sink_is_refused_in_a_sentence(address: str) -> None:
    with pytest.raises(SpecError, match=r"^sinks\[0\]: must be tensorboard:DIR, .* or webhook:URL, got '"):
        StudySpec.from_dict({**SMALLEST, "sinks": [address]})


@pytest.mark.parametrize(
    "address",
    [
        "tensorboard:/etc", "tensorboard:a/../../b", "tensorboard:~/runs", "tensorboard:gs://bucket/runs",
        "mlflow:file:///etc", "mlflow:sqlite:////etc/ml.db", "mlflow:sqlite:///../ml.db", "mlflow:/etc",
    ],
)  # fmt: skip
def test_a_study_may_not_name_an_outside_folder(address: str) -> None:
    """The process that opens it may be another user's."""
    with pytest.raises(SpecError, match=r"^sinks\[0\]: must name .*a folder .*below the folder where"):
        StudySpec.from_dict({**SMALLEST, "sinks": [address]})


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("mlflow:sqlite:///.stagetree/stagetree.db", "must not lie in .stagetree, where studies are kept"),
        ("tensorboard:.stagetree/checkpoints", "must not lie in .stagetree, where studies are kept"),
        ("mlflow:databricks", "must not use an account of the service"),
    ],
)
def test_a_study_may_not_write_into_a_store_or_use_other_credentials(address: str, sentence: str) -> None:
    """Once MLflow created its tables in the event log, and used the operator's profile."""
    with pytest.raises(SpecError, match=sentence):
        StudySpec.from_dict({**SMALLEST, "sinks": [address]})


@pytest.mark.parametrize("address", ["mlflow:sqlite:///kept/stagetree.db", "tensorboard:kept/runs", "mlflow:kept"])
def test_no_sink_is_opened_in_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "stagetree.db").touch()
    with pytest.raises(SinkError, match="lies in a store of stagetree"):
        open_sink(address)


def test_one_process_at_a_time_writes(tmp_path: Path) -> None:
    ledger = Ledger(ledger_path(tmp_path, STUDY))
    with pytest.raises(SinkError, match="another process writes there"):
        follow(Scripted(busy_study()), STUDY, [open_sink(f"tensorboard:{tmp_path}")])
    ledger.close()
    follow(Scripted(busy_study()), STUDY, [open_sink(f"tensorboard:{tmp_path}")])


def test_positions_are_noted_after_all_writes(tmp_path: Path) -> None:
    path, address = ledger_path(tmp_path, STUDY), f"tensorboard:{tmp_path}"
    assert end_time(path) is None
    follow(Scripted(busy_study(), logged=LOGGED), STUDY, [open_sink(address)])
    assert end_time(path) == 99.0
    path.write_bytes(path.read_bytes().rpartition(b"\n")[0])
    assert end_time(path) is None
    path.write_bytes(b"[4611686018427387904, nul")
    assert end_time(path) is None


def test_a_study_names_sinks_that_the_operator_configured() -> None:
    """Once a study's own address was opened with the operator's credentials."""
    team = Configured.parse("team=mlflow:https://tracking, board=wandb:ours")
    assert team.address("team") == "mlflow:https://tracking"
    assert team.address("tensorboard:runs") == "tensorboard:runs"
    for given in ("mlflow:http://169.254.169.254/latest", "wandb:theirs", "teams"):
        with pytest.raises(SinkError, match="must be one of team, board, tensorboard:DIR, which the operator"):
            team.address(given)
    assert Configured.parse("*").address("mlflow:http://tracking") == "mlflow:http://tracking"
    with pytest.raises(SinkError):
        Configured.parse("*").address("team")


@pytest.mark.parametrize("written", ["mlflow:http://tracking", "a b=wandb:x", "team=ftp:x", "=wandb:x"])
def test_a_wrong_list_of_sinks_is_refused(written: str) -> None:
    with pytest.raises(SinkError):
        Configured.parse(written)
