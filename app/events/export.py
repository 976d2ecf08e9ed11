"""A log as lines of JSON, for a file that can be replayed anywhere: one event a line, in the order of the log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from app.domain.events import Event
from app.events.codec import UnknownEvent, decode, encode
from app.events.log import StoredEvent


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
