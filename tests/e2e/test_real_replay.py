"""ASHA and POP on digits with real workers, one killed: every decision can be derived again, from a file alone too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stacks import Cluster, Json, Service, wait_for


def asha(tag: int, trials: int) -> Json:
    """Small models, whose seed separates them from the models of other tests."""
    space = {
        "lr": {"family": "warmup", "steps": 1, "then": {"loguniform": [0.001, 0.3]}},
        "bs": [256, 512],
        "momentum": 0.9,
        "weight_decay": 0.0,
    }
    return {
        "name": "asha",
        "trainer": "digits",
        "trainer_args": {"width": 4},
        "seed": tag,
        "metric": "val_accuracy",
        "mode": "max",
        "space": space,
        "tuner": {"kind": "asha", "num_trials": trials, "min_steps": 1, "max_steps": 9, "reduction_factor": 3},
    }


def check(service: Service, study: str, folder: Path) -> None:
    """Replay on the server, and in a fresh process that has only the exported log, agree that all is as it was."""
    found = service.client.replay(study)
    assert found["identical"] and any(line["kind"] == "promote" for line in found["history"])
    log = folder / "log.jsonl"
    log.write_text(service.client.log(study), encoding="utf-8")
    command = [sys.executable, "-m", "stagetree", "replay", study, "--log", str(log), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=plain_environment())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["history"] == found["history"]


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("STAGETREE_")}


def kill_a_slot(cluster: Cluster, study: str) -> None:
    """One that works for the study, at its beginning: later on it may be over before it is looked at."""
    slot = wait_for("a stage under way", lambda: cluster.running(study))[0]["slot"]
    cluster.signal_child(slot, signal.SIGKILL)


@pytest.mark.slow
def test_two_slots_one_of_them_killed(cluster: Cluster, tmp_path: Path) -> None:
    study = cluster.submit(asha(1, trials=9))
    kill_a_slot(cluster, study)
    assert cluster.wait(study)["state"] == "completed"
    check(cluster, study, tmp_path)
    cluster.client.reopen(study, 12)
    assert len(cluster.wait(study)["trials"]) == 12
    check(cluster, study, tmp_path)


@pytest.mark.slow
def test_pop_with_a_slot_killed(cluster: Cluster, tmp_path: Path) -> None:
    """What depends on the clock and on the number of slots is read from the log, so that nothing else is needed."""
    tuner = {"kind": "pop", "num_trials": 4, "max_steps": 4, "boundary": 1, "target": 0.999, "bounds": [0, 1]}
    study = cluster.submit(asha(3, trials=4) | {"name": "pop", "tuner": tuner})
    kill_a_slot(cluster, study)
    assert cluster.wait(study)["state"] == "completed"
    assert cluster.wait_for_event(study, "TrialPrioritized")
    check(cluster, study, tmp_path)
    judged = [trial for trial in cluster.client.trials(study) if trial.get("prediction")]
    assert judged and all(trial["prediction"]["p"] is None for trial in judged)  # nothing was foretold and came true
