"""The weights of the best trial leave the store as they were measured; and a trainer can be checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from resuming import load, one_thread
from safetensors.torch import load_file
from stacks import ROOT

EXAMPLE = ROOT / "examples/digits/trainer.py"
STUDY = {
    "name": "weights",
    "trainer": "digits",
    "trainer_args": {"width": 4},
    "metric": "val_accuracy",
    "mode": "max",
    "space": {"lr": [0.1, 0.001]},
    "tuner": {"kind": "grid", "max_steps": 2},
}


def stagetree(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stagetree", *args]
    how: dict[str, Any] = {"cwd": ROOT, "env": {**os.environ, **environment}, "timeout": 600}
    return subprocess.run(command, capture_output=True, text=True, check=False, **how)


def exported_accuracy(study: str, store: str, folder: Path) -> float:
    """The accuracy of the weights of a study's best trial, measured without anything of ours but the model."""
    written = stagetree("weights", study, "--dir", store, "--to", str(folder))
    assert written.returncode == 0, written.stderr
    [file] = folder.iterdir()
    example = load(str(EXAMPLE), "Digits").__init__.__globals__
    net, (images, labels) = example["Net"](4), example["digits"](0)[1].tensors
    net.load_state_dict(load_file(file))
    with one_thread(), torch.no_grad():
        right = net.eval()(images).argmax(dim=1) == labels
    return float(right.double().mean())


@pytest.mark.slow
def test_the_best_weights_measure_the_value_on_record(tmp_path: Path) -> None:
    study, store = tmp_path / "study.yaml", str(tmp_path / "store")
    study.write_text(yaml.safe_dump(STUDY))
    done = stagetree("run", str(study), "--slots", "1", "--dir", store, "-o", "json", "--no-check")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert exported_accuracy(result["study"], store, tmp_path / "best") == result["best"]["value"]
    missing = stagetree("weights", result["study"], "--step", "9", "--dir", store)
    assert missing.returncode == 3 and "after step 9 is not kept; the steps that are: " in missing.stderr


@pytest.mark.slow
def test_the_weights_of_an_evaluation_that_reached_the_target(tmp_path: Path) -> None:
    """The study ends long before its trial would, and has the state that was as good as wanted."""
    study, store = tmp_path / "study.yaml", str(tmp_path / "store")
    tuner = {"kind": "grid", "max_steps": 500}
    goal = {"target": 0.6, "value": "best", "eval_every": 1, "space": {"lr": 0.1}, "tuner": tuner}
    study.write_text(yaml.safe_dump(STUDY | goal))
    done = stagetree("run", str(study), "--slots", "1", "--dir", store, "-o", "json", "--no-check")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    best = result["best"]
    assert best["value"] >= 0.6 and best["steps"] < 100
    assert result["ending"].startswith("target 0.6 reached: ")
    assert exported_accuracy(result["study"], store, tmp_path / "best") == best["value"]
    assert stagetree("replay", result["study"], "--dir", store).returncode == 0


SLOW_DISK = """
import os, time
fsync = os.fsync

def slow(fd):
    while not os.path.exists({stored!r}):
        time.sleep(0.05)
    fsync(fd)

os.fsync = slow
"""


@pytest.mark.slow
def test_a_run_ends_when_the_best_state_is_stored(tmp_path: Path) -> None:
    """It waited 3 s for that, and a large model's last state was half a file."""
    study, store = tmp_path / "study.yaml", str(tmp_path / "store")
    study.write_text(yaml.safe_dump({**STUDY, "space": {"lr": 0.1}, "tuner": {"kind": "grid", "max_steps": 1}}))
    stored = tmp_path / "stored"
    (tmp_path / "sitecustomize.py").write_text(SLOW_DISK.format(stored=str(stored)))
    killed = tmp_path / "store/checkpoints/plan/node/7.safetensors.partial"
    killed.parent.mkdir(parents=True)
    killed.touch()
    command = [sys.executable, "-m", "stagetree", "run", str(study), "--slots", "1", "--dir", store, "--no-check"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as run:
        while "Saving the last checkpoints" not in (line := run.stderr.readline()):
            assert line, "it ended before it said so"
        time.sleep(3)
        stored.touch()
        rest = run.stderr.read()
    assert run.returncode == 0, rest
    written = stagetree("weights", "last", "--dir", store, "--to", str(tmp_path / "best"))
    assert written.returncode == 0, written.stderr
    assert not list(tmp_path.glob("store/checkpoints/**/*.partial"))
