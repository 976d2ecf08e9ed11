"""The outcome of a study, and of a trial, as they are printed."""

from __future__ import annotations

import pytest

from app.api.schemas.examples import STUDY, TRIAL_DETAIL
from app.cli.history import brief
from app.cli.looking import print_trial
from app.cli.result import print_result

TORCH = "2 stages went on under another torch (2.13.0 after 2.12.0)"


def test_a_study_says_why_it_is_not_exact(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(STUDY | {"not_exact": [TORCH, "1 stage used put_\x1b[2J"], "notes": []})
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [f"not exact: {TORCH}", "not exact: 1 stage used put_\\x1b[2J"]


def test_so_does_a_trial(capsys: pytest.CaptureFixture[str]) -> None:
    print_trial("digits", TRIAL_DETAIL | {"not_exact": [TORCH]})
    assert f"not exact: {TORCH}" in capsys.readouterr().out.splitlines()


def test_of_what_is_exact_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(STUDY | {"not_exact": []})
    print_trial("digits", TRIAL_DETAIL)
    assert "not exact" not in capsys.readouterr().out


def test_notes_are_printed_with_what_they_are_about(capsys: pytest.CaptureFixture[str]) -> None:
    note = {"event": 9, "time": 0.0, "trial": None, "text": "two\nlines"}
    print_result(STUDY | {"notes": [note, note | {"trial": 3, "text": "diverges"}]})
    assert "note    two lines\nnote    trial 3: diverges\n" in capsys.readouterr().out
    print_trial("digits", TRIAL_DETAIL | {"notes": [note | {"trial": 3}]})
    assert "note      two lines\n" in capsys.readouterr().out


@pytest.mark.parametrize(("steps", "says"), [(1, ""), (40, ", about 0:27 of slot time")])
def test_slot_time_of_less_than_a_second_is_not_worth_a_word(
    capsys: pytest.CaptureFixture[str], steps: int, says: str
) -> None:
    cost = STUDY["cost"] | {"alone": 2 * steps, "run": steps, "saved": steps, "saved_share": 0.5}
    print_result(STUDY | {"cost": cost, "gpu_seconds": 2 / 3 * steps, "notes": []})
    assert f"{steps}  run: 50% saved{says}\n" in capsys.readouterr().out


def test_an_event_in_a_line_names_the_first_trial_and_the_first_stage() -> None:
    assert brief({"study": "s", "trial": 0, "steps": 40, "reason": {}}) == "trial=0  steps=40"
    assert brief({"chain": "3f9c1a77d0", "index": 0, "seconds": 1.5}) == "chain=3f9c1a77  index=0  seconds=1.5"
    assert brief({"trial": None, "text": "diverges", "steps": 0}) == "text=diverges"


def test_hyper_parameters_stand_further_apart_than_their_words(capsys: pytest.CaptureFixture[str]) -> None:
    print_trial("digits", TRIAL_DETAIL | {"hp": {"lr": {"family": "warmup", "steps": 5, "then": 0.1}, "note": "a\n b"}})
    assert "values    lr=warmup(steps=5, then=0.1)  note=a b\n" in capsys.readouterr().out
