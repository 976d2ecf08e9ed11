"""What goes wrong at the command line: one sentence that says what would be right, and an exit code for scripts."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from commandline import Stagetree, Write
from stacks import TOYS, Service
from toys import grid, trials

from app.cli.errors import CODES
from app.embedded.machine import reserve

RISING = {"lr": {"family": "multistep", "init": 0.1, "milestones": [20, 10], "gamma": 0.1}}
WRONG = {
    "space.lr.family: must be one of constant, values, multistep": {"space": {"lr": {"family": "cosin", "init": 1}}},
    "did you mean metric?": {"metrik": "score"},
    "tuner.kind: must be one of grid, random, trials": {"tuner": {"kind": "gird", "max_steps": 4}},
    "space: must name at least one hyper-parameter": {"space": {}},
    "space.lr: must be a list of at least one option": {"space": {"lr": []}},
    "space.lr.milestones: must rise from one to the next, but 10 comes after 20": {"space": RISING},
    "at least 1, got 0": {"tuner": {"kind": "grid", "max_steps": 0}},
    "at least 1, got -3": {"tuner": {"kind": "grid", "max_steps": -3}},
    "mode: must be": {"mode": "best"},
}


@pytest.mark.slow
@pytest.mark.parametrize("sentence", WRONG)
def test_a_wrong_study(stagetree: Stagetree, write: Write, sentence: str) -> None:
    for command in ("run", "preview", "submit"):
        said = stagetree(command, write(grid("wrong") | WRONG[sentence]))
        assert (said.code, said.out) == (2, "")
        assert sentence in said.err
        assert all(line.startswith("stagetree: ") and "study.yaml" in line for line in said.err.splitlines())


@pytest.mark.slow
def test_a_study_from_stdin_is_named_so(write: Write) -> None:
    command = [sys.executable, "-m", "stagetree", "preview", "-"]
    for text, sentence in (("", "is empty: a study has"), ("name: x\nspace: [1,\n", ":3: ")):
        said = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert said.returncode == 2
        assert said.stderr.startswith("stagetree: stdin") and sentence in said.stderr


def test_an_unknown_trainer(stagetree: Stagetree, running_server: Service, write: Write) -> None:
    """Refused where the trainers are: by the server, or before an embedded stack starts."""
    for arguments in (["run"], ["submit"], ["run", "--server", ""]):
        said = stagetree(*arguments, write(grid("wrong", trainer="toys")))
        assert said.code == 2
        assert "trainer: must be one of" in said.err and "got 'toys'" in said.err
        assert "Unprocessable" not in said.err


def test_trainer_files(stagetree: Stagetree, write: Write, tmp_path: Path) -> None:
    study, wrong = write(grid("wrong")), tmp_path / "wrong.py"
    cases = {
        f"--trainers {wrong}: there is no such file": None,
        "holds no trainer: a subclass of Trainer": "x = 1",
        "its classes are Net, Toy": "class Net: ...\nclass Toy: ...",
        "line 1": "class Toy(",
        "another trainer named": "",
    }
    for sentence, content in cases.items():
        if content is not None:
            wrong.write_text(content or Path(TOYS[0]).read_text())
        said = stagetree("run", study, "--trainers", wrong, "--trainers", TOYS[0])
        assert (said.code, said.out) == (2, "")
        assert sentence in said.err


@pytest.mark.slow
def test_a_trainer_file_beside_the_study_file(
    stagetree: Stagetree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is discovered; a trainer named from elsewhere is answered with its path; its folder is accepted."""
    monkeypatch.chdir(tmp_path)
    folder = Path("study")
    folder.mkdir()
    (folder / "trainer.py").write_text(Path(TOYS[0]).read_text())
    (folder / "study.yaml").write_text(yaml.safe_dump(grid("beside", trainer="toy")))
    said = stagetree("check", "study/study.yaml", "--trainers", "trainer.py")
    assert said.err == "stagetree: --trainers trainer.py: there is no such file; did you mean study/trainer.py?\n"
    (folder / "study.yaml").rename("study.yaml")
    said = stagetree("check", "study.yaml")
    assert said.code == 2 and "or keep it in trainer.py beside the study file" in said.err
    said = stagetree("check", "study.yaml", "--trainers", "study", "--set", "trainer_args.widht=3")
    assert "trainer_args.widht: is no argument of trainer 'toy'" in said.err


@pytest.mark.parametrize("command", ["studies", "watch x", "trials x", "events x", "pause x", "resume x", "cancel x"])
def test_a_missing_server(stagetree: Stagetree, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagetree.client.http.FIRST_PAUSE", 0.001)
    port, kept = reserve("127.0.0.1", 0)
    url = f"http://127.0.0.1:{port}"
    with kept:
        said = stagetree(*command.split(), "--server", url)
    assert (said.code, said.out) == (69, "")
    assert said.err.startswith(f"stagetree: no stagetree server answers at {url}: ")


def test_an_unknown_study(stagetree: Stagetree, running_server: Service) -> None:
    for command in ("watch", "trials", "events", "pause", "resume", "cancel"):
        said = stagetree(command, "unknown-123")
        assert (said.code, said.out) == (3, "")
        assert "unknown-123" in said.err


def test_an_ended_study(stagetree: Stagetree, running_server: Service) -> None:
    study = running_server.run(trials("cli-over", ({}, 1)))["study"]
    for command in ("pause", "resume", "cancel"):
        said = stagetree(command, study)
        assert (said.code, said.out) == (4, "")
        assert f"study {study} is completed and cannot be changed any more" in said.err


def test_a_folder_that_cannot_be_written(stagetree: Stagetree, write: Write, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for command in (["run", write(grid("folder")), "--trainers", TOYS[0]], ["up"]):
        said = stagetree(*command, "--dir", tmp_path / "file" / "inside")
        assert (said.code, said.out) == (1, "")
        assert f"the folder {tmp_path / 'file' / 'inside'} cannot be written: Not a directory" in said.err


@pytest.mark.slow
def test_a_folder_with_another_running_stack(stagetree: Stagetree, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = stagetree("up", "--dir", tmp_path)
    assert (said.code, said.out) == (1, "")
    assert f"another stagetree is at work in {tmp_path}" in said.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name", "value", "sentence"),
    [
        (["worker", "cpu0"], "LEASE_SECONDS", "soon", "LEASE_SECONDS=soon: Input should be a valid number"),
        (["api"], "DATABASE_URL", "log.db", "DATABASE_URL=log.db: must be sqlite:///FILE or postgresql://"),
    ],
)
def test_a_setting_that_cannot_be_used(command: list[str], name: str, value: str, sentence: str) -> None:
    environment = {**os.environ, f"STAGETREE_{name}": value}
    run = [sys.executable, "-P", "-m", "stagetree", *command]
    said = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith(f"stagetree: STAGETREE_{sentence}")


def test_a_port_that_is_taken(stagetree: Stagetree, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = stagetree("up", "--port", port, "--dir", tmp_path)
    assert (said.code, said.out) == (1, "")
    assert f"port {port} of 127.0.0.1 cannot be used" in said.err


def test_options_for_here_are_refused_for_a_server(stagetree: Stagetree, write: Write) -> None:
    for options in (["--slots", 2], ["--dir", "x"], ["--trainers", "nothing.py"], ["--discard"]):
        said = stagetree("run", write(grid("here")), "--server", "127.0.0.1:9", *options)
        assert (said.code, said.out) == (2, "")
        assert str(options[0]) in said.err


def test_a_folder_that_holds_no_studies(stagetree: Stagetree, tmp_path: Path) -> None:
    for command in ("studies", "trials last", "watch last"):
        said = stagetree(*command.split(), "--dir", tmp_path)
        assert (said.code, said.out) == (3, "")
        assert f"{tmp_path} holds no studies" in said.err


def test_no_results_are_promised_for_a_study_that_did_not_begin(
    stagetree: Stagetree, write: Write, tmp_path: Path
) -> None:
    """The message promised kept results, and recommended the command that had failed."""
    (tmp_path / "stagetree.db").write_bytes(b"")
    with (tmp_path / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = stagetree("run", write(grid("kept")), "--trainers", TOYS[0], "--dir", tmp_path)
    assert said.code == 1
    assert "is kept" not in said.err


@pytest.mark.slow
def test_no_results_are_promised_for_a_refused_study(stagetree: Stagetree, write: Write, tmp_path: Path) -> None:
    """By its trainer, whose arguments are looked at before anything is started."""
    study = write(grid("refused") | {"trainer_args": {"widht": 3}})
    for command in (("run", "--dir", tmp_path / "kept", "--slots", 1), ("check",)):
        said = stagetree(*command, study, "--trainers", TOYS[0])
        assert said.code == 2
        assert said.err.startswith("stagetree: trainer_args.widht: is no argument of trainer 'toy'")
        assert said.err.count("\n") == 1


def test_every_error_with_a_code_is_importable_by_its_name() -> None:
    for name in CODES:
        module, _, kind = name.rpartition(".")
        found = getattr(import_module(module), kind)
        assert f"{found.__module__}.{found.__qualname__}" == name
