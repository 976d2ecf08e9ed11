"""What people write about studies: notes, tags and attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stagetree.client.http import Http, path_of
from stagetree.models import Event, Note, StudyAnswer


class TakesRemarks:
    """What a client has for that."""

    http: Http

    async def add_note(self, study: str, text: str, trial: int | None = None) -> Event:
        """Write something down about a study, or about a trial of it."""
        return Event.of(await self.http.post(f"{path_of(study)}/notes", {"text": text, "trial": trial}))

    async def correct_note(self, study: str, event: int, text: str) -> Note:
        """Give the note that was added by `event` another text; the log keeps both."""
        return Note.of(await self.http.post(f"{path_of(study)}/notes/{event}:correct", {"text": text}))

    async def label(
        self,
        study: str,
        add: Iterable[str] = (),
        remove: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
    ) -> StudyAnswer:
        """Add and remove tags of a study, and set attributes; None as a value takes one away."""
        wanted = {"add": list(add), "remove": list(remove), "attributes": dict(attributes or {})}
        return StudyAnswer.of(await self.http.post(f"{path_of(study)}:label", wanted))
