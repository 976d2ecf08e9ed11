"""Decisions on notes, tags and attributes of a study."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from app.domain import commands as c
from app.domain import events as e
from app.domain.search_plan import Study, get_trial
from app.domain.terms import Refused, Unknown

MOST_CHARACTERS = 2_000
"""Limit for a note, and for an attribute's value as JSON. Every response about a study contains them all."""

MOST_NOTES = 500
"""Limit for a study."""

MOST_LABELS = 50
"""Limit for the tags of a study, and for its attributes."""

NAME = re.compile(r"[^\s,=]{1,64}")
"""The name of a tag or an attribute: one word, so that names can be listed and used in filters."""


def add_note(study: Study, command: c.AddNote) -> Iterator[e.Event]:
    """Add a note, also to an ended study. Raises `Unknown` if the study does not have the trial."""
    text = _text(command.text)
    if len(study.notes) >= MOST_NOTES:
        raise Refused(f"study {study.id} has {MOST_NOTES:,} notes, the most that a study may have")
    if command.trial is not None:
        get_trial(study, command.trial)
    yield e.NoteAdded(study=study.id, trial=command.trial, text=text, at=command.at, by=command.by)


def correct_note(study: Study, command: c.CorrectNote) -> Iterator[e.Event]:
    """Replace the text of a note. Raises `Unknown` if the event did not add a note."""
    text = _text(command.text)
    version = command.event + study.submitted_version - 1
    number = next((at for at, note in enumerate(study.notes) if note.version == version), None)
    if number is None:
        raise Unknown(f"event {command.event} of study {study.id} is not a note")
    if study.notes[number].text != text:
        yield e.NoteCorrected(study=study.id, note=number, text=text, at=command.at, by=command.by)


def _text(text: str) -> str:
    if not text.strip():
        raise Refused("text: must say something, got an empty note")
    if len(text) > MOST_CHARACTERS:
        raise Refused(f"text: must be at most {MOST_CHARACTERS:,} characters, got {len(text):,}")
    return text.strip()


def label(study: Study, command: c.LabelStudy) -> Iterator[e.Event]:
    for name in (*command.add, *command.remove, *command.attributes):
        _check_name(name)
    for name, value in command.attributes.items():
        _check_value(name, value)
    remaining = [tag for tag in study.tags if tag not in command.remove]
    tags = list(dict.fromkeys((*remaining, *command.add)))
    changed = {name: value for name, value in command.attributes.items() if study.attributes.get(name) != value}
    _check_count("tags", len(tags))
    _check_count("attributes", len([name for name in (study.attributes | changed) if changed.get(name, 0) is not None]))
    if tags != study.tags or changed:
        yield e.StudyLabelled(study=study.id, tags=tags, attributes=changed, at=command.at, by=command.by)


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise Refused(f"{name!r:.80}: a tag or an attribute's name is a word of at most 64 characters, without , and =")


def _check_value(name: str, value: Any) -> None:
    try:
        size = len(json.dumps(value, allow_nan=False))
    except ValueError:
        raise Refused(f"attributes.{name}: must be JSON, whose numbers are finite, got {value!r:.80}") from None
    if size > MOST_CHARACTERS:
        raise Refused(f"attributes.{name}: must be at most {MOST_CHARACTERS:,} characters of JSON, got {size:,}")


def _check_count(kind: str, count: int) -> None:
    if count > MOST_LABELS:
        raise Refused(f"{kind}: a study may have {MOST_LABELS}, got {count}")
