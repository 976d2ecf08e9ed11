"""A study under way in a notebook's cell."""

from __future__ import annotations

from typing import Any

import pytest

from app.api import examples
from stagetree.models import StudyAnswer
from stagetree.notebook import live

RUNGS = [{"bracket": 0, "rung": 0, "steps": 2, "entered": 23, "arrived": 21, "failed": 2, "promoted": 7}]
LAST = {"kind": "stop", "trial": 19, "steps": 6, "reason": {"rung": 1, "rank": 5, "of": 9, "cut": 3}}


def cell_html(slots: int = 1, **fields: Any) -> str:
    running = [examples.UNDER_WAY | {"slot": f"cpu{number:02}"} for number in range(slots)]
    progress = examples.PROGRESS | {"running": running, "rungs": RUNGS, "last": LAST}
    counts = examples.STUDY["counts"] | {"failed": 2}
    return live.html(StudyAnswer.from_json(examples.STUDY | {"progress": progress, "counts": counts} | fields))


def test_the_view_has_the_essential_lines() -> None:
    text = cell_html()
    for part in (
        "elapsed, about 0:02 left",
        "2 failed",
        "step 2: 21/23",
        "rank 5 of 9, the best 3 are promoted",
        "cpu00",
    ):
        assert part in text
    trials = {"done": 23, "resting": 9, "expected": 40}
    assert "23/40 <b style='color:red'>2 failed</b> 9 at rungs" in cell_html(
        progress=examples.PROGRESS | {"rungs": RUNGS, "trials": trials}
    )
    assert "about" not in cell_html(
        state="completed", progress=examples.PROGRESS | {"seconds_left": None, "rungs": RUNGS}
    )


def test_a_verification_is_distinguished_from_training() -> None:
    progress = examples.PROGRESS | {"running": [examples.UNDER_WAY | {"proof": "whole"}]}
    assert "verifies 2 trials" in cell_html(progress=progress)


def test_slots_beyond_a_screen_are_counted() -> None:
    assert "cpu15" in cell_html(18) and "cpu16" not in cell_html(18)
    assert "and 2 more slots" in cell_html(18)


def test_text_of_others_is_text() -> None:
    wicked = "<script>alert(1)</script>"
    text = cell_html(study=wicked, metric=wicked, error=wicked, tuner=wicked)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 4


def test_the_time_left_in_a_cell_does_not_flip(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line smoothed it, and a cell showed 1:51, 0:54 and 1:55 in turn."""
    shown: list[StudyAnswer] = []
    monkeypatch.setattr(live.Lines, "show", lambda self, study: shown.append(study))
    monkeypatch.setattr(live.Lines, "close", lambda self: None)
    with live.Showing() as showing:
        for left in (120.0, 60.0, None, 120.0):
            progress = examples.STUDY["progress"] | {"seconds_left": left}
            showing.show(StudyAnswer.from_json(examples.STUDY | {"progress": progress, "state": "running"}))
    assert [each.progress.seconds_left for each in shown] == [pytest.approx(120, abs=1)] * 4
