"""Commands that delete: a study that is over, and checkpoints that serve nobody. Both ask first."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import FAILED, USAGE, fail
from app.cli.options import Output, Server, Store, StudyId
from app.cli.output import Format, print_json
from app.cli.text import memory, plural

if TYPE_CHECKING:
    from app.domain.search_plan import KeptAt
    from app.workers.scheduler.retention import Retention

    Chosen = Mapping[str, Sequence[KeptAt]]

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")]
Budget = Annotated[
    str | None,
    typer.Option("--budget", metavar="SIZE", help="Keep at most this: 20GiB; else STAGETREE_CHECKPOINT_BUDGET."),
]


def delete(
    id: StudyId, yes: Yes = False, server: Server = None, dir: Store = None, output: Output = Format.table
) -> None:
    """Delete a study that is over, and what is kept for it alone. Studies that share steps with it lose nothing.

    \b
    Example:  stagetree delete digits-grid-3f9c1a --yes
    """
    from app.cli import stacks
    from app.cli.finding import study_id

    with stacks.reading(server, dir) as service:
        study = study_id(service.client, id)
        number = len(service.client.study(study)["trials"])
        _ask(f"Delete study {study} with its {number} trials?", yes)
        service.client.delete(study)
    if output is Format.json:
        print_json({"study": study, "deleted": True})
    else:
        print(f"{study} is deleted; its checkpoints go with the next `stagetree gc`, or by themselves where one is up")


def gc(
    yes: Yes = False, dry_run: DryRun = False, budget: Budget = None, dir: Store = None, output: Output = Format.table
) -> None:
    """Delete the checkpoints that no study is left to ask for, and as many others as are more than a budget.

    What studies under way begin with, and the final states of the best trials, stay. Needs no server.

    \b
    Example:  stagetree gc --budget 20GiB
    """
    from app.events.database import Database
    from app.events.records import SqlRecords

    database, root = _places(dir)
    records = SqlRecords(Database(database))
    try:
        retention = _retention(records, root, _bytes(budget))
        retention.survey()
        chosen, kept = retention.choose(), retention.kept_bytes
        if output is Format.table:
            _show(chosen, kept)
        if chosen and not dry_run:
            _ask("Delete them?", yes)
            _free(retention)
        if output is Format.json:
            print_json(_document(chosen, kept, is_deleted=bool(chosen) and not dry_run))
    finally:
        records.close()


def _places(folder: Path | None) -> tuple[str, str]:
    from app.cli.exporting import places
    from app.cli.store import DEFAULT, is_store

    return places(folder or (DEFAULT if is_store(DEFAULT) else None))


def _bytes(budget: str | None) -> int | None:
    """The budget that was given, or that of the settings."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    from app.settings import settings

    if budget is None:
        return settings().checkpoint_budget
    try:
        return TypeAdapter(ByteSize).validate_python(budget)
    except ValidationError:
        fail(f"--budget: must be a size such as 20GiB, got {budget!r}", USAGE)


def _retention(records: Any, root: str, budget: int | None) -> Retention:
    import time

    from app.events.plans import Plans
    from app.object_store import open_store
    from app.workers.scheduler.retention import Retention

    return Retention(records, Plans(records.log), open_store(root), budget, time.time, begin=1.0, until=1.0)


def _show(chosen: Chosen, kept: int) -> None:
    for plan, going in chosen.items():
        print(f"{plan}  {_counted(going)}")
    everything = [each for going in chosen.values() for each in going]
    print(f"{_counted(everything)} may go; all that are kept take {memory(kept)}")


def _counted(going: Sequence[KeptAt]) -> str:
    return f"{plural(len(going), 'checkpoint')}, {memory(sum(each.checkpoint.size for each in going))}"


def _document(chosen: Chosen, kept: int, *, is_deleted: bool) -> dict[str, Any]:
    """kept_bytes: before anything was deleted."""
    going = [each for plan in chosen.values() for each in plan]
    size = sum(each.checkpoint.size for each in going)
    return {"checkpoints": len(going), "bytes": size, "kept_bytes": kept, "deleted": is_deleted}


def _free(retention: Retention) -> None:
    """Until nothing more goes; what cannot be deleted now is said, and tried again the next time."""
    while not retention.look().is_done:
        pass
    if left := sum(map(len, retention.choose().values())):
        fail(f"{left} checkpoints could not be deleted now: the store is away, or they came into use", FAILED)


def _ask(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        fail("nobody is here to be asked: say --yes", USAGE)
    if not typer.confirm(question, err=True):
        fail("nothing was deleted")
