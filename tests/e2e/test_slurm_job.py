"""A Slurm job as far as it can be had here: its tasks, and the signal that comes before its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from fake_slurm import install
from stacks import PATIENCE, Cluster, wait_for
from toys import switch, trained_steps, trials

from app.events.sql_log import SqlRecords

SLOTS = {"node0-42-cpu0", "node1-42-cpu0"}
SLOT = "node7-3-gpu0a"
STAGETREE = str(Path(sys.executable).with_name("stagetree"))


@pytest.fixture
def task(cluster: Cluster, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """What srun starts as a task of a job that was given the last GPU of a node, for two tasks to share."""
    slurm = {"SLURMD_NODENAME": "node7", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "42", "SLURM_STEP_GPUS": "3"}
    command = [STAGETREE, "worker", "slurm"]
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


@pytest.mark.slow
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
    assert trained_steps(cluster, study) == cluster.client.study(study)["steps"]["unique"]


# ------------------------------------------------------------------------------------------------ the printed job


@dataclass
class Job:
    """The input of `sbatch`, and the folder with the state of the fake cluster."""

    process: subprocess.Popen[bytes]
    state: Path

    def output(self) -> str:
        path = self.state / "output"
        return path.read_text(errors="replace") if path.exists() else ""


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Iterator[Job]:
    """The printed job for two nodes, submitted; nothing else trains."""
    for slot in ("gpu0", "gpu1"):
        cluster.kill(slot, signal.SIGTERM)
    commands, script = install(tmp_path / "bin"), tmp_path / "workers.sh"
    environment = {**os.environ, **cluster.settings, "STAGETREE_STOP_SECONDS": "60", "FAKE_SLURM": str(tmp_path)}
    environment |= {"PATH": f"{commands}:{os.environ['PATH']}", "STAGETREE_LOGS": str(tmp_path / "logs")}
    printed = [STAGETREE, "workers", "--slurm", "--nodes", "2", "--gpus-per-node", "0"]
    before = ["--before", "export MODULES=loaded", "--before", "echo life $SLURM_RESTART_COUNT with $MODULES modules"]
    script.write_text(
        subprocess.run([*printed, *before], env=environment, check=True, text=True, capture_output=True).stdout
    )
    process = subprocess.Popen(["sbatch", str(script)], env=environment, cwd=tmp_path, start_new_session=True)
    yield Job(process, tmp_path)
    for each in tree(process.pid):
        each.kill()
    process.wait()
    cluster.start("gpu0", "gpu1")


@pytest.mark.slow
def test_a_job_comes_back_after_its_time_limit_and_when_it_is_preempted_while_a_study_runs(
    cluster: Cluster, job: Job, tmp_path: Path
) -> None:
    go_on = tmp_path / "slow"
    go_on.touch()
    spec = trials("job", *[({"lr": 0.1 * (1 + number)}, 40) for number in range(4)], seconds=0.3)
    spec["trainer_args"]["slow_while"] = str(go_on)
    study, least, ends = cluster.submit(spec), 0, ("limit", "preempt")

    def steps() -> list[int]:
        """Of both nodes, after they have resumed."""
        found = [each["step"] for each in cluster.running(study) if each["slot"] in SLOTS]
        return found if len(found) == len(SLOTS) and min(found) >= least + 2 else []

    for life, event in enumerate(ends):
        wait_for(f"life {life}", lambda life=life: f"life {life} with loaded modules" in job.output())
        least = max(wait_for("work on both nodes", steps))
        (job.state / event).touch()
    last = len(ends)
    wait_for(f"life {last}", lambda: f"life {last} with loaded modules" in job.output())
    go_on.unlink()
    assert cluster.wait(study)["state"] == "completed"
    assert trained_steps(cluster, study) == cluster.client.study(study)["steps"]["unique"] == 160
    (job.state / "limit").touch()
    assert job.process.wait(PATIENCE) == 0, job.output()
    assert f"life {last + 1}" not in job.output(), "no study runs any more"
