"""A Slurm job as far as it can be had here: its tasks, and the signal that comes before its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from stacks import Cluster, wait_for
from toys import executed, switch, trials

from app.events.records import SqlRecords

SLOT = "node7-3-gpu0a"


@pytest.fixture
def task(cluster: Cluster, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """What srun starts as a task of a job that was given the last GPU of a node, for two tasks to share."""
    slurm = {"SLURMD_NODENAME": "node7", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "42", "SLURM_STEP_GPUS": "3"}
    command = [str(Path(sys.executable).with_name("stagetree")), "worker", "slurm"]
    with (tmp_path / "task.log").open("wb") as log:
        environment = {**os.environ, **cluster.settings, **slurm, "STAGETREE_SLOTS_PER_GPU": "2", "STAGETREE_WARM": ""}
        environment["STAGETREE_STOP_SECONDS"] = "60"  # a slow machine is to lose nothing either
        options = {"env": environment, "stdout": log, "stderr": log, "cwd": tmp_path, "start_new_session": True}
        running = subprocess.Popen(command, **options)  # type: ignore[call-overload]
    yield running
    for process in tree(running.pid):
        process.kill()
    running.wait()


def tree(pid: int) -> list[psutil.Process]:
    """A process and all that it started."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def test_all_processes_of_a_task_are_asked_to_end_and_nothing_is_lost(
    cluster: Cluster, task: subprocess.Popen[bytes]
) -> None:
    """Slurm, like systemd, sends its signal to every process of the job."""

    def row() -> object:
        with SqlRecords(cluster.database).read() as rows:
            return rows.slots.get(SLOT)

    wait_for("the slot", row)
    three = [({"lr": switch(0.1 * (1 + number), 0.3, 40)}, 60) for number in range(3)]
    study = cluster.submit(trials("slurm", *three, seconds=0.1))

    def step() -> int:
        return next((chain["step"] for chain in cluster.running(study) if chain["slot"] == SLOT), 0)

    wait_for("work there", lambda: step() >= 5)
    for process in tree(task.pid):
        process.send_signal(signal.SIGTERM)
    assert task.wait(60) == 0
    assert row() is None
    assert cluster.wait(study)["state"] == "completed"
    assert executed(cluster, study) == cluster.client.study(study)["steps"]["unique"]
