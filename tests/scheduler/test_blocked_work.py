"""The reason for blocked work is logged once, as long as it holds."""

from __future__ import annotations

import pytest

from app.workers.scheduler.ports import Problems, log_once


def test_a_sentence_is_logged_when_it_is_new_and_is_there_until_it_is_cleared(caplog: pytest.LogCaptureFixture) -> None:
    problems = Problems()
    for sentence in ("no slot", "no slot", "no trainer"):
        problems.report("plan", sentence)
    assert caplog.messages == ["no slot", "no trainer"]
    assert problems.all() == {"plan": "no trainer"}
    problems.clear("plan")
    problems.clear("plan")
    assert problems.all() == {}


def test_what_lasts_is_said_when_it_begins_whatever_its_figures(caplog: pytest.LogCaptureFixture) -> None:
    say = log_once()
    for sentence in ("", "9 of 8 bytes", "10 of 8 bytes", "", "", "9 of 8 bytes"):
        say(sentence)
    assert caplog.messages == ["9 of 8 bytes", "9 of 8 bytes"]
