"""`slots`: a column that has nothing to say is left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from commandline import Stagetree
from stacks import Json

from app.cli import slots

SLOT: Json = {"name": "cpu0", "device": "cpu", "host": "here", "state": "busy", "study": "s"}
SLOT |= dict.fromkeys(("stage", "lent_to", "note"))


@pytest.mark.parametrize("note", [None, "reads the input /mnt/data for 12 s"])
def test_a_waiting_slot_shows_its_note(stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch, note: str) -> None:
    """Its note was in the JSON alone."""

    @contextmanager
    def open_service(*_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(client=SimpleNamespace(slots=lambda estimates: [SLOT, {**SLOT, "note": note}]))

    monkeypatch.setattr(slots, "open_service", open_service)
    header, first, second = stagetree("slots").out.splitlines()
    assert header.split()[-1] == ("note" if note else "steps")
    assert second.endswith(note or "-") and first.endswith("-")


def test_a_verification_is_distinguished_from_training() -> None:
    stage = {"node": "n", "start": 0, "end": 8, "step": 3}
    told = [slots.slot_row(SLOT | {"stage": stage | {"proof": proof}})[-1] for proof in (None, "whole")]
    assert told == ["3 of 0 to 8", "3 of 0 to 8, verification"]
