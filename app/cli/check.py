"""`stagetree check` and `check-tuner`: check a trainer, or a tuner, for the properties that studies rely on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import study_files
from app.cli.errors import FAILED, USAGE, fail
from app.cli.extras import TRAINING, require
from app.cli.options import Changes, Output, StudyFile, Trainers
from app.cli.output import Format, plural, print_answer
from app.embedded.machine import PYTHON, checkout_path
from stagetree.runtime.failures import ending
from stagetree.source.undeclared_input import UndeclaredInput

if TYPE_CHECKING:
    from stagetree.spec import StudySpec

Json = dict[str, Any]

MOST_READ = 8

WAYS = {
    "again": "trained once more        ",
    "split": "resumed elsewhere        ",
    "used": "resumed in a used object ",
    "watched": "evaluated after each step",
}
Steps = Annotated[int, typer.Option("--steps", metavar="N", min=2, help="The number of steps to train in each way.")]
Ranks = Annotated[
    str, typer.Option("--ranks", metavar="K,...", help="Also train in 1, 2, 4, ... ranks, whose results must be equal.")
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="DEVICE", help="The device, cpu or cuda:0; by default that of a slot."),
]


def check(
    study: StudyFile,
    trainers: Trainers = None,
    steps: Steps = 4,
    device: Device = None,
    ranks: Ranks = "1",
    changes: Changes = None,
    output: Output = Format.table,
) -> None:
    """Check whether a trainer is exact: train it whole, with a break, with evaluations, in a used object, and compare.

    \b
    Example:  stagetree check study.yaml --steps 6
    """
    require(*TRAINING)
    from app.cli.trainer_files import check_trainer, trainer_files
    from app.embedded.machine import default_device
    from app.settings import settings

    spec = study_files.load(study, changes or (), settings().limits)
    files = trainer_files(trainers or [], folder=study.parent)
    job = check_job(spec, check_trainer(spec, files, study.parent).path, device or default_device())
    if job is None:
        fail("the study names no hyper-parameters to check with: give it a space", USAGE)
    worlds = _worlds(ranks, job["parallel"])
    report = _report({**job, "steps": steps, "broken": steps // 2, "ranks": worlds}, spec.to_json())
    report["reads"] = [each for each in report["reads"] if _is_left_out(each, spec.inputs)]
    print_answer(report, output, *report_lines(report), *_rank_lines(report, worlds), *_success(report))
    if report["failed"] or report["differences"]:
        raise typer.Exit(FAILED)


def report_lines(report: Json) -> list[str]:
    """The lines of a report."""
    if report["failed"]:
        traceback = report["failed"].rstrip()
        return [f"The trainer failed: {traceback.splitlines()[-1]}", "", traceback]
    step, first = (_seconds(report[name]) for name in ("step_seconds", "first_step_seconds"))
    report_lines = [f"a step            {step} (the first: {first})"]
    report_lines += [f"an evaluation     {_seconds(report['evaluate_seconds'])}"]
    size = report["checkpoint_bytes"] / 2**20
    report_lines += [
        f"a checkpoint      {size:.2f} MiB, copied in {_seconds(report['save_seconds'])}, "
        f"loaded in {_seconds(report['load_seconds'])}"
    ]
    report_lines += [f"not exact         {operation} has no deterministic form" for operation in report["not_exact"]]
    for name in report["unread"]:
        steps = f"the {report['steps']} steps"
        report_lines.append(f"not read          `{name}` changes nothing: `setup` never reads it, nor do {steps}")
    report_lines += [f"reads             {_undeclared_text(path)}" for path in report["reads"][:MOST_READ]]
    if (rest := len(report["reads"]) - MOST_READ) > 0:
        report_lines.append(f"                  and {rest} more")
    for way, words in WAYS.items():
        if way != "again" or way in report["differences"]:
            report_lines.append(f"{words}  {report['differences'].get(way, 'the same, bit for bit')}")
    return report_lines


def _undeclared_text(path: str) -> str:
    if UndeclaredInput(path).is_variable:
        return f"{path}, which is no part of the study: use `trainer_args`, if it matters"
    path = min(path, os.path.relpath(path), key=len)
    return f"{path}, which is no part of the study: `inputs: [{UndeclaredInput(path).folder}]` makes it one"


def _is_left_out(path: str, inputs: Iterable[str]) -> bool:
    """Whether the study could declare this input. It cannot declare packages."""
    is_named = any(Path(path).is_relative_to(os.path.abspath(each)) for each in inputs)
    return not (is_named or UndeclaredInput(path).is_package)


def _worlds(text: str, parallel: str) -> list[int]:
    """The numbers of ranks to compare. parallel: as in a plan."""
    try:
        worlds = sorted({int(each) for each in text.split(",")})
    except ValueError:
        worlds = [0]
    if any(each < 1 or each & (each - 1) for each in worlds):
        fail(f"--ranks takes powers of two, such as 1,2,4, not {text}", USAGE)
    if ":" in parallel and worlds != [1]:
        kind, _, number = parallel.partition(":")
        fail(f"--ranks: with parallel: {kind} as torch has it, the study is checked in its {number} ranks only", USAGE)
    return worlds


def _rank_lines(report: Json, worlds: list[int]) -> list[str]:
    if report["failed"] or any(way in report["differences"] for way in WAYS):
        return []
    found = {each: report["differences"].get(f"ranks {each}", "the same, bit for bit") for each in worlds if each > 1}
    return [f"{f'{each} ranks':25}  {text}" for each, text in found.items()]


def _success(report: Json) -> list[str]:
    """The steps of the trainings, if all of them agree."""
    if report["failed"] or report["differences"]:
        return []
    steps = f"after {report['steps']} steps, with a break after {plural(report['broken'], 'step')}"
    return [f"compared          {steps}: no bit differs; --steps N trains for longer"]


def check_job(spec: StudySpec, file: str, device: str) -> Json | None:
    """The request to `stagetree.runtime.check`, without steps; None if the study has no configuration yet."""
    from app.settings import settings
    from stagetree.spec import reduction_name

    hp = _configuration(spec)
    return hp and {
        "file": file,
        "name": spec.trainer,
        "args": {**spec.trainer_args, **spec.runtime_args},
        "seed": spec.seed,
        "hp": hp,
        "device": device,
        "threads": settings().threads if device == "cpu" else 1,
        "determinism": spec.determinism,
        "shards": spec.shards or 0,
        "parallel": reduction_name(spec.parallel, spec.shards, spec.ranks),
    }


def _configuration(spec: StudySpec) -> Json | None:
    """The hyper-parameters of a possible trial; None if the study has none yet."""
    if spec.space is None:
        chosen = next(spec.configurations(), None)
    else:
        drawn = spec.first[0] if spec.first else spec.search_space.sample(spec.seed, 0)
        chosen = spec.search_space.drop_length(drawn)
    return chosen and {name: sequence.to_json() for name, sequence in chosen.items()}


def _report(job: Json, study: Json) -> Json:
    """Run the check in a process of its own, with the trainer's output on stderr; its report.

    Metrics that do not include the study's own are a failure, too.
    """
    from app.domain.objectives import read_objectives

    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "report"
        path = os.pathsep.join(filter(None, (checkout_path(), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": folder}
        how: Json = {"env": environment, "stdout": sys.stderr, "text": True, "check": False}
        done = subprocess.run([*PYTHON, "stagetree.runtime.check", str(result)], input=json.dumps(job), **how)
        if done.returncode or not result.exists():
            fail(f"the check {ending(done.returncode)}", FAILED)
        report: Json = json.loads(result.read_text())
    if not report["failed"] and (problem := read_objectives(study).problem(report["metrics"], report["steps"])):
        report["failed"] = problem["error"]
    return report


def _seconds(seconds: float) -> str:
    """A time in ms or s."""
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def check_tuner(
    file: Annotated[Path, typer.Argument(help="A Python file with tuners.")],
    study: Annotated[
        Path | None, typer.Option("--study", help="A study file that asks for the tuner, with its args and its space.")
    ] = None,
) -> None:
    """Check tuners of your own on virtual slots: whether they do what any tuner must.

    For example: stagetree check-tuner mine.py
    """
    from app.simulation.tuner_suite import check_file

    passed = True
    for name, version, verdicts in check_file(file, study):
        print(f"{name} {version}")
        for verdict in verdicts:
            passed = passed and verdict.flaw is None
            print(f"  {'passed' if verdict.flaw is None else 'FAILED'}  {verdict.check}")
            if verdict.flaw is not None:
                print(f"          {verdict.flaw}")
    if not passed:
        raise typer.Exit(FAILED)
