"""`stagetree weights`: the weights of a trial, as a file that any program opens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from app.cli.errors import USAGE, fail
from app.cli.options import Server, Store, StudyId, folder_or_default, open_records, places
from stagetree.whole_file import whole_file

TrialNumber = Annotated[int | None, typer.Option("--trial", metavar="N", min=0, help="By default the best trial.")]
Step = Annotated[int | None, typer.Option("--step", metavar="S", min=1, help="By default where it was measured last.")]
Whole = Annotated[
    bool, typer.Option("--state", help="The whole checkpoint, for stagetree.load_state, instead of the weights.")
]
Into = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write into.")]


def weights(
    id: StudyId,
    trial: TrialNumber = None,
    step: Step = None,
    output: Into = Path(),
    whole: Whole = False,
    server: Server = None,
    dir: Store = None,
) -> None:
    """Write the weights of a trial to a safetensors file, with the model's own names. Needs no server, but takes one.

    \b
    Example:  stagetree weights last -o best
    """
    from app.cli.finding import server_url

    if server and dir:
        fail("--server and --dir name two places: give one of them", USAGE)
    wanted = _Wanted(trial, step, whole, output)
    try:
        if url := None if dir else server_url(server):
            _from_server(url, id, wanted)
        else:
            _from_store(folder_or_default(dir), id, wanted)
    except OSError as error:
        fail(f"{error.filename or output} cannot be written: {error.strerror}")


@dataclass(frozen=True)
class _Wanted:
    """Which state of which trial; the whole of it, or the weights; and the folder to write into."""

    trial: int | None
    step: int | None
    whole: bool
    into: Path


def _from_server(url: str, id: str, wanted: _Wanted) -> None:
    from app.cli.finding import Documents, study_id
    from stagetree.client.client import Client, Holds

    with Client(url) as client:
        study = study_id(Documents(client), id)
        holds: Holds = "state" if wanted.whole else "weights"
        print(client.checkpoint(study, wanted.into, trial=wanted.trial, step=wanted.step, holds=holds))


def _from_store(folder: Path | None, id: str, wanted: _Wanted) -> None:
    from app.domain.terms import StudyId, Unknown
    from app.events import Plans
    from app.object_store import open_store
    from app.service.files import kept_state, parts

    name = _study(id, folder)
    with open_records(folder) as records:
        with records.read() as rows:
            row = rows.studies.find(name)
        if row is None:
            raise Unknown(f"there is no study {name}")
        with Plans(records.log).holding(row.stream) as plan:
            state = kept_state(plan, plan.studies[StudyId(name)], wanted.trial, wanted.step)
    path = wanted.into / f"{name}-{state.file_name(whole=wanted.whole)}"
    _write(path, parts(open_store(places(folder)[1]), state.checkpoint, whole=wanted.whole))
    measured = ", ".join(f"{name} {value}" for name, value in sorted(state.metrics.items()))
    print(f"{path}  (trial {state.trial} after step {state.step}: {measured or 'not measured there'})")


def _write(path: Path, parts: Iterator[memoryview]) -> None:
    """What is wrong with a checkpoint is known before the file is begun."""
    first = next(parts)
    with whole_file(path) as file:
        for part in chain([first], parts):
            file.write(part)


def _study(meant: str, folder: Path | None) -> str:
    """The id of the study that is meant; without a folder, it is the id."""
    from app.cli.finding import study_id
    from app.cli.store import Store

    if folder is None:
        return meant
    with Store(folder) as store:
        return study_id(store, meant)
