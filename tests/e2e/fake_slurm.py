"""As much of Slurm as a job needs: `sbatch`, `srun` and `scontrol`, on one machine that plays all nodes.

What the cluster does to a job, a test does to it: `touch limit` in the state's folder is the signal that comes before
the time limit, `touch preempt` takes the nodes away, as for a job of a higher priority.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

KILL_WAIT = 30.0
"""Slurm's own: after SIGTERM, for as long, nothing is killed."""


def install(folder: Path) -> Path:
    """A folder for PATH with the three commands."""
    folder.mkdir()
    for name in ("sbatch", "srun", "scontrol"):
        command = folder / name
        command.write_text(f'#!/bin/bash\nexec {sys.executable} {__file__} {name} "$@"\n')
        command.chmod(0o755)
    return folder


def sbatch(script: str) -> int:
    """Run a job until it ends and does not come back; its exit code."""
    text = Path(script).read_text()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", text, re.M))
    told, is_in_batch, number = re.fullmatch(r"(B:)?(\w+)@(\d+)", options["signal"]), True, 0
    assert told is not None and told[1] == "B:", "which goes to the script alone"
    while is_in_batch:
        code, is_back = _run(script, options, told[2], number)
        number += 1
        is_in_batch = is_back and "requeue" in options
    return code


def _run(script: str, options: dict[str, str], told: str, restarts: int) -> tuple[int, bool]:
    """Of one life of a job: its exit code, and whether it comes back."""
    state = Path(os.environ["FAKE_SLURM"])
    given = {"SLURM_JOB_ID": "42", "SLURM_RESTART_COUNT": str(restarts)}
    given |= {"FAKE_NODES": options["nodes"], "FAKE_TASKS": options["ntasks-per-node"]}
    with (state / "output").open("ab") as output:
        job = subprocess.Popen(
            ["bash", script], env=os.environ | given, stdout=output, stderr=output, start_new_session=True
        )
        is_preempted = False
        while job.poll() is None:
            time.sleep(0.05)
            if _has_come(state / "limit"):
                job.send_signal(getattr(signal, f"SIG{told}"))
            if _has_come(state / "preempt"):
                is_preempted = True
                os.killpg(job.pid, signal.SIGTERM)
        _end_group(job.pid)
    return job.returncode, _has_come(state / "requeue-42") or is_preempted


def _end_group(group: int) -> None:
    """The processes of a job outlive its script by KillWait at most."""
    ends_at = time.monotonic() + KILL_WAIT
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < ends_at:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


def _has_come(file: Path) -> bool:
    """Whether this was requested, once."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def srun(command: list[str]) -> int:
    """Run the tasks of all nodes. A signal is theirs; the exit code is the highest of them."""
    while command[0].startswith("--"):
        command = command[1:]
    nodes, tasks = int(os.environ["FAKE_NODES"]), int(os.environ["FAKE_TASKS"])
    places = [(f"node{node}", str(local)) for node in range(nodes) for local in range(tasks)]
    running = [
        subprocess.Popen(command, env=os.environ | {"SLURMD_NODENAME": node, "SLURM_LOCALID": local})
        for node, local in places
    ]

    def forward(number: int, _: object) -> None:
        for task in running:
            task.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, forward)
    codes = list[int]()
    threads = [threading.Thread(target=lambda task=task: codes.append(task.wait())) for task in running]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # signals come between two waits
            thread.join(0.1)
    return max(abs(code) for code in codes)


def scontrol(verb: str, job: str) -> int:
    """`requeue`: the job is to begin again when it has ended."""
    assert verb == "requeue"
    (Path(os.environ["FAKE_SLURM"]) / f"requeue-{job}").touch()
    return 0


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    if name == "srun":
        sys.exit(srun(arguments))
    sys.exit({"sbatch": sbatch, "scontrol": scontrol}[name](*arguments))
