"""`stagetree delete`, `erase` and `gc`: commands that delete, and ask first."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from app.cli.errors import FAILED, USAGE, fail
from app.cli.options import Output, Server, Store, StudyId, folder_or_default, open_records, open_store
from app.cli.output import Format, memory, plural, print_answer, print_json
from app.cli.service import open_study

if TYPE_CHECKING:
    from app.domain.search_plan import Checkpoint, PlacedCheckpoint
    from app.events import Plans
    from app.events.sql_log import SqlRecords
    from app.storage.object_store import ObjectStore
    from app.storage.owned_store import Orphan
    from app.workers.scheduler.retention import Retention

HOUR = 3600.0
"""Seconds by which clocks of machines and stores may differ."""

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be deleted.")]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="SIZE",
        help="Keep at most this size, such as 20GiB; by default STAGETREE_CHECKPOINT_BUDGET.",
    ),
]

Adopt = Annotated[
    bool, typer.Option("--adopt", help="This database is a copy, and the original is gone: take over its checkpoints.")
]
Separate = Annotated[
    bool,
    typer.Option("--separate", help="This database is a copy, and the original stays in use: write under other keys."),
]


def delete(
    id: StudyId, yes: Yes = False, server: Server = None, dir: Store = None, output: Output = Format.table
) -> None:
    """Delete a study that is over, and its states. Studies that share steps with it lose nothing.

    \b
    Example:  stagetree delete digits-grid-3f9c1a --yes
    """
    with open_study(id, server, dir) as (service, study):
        number = len(service.client.study(study)["trials"])
        _ask(f"Delete study {study} with its {number} trials?", yes)
        service.client.delete(study)
    text = f"{study} is deleted; the next `stagetree gc` deletes its checkpoints, or a stack that is up does"
    print_answer({"study": study, "deleted": True}, output, text)


Person = Annotated[
    str | None, typer.Option("--person", metavar="NAME", help="The name to erase, as a token or a proxy has it.")
]
NotesOf = Annotated[str | None, typer.Option("--notes", metavar="STUDY", help="The study whose notes to erase.")]


def erase(person: Person = None, notes: NotesOf = None, yes: Yes = False, dir: Store = None) -> None:
    """Erase a person's name from the log, where a pseudonym replaces it, or the text of a study's notes.

    Studies and their results stay, and replays give the same decisions. Backups still have the name or the text, and
    running processes show it until they are restarted. Needs no server.

    \b
    Example:  stagetree erase --person alice
    """
    from app.events import housekeeping

    if (person is None) == (notes is None):
        fail("give either --person NAME or --notes STUDY, to say what to erase", USAGE)
    with open_records(folder_or_default(dir)) as records:
        _ask(f"Erase {f'the name {person}' if person else f'the notes of {notes}'} for good?", yes)
        if person is not None:
            pseudonym, count = housekeeping.erase_person(records.database, person)
            print(f"{person} is {pseudonym} now, in {plural(count, 'event')}")
        if notes is not None:
            print(f"{plural(housekeeping.erase_notes(records.database, notes), 'note')} erased")


def gc(
    yes: Yes = False,
    dry_run: DryRun = False,
    budget: Budget = None,
    adopt: Adopt = False,
    separate: Separate = False,
    dir: Store = None,
    output: Output = Format.table,
) -> None:
    """Delete checkpoints that no study can still ask for, others beyond a budget, and files that are on no record.

    Killed workers leave such files.
    Checkpoints that studies under way begin from, and the final states of the best trials, stay. Needs no server.

    \b
    Example:  stagetree gc --budget 20GiB
    """
    folder = folder_or_default(dir)
    with open_records(folder) as records:
        if separate:
            with records.write() as rows:
                rows.name_installation(uuid4().hex[:12])  # which prefixes the keys of later objects
        store = open_store(folder, records)
        if adopt:
            store.adopt()
        retention, garbage = _survey(records, store, _bytes(budget))
        if output is Format.table:
            _show(garbage)
        is_deleted = bool(garbage.checkpoints or garbage.orphans) and not dry_run
        if is_deleted:
            _ask("Delete them?", yes)
            _free(retention, store, garbage.orphans)
        if output is Format.json:
            print_json(_document(garbage, is_deleted=is_deleted))
        elif is_deleted:
            print(f"deleted: {_count_text([*garbage.checkpoints, *garbage.orphans], 'object')}")


@dataclass(frozen=True)
class _Garbage:
    """Deletable objects. chosen: checkpoints by plan. orphans: objects in no event. kept_bytes: all checkpoints now."""

    chosen: Mapping[str, Sequence[PlacedCheckpoint]]
    orphans: Sequence[Orphan]
    kept_bytes: int

    @property
    def checkpoints(self) -> list[Checkpoint]:
        return [each.checkpoint for plan in self.chosen.values() for each in plan]


def _survey(records: SqlRecords, store: ObjectStore, budget: int | None) -> tuple[Retention, _Garbage]:
    import time

    from app.events import Plans
    from app.workers.scheduler.retention import Retention

    plans = Plans(records.log)
    retention = Retention(records, plans, store, budget, time.time, begin=1.0, until=1.0)
    retention.survey()
    return retention, _Garbage(retention.choose(), _orphans(records, plans, store), retention.kept_bytes)


def _orphans(records: SqlRecords, plans: Plans, store: ObjectStore) -> list[Orphan]:
    """The orphans in the store; none, with a warning, if the store cannot be listed."""
    from app.settings import settings
    from app.storage.object_store import StoreUnavailable
    from app.storage.owned_store import find_orphans

    age = HOUR + settings().lease_seconds + settings().stop_seconds
    try:
        return list(find_orphans(records, plans, store, age))
    except StoreUnavailable as problem:
        print(f"stagetree: {problem}: files in it that are on no record stay", file=sys.stderr)
        return []


def _bytes(budget: str | None) -> int | None:
    """The budget of the option, or else of the settings."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    from app.settings import settings

    if budget is None:
        return settings().checkpoint_budget
    try:
        return TypeAdapter(ByteSize).validate_python(budget)
    except ValidationError:
        fail(f"--budget: must be a size such as 20GiB, got {budget!r}", USAGE)


def _show(garbage: _Garbage) -> None:
    for plan, going in garbage.chosen.items():
        print(f"{plan}  {_count_text([each.checkpoint for each in going])}")
    print(
        f"{_count_text(garbage.checkpoints)} can be deleted; all checkpoints together take {memory(garbage.kept_bytes)}"
    )
    if garbage.orphans:
        orphans = _count_text(garbage.orphans, "object")
        print(f"{orphans} can be deleted that killed workers wrote and never recorded")


def _count_text(going: Sequence[Checkpoint | Orphan], noun: str = "checkpoint") -> str:
    return f"{plural(len(going), noun)}, {memory(_size(going))}"


def _size(going: Iterable[Checkpoint | Orphan]) -> int:
    return sum(each.size for each in going)


def _document(garbage: _Garbage, *, is_deleted: bool) -> dict[str, Any]:
    return {
        "checkpoints": len(garbage.checkpoints),
        "bytes": _size(garbage.checkpoints),
        "orphans": len(garbage.orphans),
        "orphan_bytes": _size(garbage.orphans),
        "kept_bytes": garbage.kept_bytes,
        "deleted": is_deleted,
    }


def _free(retention: Retention, store: ObjectStore, orphans: Sequence[Orphan]) -> None:
    """Delete all garbage. Exits with a message if some objects cannot be deleted now."""
    from app.workers.scheduler.retention import delete_object

    while not retention.look().is_done:
        pass
    left = sum(map(len, retention.choose().values())) + sum(not delete_object(store, each.key) for each in orphans)
    if left:
        fail(f"{left} objects could not be deleted now: the store does not answer, or they are in use again", FAILED)


def _ask(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        fail("there is no terminal to ask at: give --yes", USAGE)
    if not typer.confirm(question, err=True):
        fail("nothing was deleted")
