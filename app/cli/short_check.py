"""What `stagetree run` does first: its trainer is checked in the short form, by the stack that was started for it.

It is an opinion beforehand, in one line, and holds nothing up: it waits for the interpreter that slots need as well,
then not for longer than `SECONDS`, and is not done again where a trainer of this version was found exact, as its mark
in the store says.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.checking import job_of, name_problem, seconds_of
from app.embedded.machine import default_device
from app.registry import Catalogue
from app.workers.deadline import Deadline
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm, WarmFailed
from stagetree.runtime.failures import TrainerFailed

if TYPE_CHECKING:
    from stagetree.spec import StudySpec

Json = dict[str, Any]
SECONDS = 15
"""After so long a check is given up: one whose steps are long is asked for, with `stagetree check`."""

MARKS = "checked"
"""The folder in a store that has an empty file for each trainer that was found exact."""


def short_check(spec: StudySpec, files: Sequence[str], store: Path | None, warm: str, seconds: float = SECONDS) -> str:
    """What was found, in a line. warm: the socket of an interpreter that forks trainers.

    It says nothing where there is nothing to check: no configuration yet, `determinism: off`, or a mark in the store.
    """
    source = Catalogue(files).describe()[spec.trainer]
    job = _job(spec, source.path)
    mark = None if store is None or job is None else store / MARKS / _digest(source.version, job)
    if job is None or (mark is not None and mark.exists()):
        return ""
    with closing(Warm(warm)) as interpreter:
        return _found(job, spec.metric, mark, interpreter, seconds)


def _job(spec: StudySpec, file: str) -> Json | None:
    if spec.determinism == "off":
        return None
    job = job_of(spec, file, default_device())
    return job and {**job, "steps": 2, "broken": 1, "is_short": True}


def _digest(version: str, job: Json) -> str:
    """Of all that decides what is found: a trainer's code and what it is given."""
    decisive = {name: job[name] for name in ("name", "args", "device", "threads", "determinism")}
    text = json.dumps([version, decisive, sorted(job["hp"])], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _found(job: Json, metric: str, mark: Path | None, warm: Warm, seconds: float) -> str:
    try:
        report = _report(job, warm, seconds)
    except WarmFailed as problem:
        return f"Check: {problem}."
    except TrainerFailed as failed:
        if failed.kind == "hang":
            return f"Check: given up after {seconds:.0f} s. `stagetree check` takes its time."
        return f"Check: {failed.error.splitlines()[-1]}. `stagetree check` shows more."
    name_problem(report, metric)
    if mark is not None and not (report["failed"] or report["differences"] or report["not_exact"]):
        mark.parent.mkdir(mode=0o700, exist_ok=True)
        mark.touch(mode=0o600)
    return f"Check: {_verdict(report)}."


def _report(job: Json, warm: Warm, seconds: float) -> Json:
    """From a process of its own, which is gone afterwards, as is all that it started. Raises as it does."""
    with tempfile.TemporaryDirectory(prefix="stagetree-") as folder:
        process = TrainerProcess(*warm.fork())
        try:
            process.log(Path(os.devnull))
            return process.check(job, Path(folder), deadline=Deadline(seconds))
        finally:
            process.kill()
            process.close()


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
