"""What `stagetree run` does first: its trainer is checked in the short form, while the stack starts.

It is an opinion beforehand, in one line, and holds nothing up: not for longer than `SECONDS`, and not again where a
trainer of this version was found exact, as its mark in the store says.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.checking import check_command, check_environment, job_of, read_report, seconds_of
from app.embedded.children import end_with_parent
from app.embedded.machine import default_device
from app.registry import Catalogue
from stagetree.runtime.failures import ending

if TYPE_CHECKING:
    from stagetree.spec import StudySpec

Json = dict[str, Any]
SECONDS = 15
"""After so long a check is given up: one whose steps are long is asked for, with `stagetree check`."""

MARKS = "checked"
"""The folder in a store that has an empty file for each trainer that was found exact."""


@contextmanager
def short_check(
    spec: StudySpec, files: Sequence[str], store: Path | None, seconds: int = SECONDS
) -> Iterator[Callable[[], str]]:
    """The check is under way in the block. What is given waits for its end, and says in a line what was found.

    It says nothing where there is nothing to check: no configuration yet, `determinism: off`, or a mark in the store.
    """
    source = Catalogue(files).describe()[spec.trainer]
    job = _job(spec, source.path, seconds)
    mark = None if store is None or job is None else store / MARKS / _digest(source.version, job)
    if job is None or (mark is not None and mark.exists()):
        yield lambda: ""
        return
    with tempfile.TemporaryDirectory(prefix="stagetree-") as folder, _checking(job, Path(folder)) as process:
        yield lambda: _found(process, Path(folder) / "report", spec.metric, mark, seconds)


def _job(spec: StudySpec, file: str, seconds: int) -> Json | None:
    if spec.determinism == "off":
        return None
    job = job_of(spec, file, default_device())
    return job and {**job, "steps": 2, "broken": 1, "is_short": True, "seconds": seconds}


def _digest(version: str, job: Json) -> str:
    """Of all that decides what is found: a trainer's code and what it is given."""
    decisive = {name: job[name] for name in ("name", "args", "device", "threads", "determinism")}
    text = json.dumps([version, decisive, sorted(job["hp"])], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _checking(job: Json, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process that checks, which is over after the block at the latest. What it leaves lies in the folder."""
    (folder / "job").write_text(json.dumps(job))
    with (folder / "job").open() as given:
        process = subprocess.Popen(
            check_command(folder / "report"),
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=check_environment(folder),
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            _kill(process)
            process.wait()


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """How it ended. What it started, such as loader workers, is over too."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # nobody else can have its number yet
    _kill(process)
    return process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _found(process: subprocess.Popen[bytes], result: Path, metric: str, mark: Path | None, seconds: int) -> str:
    code = _exit_code(process)
    if code == -signal.SIGALRM:
        return f"Check: given up after {seconds} s. `stagetree check` takes its time."
    if code or not result.exists():
        return f"Check: the trainer's process {ending(code)}. `stagetree check` shows more."
    report = read_report(result, metric)
    if mark is not None and not (report["failed"] or report["differences"] or report["not_exact"]):
        mark.parent.mkdir(mode=0o700, exist_ok=True)
        mark.touch(mode=0o600)
    return f"Check: {_verdict(report)}."


def _verdict(report: Json) -> str:
    if report["failed"]:
        error = report["failed"].strip().splitlines()[-1].rstrip(".")
        return f"the trainer failed, {error}. `stagetree check` shows where"
    if report["differences"]:
        return f"NOT EXACT: {'; '.join(report['differences'].values())}. `stagetree check` shows more"
    if report["not_exact"]:
        return f"not exact, {', '.join(report['not_exact'])} has no deterministic form"
    step, size = seconds_of(report["step_seconds"]), report["checkpoint_bytes"] / 2**20
    return f"the trainer goes on exactly. A step takes {step}, a checkpoint {size:.2f} MiB"
