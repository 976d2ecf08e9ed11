"""The script for a Slurm job, and the slot that each of its tasks is."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import Stagetree

from app.cli.workers import REQUIRED_SETTINGS, task_queue
from app.domain.slots import NAME, shared_gpu
from app.events import StudyRecord
from app.events.database import Database
from app.events.sql_log import SqlRecords
from app.settings import settings

ROOT = Path(__file__).parents[2]
TASK = {"SLURMD_NODENAME": "node7", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "42"}


def bash(*arguments: str, script: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], **more}
    return subprocess.run(["bash", *arguments], input=script, text=True, capture_output=True, env=environment)


def make_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


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
    found = task_queue({**TASK, "SLURM_STEP_GPUS": gpus})
    assert found == queue
    assert NAME.fullmatch(found)


def test_two_jobs_on_a_node_have_no_slot_of_one_name() -> None:
    jobs = ({"SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "0,1"}, {"SLURM_JOB_ID": "2", "SLURM_JOB_GPUS": "2,3"})
    tasks = [{**TASK, **job, "SLURM_LOCALID": local} for job in jobs for local in ("0", "1")]
    assert len({task_queue(task) for task in tasks}) == 4
    without = [{name: value for name, value in task.items() if name != "SLURM_JOB_GPUS"} for task in tasks]
    assert len({task_queue(task) for task in without}) == 4


def test_tasks_that_share_the_gpus_of_a_job_are_shares_of_them() -> None:
    job = {**TASK, "SLURM_JOB_GPUS": "4-5", "STAGETREE_SLOTS_PER_GPU": "2"}
    queues = [task_queue({**job, "SLURM_LOCALID": str(local)}) for local in range(4)]
    assert queues == ["node7-4-gpu0a", "node7-5-gpu1a", "node7-4-gpu0b", "node7-5-gpu1b"]
    assert [shared_gpu(queue) for queue in queues] == ["node7-4-gpu0", "node7-5-gpu1"] * 2


@pytest.mark.parametrize(
    ("visible", "queues"),
    [
        ("0", ["node7-42-0-gpu0", "node7-42-1-gpu0"]),  # each task sees its own
        ("GPU-a1b2,GPU-c3d4", ["node7-42-0-gpu0", "node7-42-1-gpu1"]),
    ],
)
def test_unmanaged_gpus_are_taken_from_cuda(visible: str, queues: list[str]) -> None:
    """Such a task was a slot on the CPU, and trained there for hours."""
    tasks = [{**TASK, "CUDA_VISIBLE_DEVICES": visible, "SLURM_LOCALID": str(local)} for local in range(2)]
    assert [task_queue(task) for task in tasks] == queues


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (
            TASK | {"SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": ""},
            "task 1 of node7 sees no GPU, though the job ",
        ),
        (TASK | {"SLURM_STEP_GPUS": "3"}, "task 1 of node7 has no GPU of 1: give it --gpus-per-task=1\n"),
        ({}, "there is no SLURMD_NODENAME here; `stagetree workers --slurm`"),
    ],
    ids=["a GPU was asked for", "no GPU of its own", "outside of a job"],
)
def test_what_is_no_slot_says_why(
    stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch, task: dict[str, str], said: str
) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    for name, value in task.items():
        monkeypatch.setenv(name, value)
    refused = stagetree("worker", "slurm")
    assert refused.code == 2 and refused.err.startswith(f"stagetree: slurm: {said}")


def test_the_options_of_the_guide_make_a_script(stagetree: Stagetree) -> None:
    page = (ROOT / "docs" / "slurm-and-kubernetes.md").read_text()
    (command,) = re.findall(r"^stagetree (workers .*) > workers.sh$", page, re.MULTILINE)
    said = stagetree(*command.split())
    assert said.out.startswith("#!") and said.code == 0


@pytest.mark.parametrize(("gpus", "tasks", "line"), [(8, 8, True), (0, 1, False)])
def test_bash_and_sbatch_accept_the_script(stagetree: Stagetree, gpus: int, tasks: int, line: bool) -> None:
    script = stagetree("workers", "--slurm", "--nodes", 2, "--gpus-per-node", gpus).out
    options = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]
    assert {"--nodes=2", f"--ntasks-per-node={tasks}", "--signal=B:USR1@120"} <= {*options}
    assert ("--gpus-per-task=1" in options) is line
    commands = next(number for number, line in enumerate(script.splitlines()) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in script.splitlines()[commands:]), "sbatch stops at a command"
    assert bash("-n", script=script).returncode == 0


def test_tasks_that_share_gpus_see_all_gpus_of_the_job(stagetree: Stagetree) -> None:
    script = stagetree("workers", "--slurm", "--gpus-per-node", 4, "--slots-per-gpu", 3).out
    assert "#SBATCH --ntasks-per-node=12\n#SBATCH --gpus-per-node=4\n" in script and "gpus-per-task" not in script
    assert "export STAGETREE_SLOTS_PER_GPU=3\n" in script


def test_workers_end_before_the_job_does(stagetree: Stagetree, tmp_path: Path) -> None:
    """srun is given the worker, with less time to stop than Slurm leaves it."""
    make_program(tmp_path / "srun", 'echo "$STAGETREE_STOP_SECONDS $SRUN_CPUS_PER_TASK $@"')
    script = stagetree("workers", "--slurm", "--signal", 300, "--cpus-per-task", 6).out
    somewhere = dict.fromkeys(REQUIRED_SETTINGS, "somewhere")
    ran = bash(script=script, **somewhere | {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    seconds, cpus, *command = ran.stdout.split()
    assert (seconds, cpus) == ("290", "6")
    assert command[-2:] == ["worker", "slurm"] and Path(command[-3]).name == "stagetree"
    missing = bash(script=script, **somewhere | {"STAGETREE_BROKER_URL": ""})
    assert missing.returncode != 0
    assert "STAGETREE_BROKER_URL: is what a worker needs" in missing.stderr


def test_lines_come_before_the_workers(stagetree: Stagetree, tmp_path: Path) -> None:
    make_program(tmp_path / "srun", 'echo "$MODULE and $OTHER"')
    script = stagetree(
        "workers", "--slurm", "--before", "export MODULE='a b'", "--before", 'export OTHER="$MODULE"'
    ).out
    ran = bash(script=script, **dict.fromkeys(REQUIRED_SETTINGS, "x") | {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (ran.stdout, ran.returncode) == ("a b and a b\n", 0)


def test_the_script_exits_like_its_workers(stagetree: Stagetree, tmp_path: Path) -> None:
    """It is Slurm that has jobs come back which fail."""
    make_program(tmp_path / "srun", "exit 7")
    somewhere = dict.fromkeys(REQUIRED_SETTINGS, "x") | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert bash(script=stagetree("workers", "--slurm").out, **somewhere).returncode == 7


@pytest.fixture
def other_settings() -> Iterator[None]:
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.parametrize(
    ("wanted", "have", "jobs"), [(17, "", 3), (17, "1\n1\n", 1), (16, "2\n", 0), (0, "", 0), (900, "1\n", 3)]
)
def test_jobs_are_submitted_for_the_available_work(tmp_path: Path, wanted: int, have: str, jobs: int) -> None:
    for name, does in {
        "curl": f"""echo "$@" > asked; echo '{{"busy": 0, "more": 1, "wanted":{wanted},"idle": ["gpu7"]}}'""",
        "squeue": f"printf '{have}'",
        "sbatch": 'echo "$@" >> submitted',
    }.items():
        make_program(tmp_path / name, does)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "STAGETREE_URL": "http://api:8000",
        "STAGETREE_TOKEN": "t",
    }
    command = [str(ROOT / "docker" / "slurm-scale.sh"), "workers.sh", "4"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    submitted = tmp_path / "submitted"
    assert (submitted.read_text() if submitted.exists() else "") == "workers.sh\n" * jobs
    assert (tmp_path / "asked").read_text().endswith("Authorization: Bearer t http://api:8000/api/v1/demand\n")


@pytest.mark.slow
@pytest.mark.usefixtures("other_settings")
def test_workers_are_needed_while_a_study_runs_or_the_demand_is_unknown(
    stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    monkeypatch.setenv("STAGETREE_DATABASE_URL", database.url.render_as_string(hide_password=False))
    settings.cache_clear()
    records = SqlRecords(database)
    assert stagetree("workers", "--wanted").code == 1
    for state, code in (("running", 0), ("paused", 1), ("running", 0), ("completed", 1)):
        with records.write() as rows:
            if rows.studies.find("s") is None:
                rows.studies.add(StudyRecord(id="s", stream="plan", name="name", state=state, submitted_at=1.0))
            rows.studies.set_state("s", state)
        assert stagetree("workers", "--wanted").code == code
    monkeypatch.setenv("STAGETREE_DATABASE_URL", "postgresql://127.0.0.1:1/nothing")
    settings.cache_clear()
    said = stagetree("workers", "--wanted")
    assert said.code == 0 and said.err.startswith("stagetree: a study may run: The database")


def test_an_unknown_cluster_is_refused_with_the_known_ones(stagetree: Stagetree) -> None:
    said = stagetree("workers")
    assert (said.code, said.out, said.err) == (2, "", "stagetree: add --slurm: the script is for a Slurm job\n")
