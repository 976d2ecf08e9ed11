"""`stagetree check-tuner`."""

from __future__ import annotations

from pathlib import Path

from app.cli.errors import USAGE, fail


def check(file: Path, study: Path | None) -> bool:
    """Try each tuner of a file and print what it passed; whether that was all of it."""
    from app import tuner_suite
    from app.tuner_files import TunerFileError, load
    from stagetree.study_file import read

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
