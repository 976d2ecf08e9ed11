"""`stagetree archive`: compress the events of plans that are over, and restore them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.errors import USAGE, fail
from app.cli.options import Output, Store, folder_or_default, open_records
from app.cli.output import Format, memory, plural, print_answer
from app.cli.service import open_study

if TYPE_CHECKING:
    from app.events.sql_log import SqlRecords

DAY = 86_400.0

Of = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="A study, named as for `trials`. All studies on its plan are archived with it."),
]
Days = Annotated[
    float | None,
    typer.Option("--older-than", metavar="DAYS", min=0, help="Archive all plans that have had no event for this long."),
]
Back = Annotated[bool, typer.Option("--back", help="Bring the study's plan back instead.")]


@dataclass(slots=True)
class _Moved:
    """The archived plans. waiting: plans with garbage to collect first. kept_bytes: of the checkpoints that stay."""

    plans: int = 0
    events: int = 0
    bytes: int = 0
    kept_bytes: int = 0
    waiting: int = 0


def archive(
    id: Of = None, older_than: Days = None, back: Back = False, dir: Store = None, output: Output = Format.table
) -> None:
    """Archive plans that are over: their events are compressed, and starts, ticks and clean-ups skip them.

    Their studies are still listed, and can be read as before. They cannot be changed, and no study can be submitted to
    their plans, until they are brought back. Needs no server, and may run while one is up.

    \b
    Example:  stagetree archive --older-than 90
    """
    if (id is None) == (older_than is None) or (back and id is None):
        fail("name a study or give --older-than DAYS, not both; --back needs a study", USAGE)
    from app.events import archive as archives

    stream = None if id is None else _plan_of(id, dir)
    with open_records(folder_or_default(dir)) as records:
        if back:
            assert stream is not None
            packed = archives.bring_back(records.database, stream)
            print("its plan is not archived" if packed is None else f"{plural(packed.events, 'event')} are back")
            return
        oldest = time.time() - (older_than or 0.0) * DAY
        moved = _archive(records, [stream] if stream else archives.old(records.database, oldest))
    lines = [f"{plural(moved.plans, 'plan')} archived: {plural(moved.events, 'event')} in {memory(moved.bytes)}"]
    if moved.kept_bytes:
        kept = memory(moved.kept_bytes)
        lines.append(f"their checkpoints, {kept}, stay, and count towards no budget until the plans are back")
    if moved.waiting:
        waiting = plural(moved.waiting, "plan")
        lines.append(f"{waiting} not archived: run `stagetree gc` first, which deletes checkpoints there")
    print_answer(asdict(moved), output, *lines)


def _plan_of(id: str, dir: Path | None) -> str:
    with open_study(id, None, dir) as (_, study):
        pass
    with open_records(folder_or_default(dir)) as records, records.read() as rows:
        row = rows.studies.find(study)
    assert row is not None  # it was just found
    return row.stream


def _archive(records: SqlRecords, streams: Sequence[str]) -> _Moved:
    from app.domain.terms import StateConflict
    from app.events import Plans
    from app.events import archive as archives
    from app.workers.scheduler.retention import PlanUse

    moved, plans = _Moved(), Plans(records.log)
    for stream in streams:
        with plans.holding(stream) as plan:
            use = PlanUse.measure(plan)
        if use.has_garbage:
            moved.waiting += 1
            continue
        try:
            packed = archives.archive(records.database, stream, time.time())
        except StateConflict as problem:
            fail(str(problem))
        if packed is not None:
            moved.plans, moved.events = moved.plans + 1, moved.events + packed.events
            moved.bytes, moved.kept_bytes = moved.bytes + packed.bytes, moved.kept_bytes + use.kept_bytes
    return moved
