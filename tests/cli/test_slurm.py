"""The script for a Slurm job, and the slot that each of its tasks is."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from commandline import Stagetree

from app.cli.serving import NEEDED, queue_of
from app.domain.assignment import NAME, shared_gpu

TASK = {"SLURMD_NODENAME": "node7", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "42"}


def bash(*arguments: str, script: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], **more}
    return subprocess.run(["bash", *arguments], input=script, text=True, capture_output=True, env=environment)


@pytest.mark.parametrize(
    ("gpus", "queue"),
    [
        ("0,1,2", "node7-1-gpu0"),
        ("4-7", "node7-5-gpu0"),
        ("GPU-a1b2,GPU-c3d4-e5", "node7-GPU-c3d4-e5-gpu0"),
        ("", "node7-42-cpu1"),
    ],
)
def test_a_task_is_the_slot_of_its_node_and_gpu(gpus: str, queue: str) -> None:
    found = queue_of({**TASK, "SLURM_STEP_GPUS": gpus})
    assert found == queue
    assert NAME.fullmatch(found)


def test_two_jobs_on_a_node_have_no_slot_of_one_name() -> None:
    jobs = ({"SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "0,1"}, {"SLURM_JOB_ID": "2", "SLURM_JOB_GPUS": "2,3"})
    tasks = [{**TASK, **job, "SLURM_LOCALID": local} for job in jobs for local in ("0", "1")]
    assert len({queue_of(task) for task in tasks}) == 4
    without = [{name: value for name, value in task.items() if name != "SLURM_JOB_GPUS"} for task in tasks]
    assert len({queue_of(task) for task in without}) == 4


def test_tasks_that_share_the_gpus_of_a_job_are_shares_of_them() -> None:
    job = {**TASK, "SLURM_JOB_GPUS": "4-5", "STAGETREE_SLOTS_PER_GPU": "2"}
    queues = [queue_of({**job, "SLURM_LOCALID": str(local)}) for local in range(4)]
    assert queues == ["node7-4-gpu0a", "node7-5-gpu1a", "node7-4-gpu0b", "node7-5-gpu1b"]
    assert [shared_gpu(queue) for queue in queues] == ["node7-4-gpu0", "node7-5-gpu1"] * 2


@pytest.mark.parametrize(
    ("visible", "queues"),
    [
        ("0", ["node7-42-0-gpu0", "node7-42-1-gpu0"]),  # each task sees its own
        ("GPU-a1b2,GPU-c3d4", ["node7-42-0-gpu0", "node7-42-1-gpu1"]),
    ],
)
def test_gpus_that_slurm_does_not_manage_are_those_that_cuda_sees(visible: str, queues: list[str]) -> None:
    """Such a task was a slot on the CPU, and trained there for hours."""
    tasks = [{**TASK, "CUDA_VISIBLE_DEVICES": visible, "SLURM_LOCALID": str(local)} for local in range(2)]
    assert [queue_of(task) for task in tasks] == queues


def test_a_task_that_asked_for_a_gpu_is_never_a_slot_on_the_cpu(
    stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**TASK, "SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": ""}.items():
        monkeypatch.setenv(name, value)
    said = stagetree("worker", "slurm")
    assert said.code == 2
    assert said.err.startswith("stagetree: slurm: task 1 of node7 sees no GPU, though the job asked for some")


def test_outside_of_a_job_it_is_said_how_to_make_one(stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    said = stagetree("worker", "slurm")
    assert said.code == 2
    assert said.err.startswith("stagetree: slurm: there is no SLURMD_NODENAME here; `stagetree workers --slurm`")


def test_a_task_without_a_gpu_of_its_own_is_refused(stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**TASK, "SLURM_STEP_GPUS": "3"}.items():
        monkeypatch.setenv(name, value)
    said = stagetree("worker", "slurm")
    assert (said.code, said.err) == (
        2,
        "stagetree: slurm: task 1 of node7 has no GPU of 1: give it --gpus-per-task=1\n",
    )


def test_what_the_page_proposes_makes_a_script(stagetree: Stagetree) -> None:
    page = (Path(__file__).parents[2] / "docs" / "slurm-and-kubernetes.md").read_text()
    (command,) = re.findall(r"^stagetree (workers .*) > workers.sh$", page, re.MULTILINE)
    said = stagetree(*command.split())
    assert said.out.startswith("#!") and said.code == 0


@pytest.mark.parametrize(("gpus", "tasks", "line"), [(8, 8, True), (0, 1, False)])
def test_the_script_is_one_that_bash_and_sbatch_read(stagetree: Stagetree, gpus: int, tasks: int, line: bool) -> None:
    script = stagetree("workers", "--slurm", "--nodes", 2, "--gpus-per-node", gpus).out
    options = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]
    assert {"--nodes=2", f"--ntasks-per-node={tasks}", "--signal=TERM@120"} <= {*options}
    assert ("--gpus-per-task=1" in options) is line
    commands = next(number for number, line in enumerate(script.splitlines()) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in script.splitlines()[commands:]), "sbatch stops at a command"
    assert bash("-n", script=script).returncode == 0


def test_tasks_that_share_gpus_see_all_those_of_the_job(stagetree: Stagetree) -> None:
    script = stagetree("workers", "--slurm", "--gpus-per-node", 4, "--slots-per-gpu", 3).out
    assert "#SBATCH --ntasks-per-node=12\n#SBATCH --gpus-per-node=4\n" in script and "gpus-per-task" not in script
    assert "export STAGETREE_SLOTS_PER_GPU=3\n" in script


def test_workers_end_before_the_job_does(stagetree: Stagetree, tmp_path: Path) -> None:
    """srun is given the worker, with less time to stop than Slurm leaves it."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/bash\necho "$STAGETREE_STOP_SECONDS $SRUN_CPUS_PER_TASK $@"\n')
    srun.chmod(0o755)
    script = stagetree("workers", "--slurm", "--signal", 300, "--cpus-per-task", 6).out
    settings = dict.fromkeys(NEEDED, "somewhere")
    ran = bash(script=script, **settings | {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    seconds, cpus, *command = ran.stdout.split()
    assert (seconds, cpus) == ("290", "6")
    assert command[-2:] == ["worker", "slurm"] and Path(command[-3]).name == "stagetree"
    missing = bash(script=script, **settings | {"STAGETREE_BROKER_URL": ""})
    assert missing.returncode != 0
    assert "STAGETREE_BROKER_URL: is what a worker needs" in missing.stderr


def test_it_is_said_for_what_there_is_a_script(stagetree: Stagetree) -> None:
    said = stagetree("workers")
    assert (said.code, said.out, said.err) == (2, "", "stagetree: say for what: --slurm\n")
