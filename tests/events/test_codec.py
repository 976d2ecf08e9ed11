"""Each release reads the events of 0.1.0 and later releases."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import get_args

import pytest

from app.domain.events import ChainAssigned, Evaluated, Event, Stage, StudyPaused
from app.events import codec
from app.events.codec import UnknownEvent, decode, encode

GOLDEN = Path(__file__).parent.parent / "golden" / "events.jsonl"
"""One event of each type and version since 0.1.0, as written, and its meaning. Lines are added, never changed."""

LINES = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


def test_stored_events_keep_their_meaning_and_are_encoded_as_before() -> None:
    for line in LINES:
        stored = [line["type"], line["version"], line["data"]]
        event = decode(*stored)
        assert repr(event) == line["event"]
        if line["version"] == codec.VERSIONS[line["type"]]:
            assert json.loads(json.dumps(encode(event), allow_nan=False)) == stored


def test_every_type_and_version_has_a_line() -> None:
    wanted = {(type, version) for type, newest in codec.VERSIONS.items() for version in range(1, newest + 1)}
    assert {(line["type"], line["version"]) for line in LINES} == wanted
    assert {type for type, _ in wanted} == {cls.__name__ for cls in get_args(Event)}


def test_stages_come_back_as_tuples() -> None:
    stages = (Stage(node="n", start=0, end=4, study="s", evaluate=(2, 4)),)
    event = ChainAssigned(chain="c", slot="gpu0", stages=stages, at=1.0)
    assert decode(*json.loads(json.dumps(encode(event)))) == event


def test_a_metric_that_is_no_number_is_none() -> None:
    event = Evaluated(node="n", step=1, metrics={"a": math.nan, "b": -math.inf, "c": 1, "d": None})
    back = decode(*json.loads(json.dumps(encode(event), allow_nan=False)))
    assert back.metrics == {"a": None, "b": None, "c": 1, "d": None}
    assert event.metrics["b"] == -math.inf  # encoding does not change the event


@pytest.mark.parametrize(
    ("type", "version", "data"),
    [
        ("StudyVanished", 1, {}),
        ("StudyPaused", 2, {"study": "s"}),
        ("StudyPaused", 0, {"study": "s"}),
        ("StudyPaused", 1, {}),
        ("StudyPaused", 1, {"study": "s", "more": 1}),
        ("ChainAssigned", 1, {"chain": "c"}),
    ],
)
def test_unknown_events_are_refused(type: str, version: int, data: dict) -> None:
    with pytest.raises(UnknownEvent, match=type):
        decode(type, version, data)


def test_only_events_are_encoded() -> None:
    with pytest.raises(UnknownEvent):
        encode(Stage(node="n", start=0, end=1, study="s"))


def test_upcasters_are_chained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1 called the study `name`, version 2 wrapped it in a list."""
    monkeypatch.setitem(codec.VERSIONS, "StudyPaused", 3)
    monkeypatch.setitem(codec.UPCASTERS, ("StudyPaused", 1), lambda data: {"study": [data["name"]]})
    monkeypatch.setitem(codec.UPCASTERS, ("StudyPaused", 2), lambda data: {"study": data["study"][0]})
    for version, data in ((1, {"name": "s"}), (2, {"study": ["s"]}), (3, {"study": "s"})):
        assert decode("StudyPaused", version, data) == StudyPaused(study="s")
