"""`stagetree weights`: the weights of a trial, as a file that any program opens."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import typer

from app.cli.errors import USAGE, fail
from app.cli.options import Server, Store, StudyId, Trainers, folder_or_default, open_records, places
from app.cli.result import print_mark
from app.cli.service import Documents, server_url, study_id

OF_TRIAL = re.compile(r"trial-(\d+)-step-(\d+)")
"""The part of a file's name with trial and step."""

TrialNumber = Annotated[
    int | None, typer.Option("--trial", metavar="N", min=0, help="The trial; by default the best one.")
]
Step = Annotated[
    int | None, typer.Option("--step", metavar="S", min=1, help="The step; by default the last one measured.")
]
Whole = Annotated[
    bool, typer.Option("--state", help="The whole checkpoint, for stagetree.load_state, instead of the weights.")
]
Export = Annotated[
    Path | None,
    typer.Option("--export", metavar="DIR", help="Have the trainer export the model to this new folder."),
]
Into = Annotated[
    Path | None, typer.Option("--to", metavar="PATH", help="The folder to write into, or a FILE.safetensors.")
]


def weights(
    id: StudyId,
    trial: TrialNumber = None,
    step: Step = None,
    to: Into = None,
    whole: Whole = False,
    export: Export = None,
    trainers: Trainers = None,
    server: Server = None,
    dir: Store = None,
) -> None:
    """Write the weights of a trial to a safetensors file, with the model's own names. Works without a server, too.

    With --export, the trainer writes the model in its library's format, such as for from_pretrained of Transformers.

    \b
    Example:  stagetree weights last --to best
    """
    if server and dir:
        fail("--server and --dir name two places: give one of them", USAGE)
    if export is not None and (to is not None or whole):
        other = "--state" if to is None else "--to"
        fail(f"--export names the folder that the trainer writes into, and {other} is for a file: give one", USAGE)
    try:
        if export is None:
            into, name = _place(to)
            file = _write(id, _Wanted(trial, step, whole, into), server, dir)
            if name:
                file = file._replace(path=file.path.replace(into / name))
            print(f"{file.path}{file.about}")
            print_mark(file.trial, file.mark)
            if not whole:
                _print_similar_names(file.like_the_model)
        else:
            _export(id, _Wanted(trial, step, True, export), trainers or [], server, dir)
    except OSError as error:
        fail(f"{error.filename or to} cannot be written: {error.strerror}")


def _place(output: Path | None) -> tuple[Path, str]:
    """The output folder, and the file's name if the option names a file."""
    if output is None or output.suffix != ".safetensors" or output.is_dir():
        return output or Path(), ""
    return output.parent, output.name


def _export(id: str, which: _Wanted, trainers: list[str], server: str | None, dir: Path | None) -> None:
    """Build the trainer here, as `stagetree debug` does, and have it write its model."""
    from app.cli.debug import StoredState, export_model

    which.into.mkdir(parents=True, exist_ok=True)
    if any(which.into.iterdir()):
        fail(f"{which.into} is not empty: name a new folder", USAGE)
    with TemporaryDirectory(prefix="stagetree-") as folder:
        file = _write(id, replace(which, into=Path(folder)), server, dir)
        number, step = map(int, OF_TRIAL.findall(file.path.name)[-1])
        state = StoredState(id, number, step, file.path, file.mark)
        is_its_own = export_model(state, which.into, trainers, server, dir)
        like = [] if is_its_own else _model_copies(file.path)
    print(f"{which.into}{file.about}: {', '.join(sorted(path.name for path in which.into.iterdir()))}")
    print_mark(file.trial, file.mark)
    _print_similar_names(like)


def _model_copies(state: Path) -> list[str]:
    """Reads only the header, since the state may be larger than the memory."""
    from stagetree.runtime.checkpoints.weight_files import find_model_copies

    with state.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as image:
        return find_model_copies(image)


def _print_similar_names(parts: Sequence[str]) -> None:
    """Warn about other parts of the state that `evaluate` may have measured instead of the written weights."""
    if parts:
        print(
            f"These are the weights of `model`. The state has {' and '.join(map(repr, parts))} too, of the same names "
            "and shapes: if `evaluate` measures that, the value is not of these weights. Write "
            "`export(self, folder)` in the trainer, and use --export.",
            file=sys.stderr,
        )


class _File(NamedTuple):
    """A written file, with its trial and mark, and the parts that resemble the model."""

    path: Path
    trial: int
    mark: str
    about: str = ""
    like_the_model: Sequence[str] = ()


def _write(id: str, which: _Wanted, server: str | None, dir: Path | None) -> _File:
    url = None if dir else server_url(server)
    return _write_from_server(url, id, which) if url else _write_from_store(folder_or_default(dir), id, which)


@dataclass(frozen=True)
class _Wanted:
    """The requested state or weights of a trial, and the output folder."""

    trial: int | None
    step: int | None
    whole: bool
    into: Path


def _write_from_server(url: str, id: str, which: _Wanted) -> _File:
    from stagetree.client.client import Client, Holds

    with Client(url) as client:
        study = study_id(Documents(client), id)
        holds: Holds = "state" if which.whole else "weights"
        path = client.checkpoint(study, which.into, trial=which.trial, step=which.step, holds=holds)
        number = int(OF_TRIAL.findall(path.name)[-1][0])
        return _File(path, number, client.trial(study, number).exactness)


def _write_from_store(folder: Path | None, id: str, which: _Wanted) -> _File:
    from app.domain.terms import StudyId, Unknown
    from app.events import Plans
    from app.service.files import kept_state, write_state
    from app.storage.object_store import open_store

    name = _store_study_id(id, folder)
    with open_records(folder) as records:
        with records.read() as rows:
            row = rows.studies.find(name)
        if row is None:
            raise Unknown(f"there is no study {name}")
        with Plans(records.log).holding(row.stream) as plan:
            state = kept_state(plan, plan.studies[StudyId(name)], which.trial, which.step)
    written = write_state(open_store(places(folder)[1]), name, state, which.into, whole=which.whole)
    return _File(written.path, state.trial, state.exactness, f"  ({state.text})", written.like_the_model)


def _store_study_id(meant: str, folder: Path | None) -> str:
    """The study's id. Without a folder, the argument must be the id."""
    from app.cli.store import Store

    if folder is None:
        return meant
    with Store(folder) as store:
        return study_id(store, meant)
