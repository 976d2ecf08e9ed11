"""What studies that predict curves decided is derived again from their logs, as 0.1.0 wrote them."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from app.domain import events as e
from app.events.codec import decode
from app.search.replay import replay
from tests.tuners.worlds import STUDY, numbered_events

GOLDEN = Path(__file__).parent.parent / "golden" / "foretold.jsonl"
"""Whole logs of studies that predict curves, as they were written, a line for each event: which study, type, version,
data. Lines are never changed."""

LOGS: dict[str, list[e.Event]] = defaultdict(list)
for name, *written in map(json.loads, GOLDEN.read_text().splitlines()):
    LOGS[name].append(decode(*written))


@pytest.mark.parametrize("name", LOGS)
def test_decisions_are_derived_again(name: str) -> None:
    found = replay(numbered_events(LOGS[name]), STUDY)
    assert found.identical, found.difference
    assert found.decisions > 50 and found.plan.studies[STUDY].is_final
