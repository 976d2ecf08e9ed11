"""`stagetree check-tuner`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.errors import FAILED, USAGE, fail


def check_tuner(
    file: Annotated[Path, typer.Argument(help="A Python file with tuners.")],
    study: Annotated[
        Path | None, typer.Option("--study", help="A study file that asks for the tuner, with its args and its space.")
    ] = None,
) -> None:
    """Try tuners of your own on virtual slots: whether they do what any tuner must.

    For example: stagetree check-tuner mine.py
    """
    if not _check(file, study):
        raise typer.Exit(FAILED)


def _check(file: Path, study: Path | None) -> bool:
    """Try each tuner of a file and print what it passed; whether that was all of it."""
    from app import tuner_suite
    from app.tuner_files import TunerFileError, load
    from stagetree.spec.file import read

    try:
        tuners = load(str(file))
    except TunerFileError as error:
        fail(str(error), USAGE)
    passed = True
    for name, registered in tuners.items():
        print(f"{name} {registered.version}")
        for verdict in tuner_suite.check(name, registered, read(study) if study else None):
            passed = passed and verdict.flaw is None
            print(f"  {'passed' if verdict.flaw is None else 'FAILED'}  {verdict.check}")
            if verdict.flaw is not None:
                print(f"          {verdict.flaw}")
    return passed
