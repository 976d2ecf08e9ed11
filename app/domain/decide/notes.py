"""What people write down about a study."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide.finding import trial_of
from app.domain.errors import Refused
from app.domain.search_plan import Study

MOST_CHARACTERS = 2_000
"""Of a note: a paragraph or two, so that a study can be answered with all of its notes."""

MOST_NOTES = 500
"""Of a study."""


def add(study: Study, command: c.AddNote) -> Iterator[e.Event]:
    """Also of a study that is over: that is when most is known of it. Raises `Unknown` for a trial that it has not."""
    text = command.text.strip()
    if not text:
        raise Refused("text: must say something, got an empty note")
    if len(command.text) > MOST_CHARACTERS:
        raise Refused(f"text: must be at most {MOST_CHARACTERS:,} characters, got {len(command.text):,}")
    if len(study.notes) >= MOST_NOTES:
        raise Refused(f"a study may have {MOST_NOTES:,} notes, and {study.id} has them")
    if command.trial is not None:
        trial_of(study, command.trial)
    yield e.NoteAdded(study=study.id, trial=command.trial, text=text, at=command.at)
