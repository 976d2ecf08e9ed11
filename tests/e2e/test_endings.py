"""Every end of a stack leaves no process and no folder, and the records suffice to resume."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml
from stacks import TOYS, Json, wait_for
from toys import trials

MOST = 180.0
"""Seconds: a command that takes longer is at a standstill."""


@dataclass
class Command:
    """A `stagetree` command under way, with everything it starts: found by a variable that all of them inherit."""

    process: subprocess.Popen[str]
    mark: str
    scratch: Path

    def family(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_one(process)]

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def _is_one(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("STAGETREE_TEST_MARK") == self.mark and process.status() != "zombie"
        except psutil.Error:
            return False


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Command]:
    """`stagetree run` in the middle of a stage that takes six seconds."""
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump(trials("ending", ({}, 60), seconds=0.1, eval_every=10)))
    command = [
        sys.executable,
        "-m",
        "stagetree",
        "run",
        str(study),
        "--slots",
        "1",
        "--dir",
        str(tmp_path / "kept"),
        "--no-check",
    ]
    found = start([*command, "--trainers", TOYS[0], "-o", "json"], tmp_path)
    try:
        wait_for(
            "a checkpoint", lambda: found.is_over() or [*(tmp_path / "kept" / "checkpoints").rglob("*.safetensors")]
        )
        assert not found.is_over(), found.process.communicate()[1]
        yield found
    finally:
        for process in found.family():
            process.kill()
        found.process.communicate()
        shutil.rmtree(found.scratch)


def start(command: list[str], folder: Path) -> Command:
    scratch = Path(tempfile.mkdtemp(prefix="st-"))  # short: sockets are in it
    often = {"STAGETREE_INTERMEDIATE_OVERHEAD": "1"}  # the first checkpoint comes when all of the stage is still to do
    environment = {**os.environ, **often, "TMPDIR": str(scratch), "STAGETREE_TEST_MARK": str(folder)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return Command(process, str(folder), scratch)


@pytest.mark.slow
def test_an_interrupted_run_leaves_no_process_and_resumes(running: Command, tmp_path: Path) -> None:
    end(running, signal.SIGINT, 130, tmp_path)
    again = subprocess.run(running.process.args, capture_output=True, text=True, timeout=MOST, check=False)
    assert again.returncode == 0, again.stderr
    assert "which was interrupted" in again.stderr
    study = json.loads(again.stdout)
    assert (study["state"], study["steps"]["executed"]) == ("completed", 60)


@pytest.mark.slow
def test_a_repeated_interrupt_ends_the_run_at_once(running: Command) -> None:
    """It left its folder behind."""
    running.process.send_signal(signal.SIGINT)
    assert running.process.stderr is not None
    while "Stopped; the slots of study" not in (line := running.process.stderr.readline()):
        assert line, "it ended before it said so"

    def is_over() -> bool:
        running.process.send_signal(signal.SIGINT)
        return running.process.poll() is not None

    wait_for("the end of the run", is_over)
    assert running.process.returncode in (130, -signal.SIGINT)  # which the shell calls 130 too
    all_over(running)
    assert left_behind(running.scratch) == []


@pytest.mark.slow
def test_a_run_that_is_asked_to_end_leaves_nothing_behind(running: Command, tmp_path: Path) -> None:
    end(running, signal.SIGTERM, 143, tmp_path)


def test_a_run_that_is_killed_takes_everything_with_it(running: Command) -> None:
    running.process.kill()
    all_over(running)


@pytest.mark.slow
@pytest.mark.parametrize("number, name", [(0, "api"), (2, "cpu0")])
def test_a_fork_that_ends_by_itself_ends_the_run(running: Command, tmp_path: Path, number: int, name: str) -> None:
    forks = [process for process in running.family() if "app.workers.prefork" in process.cmdline()]
    prefork = next(process for process in forks if process.parent() not in forks)
    sorted(prefork.children(), key=lambda process: process.pid)[number].kill()
    _, err = running.process.communicate(timeout=MOST)
    assert running.process.returncode == 1
    said = err.partition(f"{name} ended with exit code -9")[2]
    assert f"(its log is {tmp_path / 'kept' / 'logs' / name}.log)" in said
    assert "Traceback" not in err
    all_over(running)


@pytest.mark.slow
def test_what_a_killed_worker_wrote_and_never_said_is_found_and_deleted(running: Command, tmp_path: Path) -> None:
    """The database is locked from the write on, so that no fact follows it."""
    store, folder = tmp_path / "kept", tmp_path / "kept" / "checkpoints"
    with closing(sqlite3.connect(store / "stagetree.db", timeout=60)) as locked:
        locked.execute("BEGIN IMMEDIATE")
        there = {*folder.rglob("*.safetensors")}
        wait_for("another checkpoint", lambda: {*folder.rglob("*.safetensors")} - there)
        for process in running.family():
            process.kill()
        running.process.communicate()
    again = subprocess.run(running.process.args, capture_output=True, text=True, timeout=MOST, check=False)
    assert json.loads(again.stdout)["state"] == "completed", again.stderr
    assert collect_garbage(store)["orphans"] == 0  # it is too young: a worker might be about to name it
    for path in folder.rglob("*.safetensors"):
        os.utime(path, (0, 0))
    there = {*folder.rglob("*.safetensors")}
    said = collect_garbage(store)
    assert (said["orphans"] >= 1, said["checkpoints"], said["deleted"]) == (True, 0, True)
    assert len(there - {*folder.rglob("*.safetensors")}) == said["orphans"]


def collect_garbage(store: Path) -> Json:
    """What `stagetree gc` says."""
    command = [sys.executable, "-m", "stagetree", "gc", "--dir", str(store), "--yes", "-o", "json"]
    document: Json = json.loads(
        subprocess.run(command, capture_output=True, text=True, timeout=MOST, check=True).stdout
    )
    return document


def all_over(running: Command) -> None:
    """Wait until it, or the kernel, has killed the remaining processes."""
    wait_for("the end of all its processes", lambda: not running.family())


def left_behind(scratch: Path) -> list[str]:
    """Its temporary files, except torch's cache of compiled code, which the next run uses."""
    return [path.name for path in scratch.iterdir() if not path.name.startswith("torchinductor_")]


def end(running: Command, number: int, code: int, folder: Path) -> None:
    """Send a signal; the command ends in order, and prints how to resume."""
    assert len(running.family()) >= 5
    running.process.send_signal(number)
    out, err = running.process.communicate(timeout=MOST)
    assert running.process.returncode == code
    assert out == ""
    assert f"--dir {folder / 'kept'}" in err
    assert "Traceback" not in err
    all_over(running)
    assert left_behind(running.scratch) == []
