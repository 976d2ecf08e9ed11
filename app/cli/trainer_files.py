"""`stagetree trainers`, the files that have trainers, and the trainer of a study."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from app.cli.errors import USAGE, fail
from app.cli.init import examples_folder
from app.cli.options import ListOutput, Server
from app.cli.output import ListFormat, one_line, print_list
from app.cli.service import open_server, server_url
from app.registry import Catalogue, TrainerFileError, TrainerSource, describe
from app.trainer_arguments import check_arguments
from stagetree.sequences import did_you_mean

if TYPE_CHECKING:
    from stagetree.spec import StudySpec

HERE = Path()

ENTRY = "trainer.py"


def trainer_files(paths: Sequence[str], folder: Path = HERE) -> list[str]:
    """The files to register: those given, the `trainer.py` of a folder, and the examples.

    A default file is left out if it repeats a trainer's name. Raises `TrainerFileError`.
    """
    files = [_trainer_file(Path(each), folder) for each in paths]
    names = set(describe(files))
    for path in [folder / ENTRY, *sorted(examples_folder().glob(f"*/{ENTRY}"))]:
        if path.exists() and not names & (described := describe([str(path)])).keys():
            files.append(str(path))
            names |= described.keys()
    return files


def _trainer_file(path: Path, folder: Path) -> str:
    """The file of a `--trainers` option: a file, or a folder with `trainer.py`."""
    if not path.exists():
        near = folder / path.name
        there = f"; did you mean {near}?" if near.exists() else f": {path.absolute()}"
        fail(f"--trainers {path}: there is no such file{there}", USAGE)
    return str(path / ENTRY if (path / ENTRY).is_file() else path)


def check_trainer(spec: StudySpec, files: Sequence[str], folder: Path) -> TrainerSource:
    """The study's trainer, which accepts its arguments. Exits with a message if no file has it; raises `SpecError`.

    folder: of the study file, to suggest a file there.
    """
    described = Catalogue(files).describe()
    source = described.get(spec.trainer) or _fail_without(spec.trainer, sorted(described), folder)
    check_arguments(spec, source)
    return source


MOST_LOOKED_THROUGH = 100
"""The most files that are searched for the trainer."""


def _fail_without(name: str, names: list[str], folder: Path) -> NoReturn:
    near = dict.fromkeys([*sorted(folder.glob("*.py")), *sorted(HERE.glob("*.py"))])
    beside = islice(near, MOST_LOOKED_THROUGH)
    if found := [str(path) for path in beside if name in Catalogue([str(path)]).describe()]:
        fail(f"trainer: {name!r} is in {', '.join(found)}: give --trainers {found[0]}", USAGE)
    register = f"register yours with --trainers FILE.py, or keep it in {ENTRY} beside the study file"
    if not names:
        fail(f"trainer: there are none here, so not {name!r}: {register}", USAGE)
    fail(f"trainer: must be one of {', '.join(names)}, got {name!r}{did_you_mean(name, names)}; {register}", USAGE)


def find_trainer(spec: StudySpec, study: Path, trainers: list[str]) -> TrainerSource | None:
    """The study's trainer, which accepts its arguments; None, with a warning, if it is not here.

    Raises `SpecError` for wrong arguments, and if no named file has the trainer; `TrainerFileError` for a broken named
    file.
    """
    from stagetree.spec import Problem, SpecError

    try:
        known = Catalogue(trainer_files(trainers, folder=study.parent)).describe()
        source = known.get(spec.trainer)
        if trainers and source is None:
            names = ", ".join(sorted(known)) or "none"
            text = f"is in none of the files that are named, which have {names}, got {spec.trainer!r}"
            raise SpecError([Problem("trainer", text + did_you_mean(spec.trainer, known))])
        near = did_you_mean(spec.trainer, known)
        why = f"it is not in {ENTRY} beside the study file{near or '; --trainers names another file'}"
    except TrainerFileError as error:
        if trainers:
            raise
        source, why = None, one_line(str(error))
    if source is not None:
        check_arguments(spec, source)
        untold = [*_unchecked_sentences(source)]
    else:
        untold = [f"The arguments of trainer {one_line(spec.trainer)} were not checked: {why}"]
    for sentence in untold:
        print(sentence, file=sys.stderr)
    return source


def _unchecked_sentences(source: TrainerSource) -> Iterator[str]:
    """Warnings about parts of a study that a script's source does not allow to check."""
    if source.script and source.takes.is_open:
        yield "The arguments of the script were not checked: it gives attach a dict of them"
    if source.script and source.reads is None:
        yield "Which hyper-parameters the script reads was not checked: its source does not tell, see stagetree check"


def trainers(
    server: Server = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--trainers", metavar="FILE.py", help="A Python file with trainers; may be repeated."),
    ] = None,
    output: ListOutput = ListFormat.table,
) -> None:
    """List the trainers of a server or, without one, the trainers that `run` would find here.

    \b
    Example:  stagetree trainers --trainers trainer.py
    """
    if url := None if files else server_url(server):
        with open_server(url) as service:
            offered = service.client.trainers()
    else:
        described = describe(trainer_files(files or []))
        offered = [{"name": name, "version": version} for name, version in sorted(described.items())]
    print_list(offered, output, ("trainer", "version"), [(each["name"], each["version"][:12]) for each in offered])
