"""What `run` says of a trainer first: in one line, once for each version and store, and never for long."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from stacks import wait_for

from app.cli.checking import job_of
from app.cli.short_check import short_check
from stagetree.runtime.warm import launch
from stagetree.spec import StudySpec

INEXACT = Path(__file__).parents[1] / "runtime/inexact.py"
PATIENCE = 60
Said = Callable[..., str]


def study(name: str, **more: Any) -> StudySpec:
    fields = {"name": name, "trainer": name, "metric": "value", "mode": "max", "space": {"lr": [0.001, 0.01]}}
    return StudySpec.from_dict({**fields, "tuner": {"kind": "grid", "max_steps": 3}, **more}, limits=None)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of an interpreter as a stack has it."""
    path = tmp_path_factory.mktemp("stack") / "warm"
    interpreter, its_life = launch(str(path))
    yield str(path)
    its_life.close()
    interpreter.wait(PATIENCE)


@pytest.fixture
def said(warm: str) -> Callable[..., str]:
    """The line about the trainer of a study."""

    def said(spec: StudySpec, store: Path | None = None, file: Path = INEXACT, seconds: int = PATIENCE) -> str:
        return short_check(spec, [str(file)], store, warm, seconds)

    return said


def test_an_exact_trainer_is_checked_once_for_each_version_and_store(said: Said, tmp_path: Path) -> None:
    file, store = tmp_path / "inexact.py", tmp_path / "store"
    file.write_bytes(INEXACT.read_bytes())
    store.mkdir()
    exactly = "Check: the trainer goes on exactly. A step takes "
    assert said(study("exact"), store, file).startswith(exactly)
    assert said(study("exact", space={"lr": 0.002}, seed=7), store, file) == ""
    file.write_text(file.read_text() + "\n# another version\n")
    assert said(study("exact"), store, file).startswith(exactly)


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("persistent", {"workers": 2}, "Likely: persistent loader workers (Noisy)"),
        ("forgot-train", {}, "Likely: evaluate() leaves self.net in evaluation mode; end it with train()"),
        ("counting", {}, "the first is trainer.net.0.bias"),
        ("broken", {}, "the trainer failed, ValueError: no luck. `stagetree check` shows where"),
        ("leaving", {}, "ended by itself, with exit code 3"),
        ("diverging", {}, "the trainer failed, value is not a finite number after step 2."),
    ],
)
def test_what_is_wrong_is_said_each_time(
    said: Said, tmp_path: Path, name: str, args: dict[str, Any], words: str
) -> None:
    line = said(study(name, trainer_args=args), tmp_path)
    assert line.startswith("Check: ") and words in line and "`stagetree check`" in line and "\n" not in line
    assert list(tmp_path.iterdir()) == []


def test_a_metric_that_the_trainer_does_not_report_is_said(said: Said) -> None:
    words = "the trainer does not report 'accuracy', the metric of the study; it reports value."
    assert words in said(study("exact", metric="accuracy"))


def test_long_steps_are_not_waited_for(said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert said(study("endless"), seconds=1) == "Check: given up after 1 s. `stagetree check` takes its time."
    assert list(tmp_path.iterdir()) == []


def is_over(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_workers_that_were_left_behind_end_with_the_check(said: Said, tmp_path: Path) -> None:
    journal = tmp_path / "worker"
    assert "exit code 3" in said(study("orphaning", trainer_args={"journal": str(journal)}))
    wait_for("the end of what it left behind", lambda: is_over(int(journal.read_text())))


def test_without_an_interpreter_it_has_its_own(tmp_path: Path) -> None:
    found = short_check(study("exact"), [str(INEXACT)], None, str(tmp_path / "nobody"), PATIENCE)
    assert "goes on exactly" in found


@pytest.mark.parametrize("more", [{"determinism": "off"}, {"space": None, "tuner": {"kind": "external"}}])
def test_where_there_is_nothing_to_check_nothing_is_said(said: Said, more: dict[str, Any]) -> None:
    assert said(study("broken", **more)) == ""


@pytest.mark.parametrize(
    ("tuner", "more"),
    [
        ({"kind": "grid", "max_steps": 3}, {}),
        (
            {"kind": "asha", "num_trials": 3, "min_steps": 1, "max_steps": 9, "reduction_factor": 3},
            {"space": {"lr": {"uniform": [0.1, 0.2]}}},
        ),
        ({"kind": "random", "num_trials": 3, "max_steps": 9, "first": [{"lr": 0.1}]}, {}),
        ({"kind": "pbt", "population_size": 4, "ready_steps": 3, "max_steps": 9}, {}),
        ({"kind": "trials", "trials": [{"hp": {"lr": 0.1}, "steps": 2}]}, {"space": None}),
    ],
)
def test_every_tuner_has_something_to_check_with(tuner: dict[str, Any], more: dict[str, Any]) -> None:
    job = job_of(study("exact", tuner=tuner, **more), "trainer.py", "cpu")
    assert job is not None and job["hp"].keys() == {"lr"}
