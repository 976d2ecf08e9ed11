"""`stagetree check`: whether a trainer is exact, before a study relies on it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.errors import FAILED, USAGE, fail
from app.cli.options import Output, StudyFile, Trainers
from app.cli.output import Format, print_json

Json = dict[str, Any]
WAYS = {
    "again": "trained once more        ",
    "split": "gone on elsewhere        ",
    "used": "gone on in a used object ",
    "watched": "evaluated after each step",
}
Steps = Annotated[int, typer.Option("--steps", metavar="N", min=2, help="How many steps to train, in each way.")]
Device = Annotated[str, typer.Option("--device", metavar="DEVICE", help="Where it is trained: cpu, or cuda:0.")]


def check(
    study: StudyFile, trainers: Trainers = None, steps: Steps = 4, device: Device = "cpu", output: Output = Format.table
) -> None:
    """Is the trainer exact? Train it whole, with a break, with evaluations and in a used object, and compare.

    \b
    Example:  stagetree check study.yaml --steps 6
    """
    from app.cli import stacks
    from app.registry import Catalogue
    from app.settings import settings
    from stagetree.spec import StudySpec

    spec = StudySpec.from_file(study, settings().limits)
    files = stacks.trainer_files(trainers or [], folder=study.parent)
    stacks.check_trainer(spec.trainer, files)
    source = Catalogue(files).find(spec.trainer)
    if source is None:
        fail(f"trainer {spec.trainer!r} is in no file here: name its file with --trainers FILE.py", USAGE)
    job = {
        "file": source.path,
        "name": spec.trainer,
        "args": {**spec.trainer_args, **spec.runtime_args},
        "seed": spec.seed,
        "hp": _first_configuration(spec),
        "steps": steps,
        "broken": steps // 2,
        "device": device,
        "threads": settings().threads if device == "cpu" else 1,
        "determinism": spec.determinism,
    }
    report = _report(job)
    if output is Format.json:
        print_json(report)
    else:
        print("\n".join(lines(report)))
    if report["failed"] or report["differences"]:
        raise typer.Exit(FAILED)


def lines(report: Json) -> list[str]:
    """A report as text."""
    if report["failed"]:
        return ["The trainer failed:", report["failed"]]
    found = [
        f"a step            {_seconds(report['step_seconds'])} (the first: {_seconds(report['first_step_seconds'])})"
    ]
    found += [f"an evaluation     {_seconds(report['evaluate_seconds'])}"]
    size = report["checkpoint_bytes"] / 2**20
    found += [
        f"a checkpoint      {size:.2f} MiB, copied in {_seconds(report['save_seconds'])}, "
        f"loaded in {_seconds(report['load_seconds'])}"
    ]
    found += [f"not exact         {operation} has no deterministic form" for operation in report["not_exact"]]
    for way, words in WAYS.items():
        if way != "again" or way in report["differences"]:
            found.append(f"{words}  {report['differences'].get(way, 'the same, to the bit')}")
    return found


def _first_configuration(spec: Any) -> Json:
    """The hyper-parameters of a study's first trial."""
    first = next(iter(spec.configurations()), None)
    if first is None and spec.space is None:
        fail("the study names no hyper-parameters to check with: give it a space", USAGE)
    first = first or spec.search_space.sample(spec.seed, 0)
    return {name: sequence.to_json() for name, sequence in first.items()}


def _report(job: Json) -> Json:
    """What the check found, in a process of its own; what the trainer prints goes to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "report"
        command = [sys.executable, "-P", "-m", "stagetree.runtime.check", str(result)]
        done = subprocess.run(command, input=json.dumps(job), text=True, stdout=sys.stderr, check=False)
        if done.returncode or not result.exists():
            fail(f"the check ended with exit code {done.returncode}", FAILED)
        report: Json = json.loads(result.read_text())
        return report


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
