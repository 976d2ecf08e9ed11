"""`stagetree worker` and `workers`: a process of a cluster, and Slurm jobs of them."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Annotated

import typer

from app.cli.errors import FAILED, USAGE, fail
from app.cli.extras import SERVER, STACK, require
from app.domain.slots import MOST_SHARES, SCHEDULER

REQUIRED_SETTINGS = ("STAGETREE_DATABASE_URL", "STAGETREE_BROKER_URL", "STAGETREE_CHECKPOINTS", "STAGETREE_TRAINERS")
"""The settings that a remote worker requires. A job inherits them from the submitting shell."""

SCRIPT = """#!/bin/bash
#SBATCH --job-name=stagetree
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={tasks}
{resources}
#SBATCH --signal=B:USR1@{early}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=stagetree-%j.out

# {early} seconds before the job's time limit, Slurm signals this script, which asks each worker to end. A worker saves
# its state and returns its work: the remaining slots resume it, and so does this job, which is requeued as long as a
# study runs.
set -euo pipefail
{before}{checks}
export STAGETREE_STOP_SECONDS="${{STAGETREE_STOP_SECONDS:-{stop}}}"
export STAGETREE_SLOTS_PER_GPU={per_gpu}
{cpus}
srun --label --kill-on-bad-exit=0 --wait=0 {program} worker slurm &
workers=$! is_over='' code=0
trap 'is_over=1; kill -TERM "$workers" || true' USR1
wait "$workers" || code=$?
while kill -0 "$workers" 2>/dev/null; do # it was the signal that ended the wait
  code=0; wait "$workers" || code=$?
done
if [ -n "$is_over" ] && {program} workers --wanted; then
  exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""

GPU_REQUEST_VARIABLES = ("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_NODE")
"""The variables with the number of GPUs that a job requested."""

MARGIN_SECONDS = 10
"""The margin between the workers' stop and the job's end."""


def script(nodes: int, gpus: int, cpus: int, early: int, per_gpu: int = 1, before: Sequence[str] = ()) -> str:
    """A script for `sbatch`, of `per_gpu` tasks for each GPU, or of one for each node without GPUs.

    cpus: per task. early: seconds of the signal before the job's end. before: lines to run first.
    """
    resources = []
    if gpus:  # tasks that share GPUs see all GPUs of the job, and each uses the one in its queue's name
        resources = ["#SBATCH --gpus-per-task=1" if per_gpu == 1 else f"#SBATCH --gpus-per-node={gpus}"]
    return SCRIPT.format(
        nodes=nodes,
        tasks=gpus * per_gpu or 1,
        per_gpu=per_gpu,
        resources="\n".join([*resources, f"#SBATCH --cpus-per-task={cpus}"]),
        early=early,
        before="".join(f"{line}\n" for line in before),
        checks="\n".join(f': "${{{name}:?is what a worker needs: docs/cluster.md}}"' for name in REQUIRED_SETTINGS),
        stop=max(early - MARGIN_SECONDS, 1),
        cpus=f"export SRUN_CPUS_PER_TASK={cpus}",
        program=shlex.quote(str(Path(sys.executable).with_name("stagetree"))),
    )


def task_queue(task: Mapping[str, str]) -> str:
    """The queue of this task of a Slurm job: the node, and which of the node's GPUs the task has been given.

    Jobs that share a node have different GPUs of it, so no two workers have one name. A task sees its own GPU alone,
    as the first one; where tasks share GPUs, it sees all of them. Ends with a message outside of a task, and where the
    job asked for GPUs and the task has none.
    """
    from app.workers.slot.device import visible_gpus

    for name in ("SLURMD_NODENAME", "SLURM_LOCALID", "SLURM_JOB_ID"):
        if not task.get(name):
            fail(f"slurm: there is no {name} here; `stagetree workers --slurm` prints a script that starts it", USAGE)
    node, number = task["SLURMD_NODENAME"], int(task["SLURM_LOCALID"])
    if gpus := _gpu_names(task.get("SLURM_STEP_GPUS") or task.get("SLURM_JOB_GPUS") or ""):
        per_gpu = int(task.get("STAGETREE_SLOTS_PER_GPU") or 1)
        if number >= per_gpu * len(gpus):
            fail(f"slurm: task {number} of {node} has no GPU of {len(gpus)}: give it --gpus-per-task=1", USAGE)
        if per_gpu == 1:
            return f"{node}-{gpus[number]}-gpu0"
        share, gpu = divmod(number, len(gpus))
        return f"{node}-{gpus[gpu]}-gpu{gpu}{ascii_lowercase[share]}"
    if visible := visible_gpus({"CUDA_VISIBLE_DEVICES": task.get("CUDA_VISIBLE_DEVICES") or ""}):
        # Slurm does not know of them. Each task may call its own GPU 0, so the name is the task's, not the GPU's.
        return f"{node}-{task['SLURM_JOB_ID']}-{number}-gpu{number if number < len(visible) else 0}"
    if any(task.get(name, "0") != "0" for name in GPU_REQUEST_VARIABLES):
        fail(
            f"slurm: task {number} of {node} sees no GPU, though the job asked for some: SLURM_STEP_GPUS, "
            "SLURM_JOB_GPUS and CUDA_VISIBLE_DEVICES are empty; `--gpus-per-node 0` is for workers without",
            USAGE,
        )
    return f"{node}-{task['SLURM_JOB_ID']}-cpu{number}"


def _gpu_names(written: str) -> list[str]:
    """GPUs as Slurm lists them, by number or by UUID: `0,2-4`."""
    names = list[str]()
    for part in filter(None, written.split(",")):
        numbers = re.fullmatch(r"(\d+)-(\d+)", part)
        names += map(str, range(int(numbers[1]), int(numbers[2]) + 1)) if numbers else [part]
    return names


def workers(
    slurm: Annotated[bool, typer.Option("--slurm", help="Start the workers as tasks of a Slurm job.")] = False,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="The number of nodes of the job.")] = 1,
    gpus: Annotated[
        int,
        typer.Option(
            "--gpus-per-node", metavar="N", min=0, help="Tasks per node, with one GPU each; 0: one task without a GPU."
        ),
    ] = 1,
    slots_per_gpu: Annotated[
        int,
        typer.Option("--slots-per-gpu", metavar="N", min=1, max=MOST_SHARES, help="N tasks share each GPU."),
    ] = 1,
    cpus: Annotated[int, typer.Option("--cpus-per-task", metavar="N", min=1, help="CPU cores per task.")] = 4,
    early: Annotated[
        int,
        typer.Option("--signal", metavar="SECONDS", min=1, help="How long before the job's end work is saved."),
    ] = 120,
    before: Annotated[
        list[str] | None,
        typer.Option(
            "--before",
            metavar="LINE",
            help="A line to run before the workers, such as `module load cuda`. May be repeated.",
        ),
    ] = None,
    wanted: Annotated[
        bool, typer.Option("--wanted", help="Print nothing; exit with 0 if a study runs, else with 1.")
    ] = False,
) -> None:
    """Print a job script that starts one worker for each GPU, or more, and is requeued as long as a study runs.

    \b
    Example:  stagetree workers --slurm --nodes 2 --gpus-per-node 8 | sbatch --time=12:00:00
    """
    if wanted:
        raise typer.Exit(0 if _has_work() else FAILED)
    if not slurm:
        fail("add --slurm: the script is for a Slurm job", USAGE)
    print(script(nodes, gpus, cpus, early, slots_per_gpu, before or ()), end="")


def _has_work() -> bool:
    """Whether a study is running, by the database of the settings; True if it is unavailable."""
    from app.domain.terms import StudyState
    from app.events import DatabaseUnavailable
    from app.events.database import Database
    from app.events.sql_log import SqlRecords
    from app.settings import settings

    records = SqlRecords(Database(settings().database_url, patience=settings().patience_seconds))
    try:
        with records.read() as rows:
            return rows.studies.count_by_state().get(StudyState.RUNNING, 0) > 0
    except DatabaseUnavailable as problem:
        print(f"stagetree: a study may run: {problem}", file=sys.stderr)
        return True
    finally:
        records.close()


Queue = Annotated[
    str, typer.Argument(metavar="QUEUE", help="A slot, such as gpu0, gpu0a, cpu3 or host-gpu0; or scheduler; or slurm.")
]


def worker(queue: Queue) -> None:
    """Run a slot of a cluster, or its scheduler, until it is stopped. The settings come from the environment.

    With `slurm`, run the slot of the GPU that this task of a Slurm job was given.

    \b
    Example:  stagetree worker gpu0
    """
    require(*(SERVER if queue == SCHEDULER else STACK))
    from app.workers.prefork import work

    if queue == "slurm":
        queue = task_queue(os.environ)
        os.environ.setdefault("STAGETREE_ADDRESS", os.environ["SLURMD_NODENAME"])
    work(queue)
