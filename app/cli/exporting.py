"""`stagetree weights`: the weights of a trial, as a file that any program opens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.errors import NOT_FOUND, USAGE, fail

Id = Annotated[str, typer.Argument(metavar="ID", help="The study, as `stagetree studies` lists it.")]
TrialNumber = Annotated[int | None, typer.Option("--trial", metavar="N", min=0, help="By default the best trial.")]
Step = Annotated[int | None, typer.Option("--step", metavar="S", min=1, help="By default where it was measured last.")]
Into = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write into.")]
Folder = Annotated[
    Path | None,
    typer.Option("--dir", metavar="FOLDER", help="The folder of an embedded stack; else STAGETREE_DATABASE_URL's."),
]


def weights(id: Id, trial: TrialNumber = None, step: Step = None, output: Into = Path(), dir: Folder = None) -> None:
    """Write the weights of a trial to a safetensors file, with the model's own names. Needs no server.

    \b
    Example:  stagetree weights digits-3f9a1c --dir .stagetree -o best
    """
    from app.api.kept import kept_state
    from app.domain.errors import Unknown
    from app.domain.ids import StudyId
    from app.events.database import Database
    from app.events.records import SqlRecords
    from app.events.transact import Plans
    from app.workers.checkpoints import CheckpointLost, Checkpoints
    from stagetree.weights import export_weights

    database, root = _places(dir)
    records = SqlRecords(Database(database))
    try:
        with records.read() as rows:
            row = rows.studies.find(id)
        if row is None:
            raise Unknown(f"there is no study {id}")
        with Plans(records.log).holding(row.stream) as plan:
            found = kept_state(plan, plan.studies[StudyId(id)], trial, step)
        image = Checkpoints(root).read(found.checkpoint.key, found.checkpoint.sha256)
    except (Unknown, CheckpointLost) as problem:
        fail(str(problem), NOT_FOUND)
    finally:
        records.close()
    path = output / f"{id}-trial-{found.trial}-step-{found.step}.safetensors"
    output.mkdir(parents=True, exist_ok=True)
    path.write_bytes(export_weights(image))
    measured = ", ".join(f"{name} {value}" for name, value in sorted(found.metrics.items()))
    print(f"{path}  (trial {found.trial} after step {found.step}: {measured or 'not measured there'})")


def _places(folder: Path | None) -> tuple[str, str]:
    """The URL of the database, and where checkpoints are kept."""
    from app.settings import settings

    if folder is None:
        return settings().database_url, settings().checkpoints
    if not (file := folder.resolve() / "stagetree.db").exists():
        fail(f"{folder} holds no stagetree.db: is it the folder of an embedded stack?", USAGE)
    return f"sqlite:///{file}", str(folder.resolve() / "checkpoints")
