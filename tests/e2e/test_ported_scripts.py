"""Scripts with loops of their own in studies of real processes: killed anywhere, shared equals alone to the bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from stacks import ROOT, Json, wait_for

RANK, FORK = "stagetree.runtime.script_rank", "stagetree.runtime.warm"


@pytest.mark.night
@pytest.mark.parametrize(
    ("example", "victim"), [("nanogpt", RANK), ("trl", FORK), ("lightning_cli", FORK), ("ema", FORK)]
)
def test_killed_and_shared_as_alone(example: str, victim: str, tmp_path: Path) -> None:
    shared = study(example, tmp_path / "shared", victim)
    alone = study(example, tmp_path / "alone", "", "merge=false")
    assert shared["steps"]["unique"] < alone["steps"]["requested"] == alone["steps"]["executed"]
    assert [values(shared), shared["not_exact"]] == [values(alone), []]


@pytest.mark.night
def test_a_gang_of_slots_is_as_one_slot_to_torchrun(tmp_path: Path) -> None:
    """Each slot is a device of the CPU's, so the launcher starts two processes in both."""
    copied = tmp_path / "examples"
    for name in ("nanogpt", "charlm"):
        shutil.copytree(ROOT / "examples" / name, copied / name)
    script = copied / "nanogpt/train.py"
    script.write_text(script.read_text().replace("--nproc-per-node 2", "--nproc-per-node {devices}"))
    gang = study("nanogpt", tmp_path / "gang", "", "parallel=ddp", "ranks=2", examples=copied, slots=2)
    assert values(gang) == values(study("nanogpt", tmp_path / "slot", ""))


def values(answer: Json) -> list[tuple[str, float]]:
    return [(trial["state"], trial["value"]) for trial in answer["trials"]]


def study(
    example: str, folder: Path, victim: str, *changes: str, examples: Path = ROOT / "examples", slots: int = 1
) -> Json:
    """The answer of `stagetree run`; a process of that name that it has started is killed."""
    place = examples / example
    command = [
        sys.executable,
        "-m",
        "stagetree",
        "run",
        str(place / "study.yaml"),
        "--trainers",
        str(place / "train.py"),
    ]
    command += ["--dir", str(folder), "--slots", str(slots), "-o", "json", *(f"--set={change}" for change in changes)]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        if victim:
            if example != "ema":  # which ends before a look
                wait_for("steps", lambda: "steps · best" in Path(log.name).read_text(), 600)
            kill_one(running.pid, victim)
        answer, _ = running.communicate(timeout=900)
    assert running.returncode == 0, Path(log.name).read_text()
    found: Json = json.loads(answer)
    return found


def kill_one(owner: int, name: str) -> None:
    (pid, *_) = wait_for("such a process", lambda: processes(owner, name))
    os.kill(pid, signal.SIGKILL)


def processes(owner: int, name: str) -> list[int]:
    """The processes of a launcher, or of the interpreter that trainers are forked from: both have the same words."""
    named = dict[int, int]()
    for each in psutil.Process(owner).children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if name in each.cmdline():
                named[each.pid] = each.ppid()
    return [pid for pid, parent in named.items() if parent in named]
