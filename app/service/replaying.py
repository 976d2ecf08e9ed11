"""What is made of a study's whole log: its decisions derived again, other ones imagined, and the log itself.

The command line calls the same functions on a store without a server.

A log as lines of JSON, for a file that can be replayed anywhere: one event a line, in the order of the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from app.domain.events import Event
from app.domain.ids import StudyId
from app.events.codec import UnknownEvent, decode, encode
from app.events.log import StoredEvent
from app.events.rows import StudyRecord
from app.service.services import Services
from app.service.views.writable import writable
from stagetree.models.pages import Imagined
from stagetree.models.service import Replay


class NotALog(ValueError):
    """A line that is not an event of a log; the message says which line and why."""


def lines(recorded: Iterable[StoredEvent]) -> Iterator[str]:
    """Each event on a line, with its end."""
    for each in recorded:
        name, schema, data = encode(each.event)
        place: dict[str, Any] = {"position": each.position, "version": each.version, "at": each.at}
        place |= {"by": each.by} if each.by else {}
        yield json.dumps({**place, "type": name, "schema": schema, "data": data}) + "\n"


def parse(text: Iterable[str]) -> Iterator[tuple[int, Event]]:
    """The position and the event of each line. Raises `NotALog`."""
    for number, line in enumerate(text, 1):
        if line.strip():
            try:
                found = json.loads(line)
                yield found["position"], decode(found["type"], found["schema"], found["data"])
            except (ValueError, KeyError, TypeError, UnknownEvent) as error:
                raise NotALog(f"line {number} is not an event of a log: {error}") from None


Json = dict[str, Any]


def replay(use: Services, row: StudyRecord, at: int | None) -> Replay:
    """Every decision derived again, as far as position `at`. Raises `InvalidField` where there is no such event yet."""
    use.version(row, at)
    with use.open_study(row) as (_, study):
        before = study.submitted_version - 1
    log = [(recorded.version - before, recorded.event) for recorded in use.log.scan(row.stream)]
    return Replay.model_validate(use.compute(_replayed, log, StudyId(row.id), at, use.log.struck(row.stream)))


def imagined(use: Services, row: StudyRecord, changes: Json, at: int | None) -> Imagined:
    """What the study would have been with another study file. Raises `stagetree.spec.SpecError`."""
    with use.open_study(row, at) as (plan, _):
        version = plan.version
    events = [recorded.event for recorded in islice(use.log.scan(row.stream), version)]
    return Imagined.model_validate(use.compute(_imagined, events, StudyId(row.id), changes))


def _replayed(log: Sequence[tuple[int, Event]], study: StudyId, at: int | None, struck: frozenset[StudyId]) -> Any:
    from app.tuning.replay import replay

    return writable(replay(log, study, at=at, struck=struck).to_json())


def _imagined(events: Sequence[Event], study: StudyId, changes: Json) -> Any:
    from app.simulation.what_if import what_if

    return writable(what_if(events, study, changes))


def log(use: Services, row: StudyRecord) -> Iterator[str]:
    """The whole log of the study's plan, one event a line."""
    return lines(use.log.scan(row.stream))
