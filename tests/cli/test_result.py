"""The outcome of a study, and of a trial, as they are printed."""

from __future__ import annotations

from typing import Any

import pytest

from app.api.examples import STUDY, TRIAL_DETAIL
from app.cli.events import brief
from app.cli.result import print_check_output, print_failures, print_result
from app.cli.study_files import tie_advice, worsening_advice
from app.cli.trial import print_trial
from app.cli.watch import study_exit_code
from stagetree.text import mark_sentence, mark_word, rank_text

TORCH = "2 stages resumed under another torch (2.13.0 after 2.12.0)"


def test_an_inexact_study_shows_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(STUDY | {"not_exact": [TORCH, "1 stage used put_\x1b[2J"], "notes": []})
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [f"not exact: {TORCH}", "not exact: 1 stage used put_\\x1b[2J"]
    audit = f"stagetree audit {STUDY['study']} compares the rest"
    assert said[-3] == f"exact   {STUDY['exactness']['text']}; {audit}"
    checked = {"verdict": "checked", "text": "checked: all of it", "mark": ""}
    print_result(STUDY | {"exactness": STUDY["exactness"] | checked, "notes": []})
    assert "exact   checked: all of it" in capsys.readouterr().out.splitlines(), "nothing is left to audit"
    print_result(STUDY | {"packing": {"width": 2, "at_once": 2, "devices": []}, "notes": []})
    lines = capsys.readouterr().out.splitlines()
    assert f"exact   {STUDY['exactness']['text']}" in lines, "packs are not audited"


def test_a_mark_is_in_the_table_and_beside_the_winner(capsys: pytest.CaptureFixture[str]) -> None:
    mark = "unchecked: it resumed from the state of step 20, which was not compared"
    trials = [trial | {"exactness": mark} for trial in STUDY["trials"]]
    print_result(STUDY | {"trials": trials, "notes": []})
    assert "  mark  " in (said := capsys.readouterr().out) and "  unchecked  " in said
    print_result(STUDY | {"notes": []})
    assert "  mark  " not in capsys.readouterr().out, "no trial has one"


@pytest.mark.parametrize(
    ("mark", "word", "sentence"),
    [
        ("", "", ""),
        ("unchecked: it resumed", "unchecked", "Its value is unchecked: it resumed"),
        ("may be wrong: x differs", "may be wrong", "Its value may be wrong: x differs"),
        ("inexact, and shared results may be wrong: x", "may be wrong", ""),
        ("1 stage used put_", "may differ", "Its value may differ: 1 stage used put_"),
    ],
)
def test_a_mark_in_a_word_and_as_a_sentence(mark: str, word: str, sentence: str) -> None:
    assert mark_word(mark) == word
    assert not sentence or mark_sentence("Its value", mark) == sentence


def test_the_outcome_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(STUDY)
    assert capsys.readouterr().out.startswith(STUDY["story"]["lines"][0] + "\n\ntrial")


@pytest.mark.parametrize("extras", [0, 3, 20])
def test_a_summary_has_at_most_twelve_lines(capsys: pytest.CaptureFixture[str], extras: int) -> None:
    """It had twenty, and more with notes, packs and failures."""
    trials = [STUDY["trials"][0] | {"trial": number, "value": 0.5} for number in range(9)]
    notes = [{"trial": None, "text": f"note {number}"} for number in range(extras)]
    failures = [{"trials": [number], "text": f"1 trial: Error{number}"} for number in range(min(extras, 5))]
    print_result(STUDY | {"trials": trials, "notes": notes, "failures": failures})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 12 and any(line.startswith("exact ") for line in lines)
    assert extras < 20 or lines[-1].endswith(f"more lines: stagetree watch {STUDY['study']} -o json")


def test_the_outcome_of_a_trial_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_trial("digits", TRIAL_DETAIL | {"not_exact": [TORCH], "exactness": TORCH})
    assert f"exact     {TORCH}" in capsys.readouterr().out.splitlines()


def test_a_trial_shows_why_it_was_promoted_or_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    print_trial("digits", TRIAL_DETAIL | {"decisions": ["asked for step 9: rank 1 of 3", "pruned after step 9"]})
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("why")] == [
        "why       asked for step 9: rank 1 of 3",
        "why       pruned after step 9",
    ]


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ({"by": "tuner", "rung": 0}, "by the tuner, to train to rung 0"),
        ({"by": "tuner", "rung": 0, "bracket": 1, "sample": [0.1]}, "by the tuner, to train to rung 0, in bracket 1"),
        ({"by": "user", "branch_of": 3, "at": 20}, "by a user, branched off trial 3 at step 20"),
        ({"by": "tuner", "cooldown_of": 3, "at": 90}, "by the tuner, as a cooldown of trial 3 at step 90"),
        ({"by": "tuner", "suggestion": 2, "suggested_by": "ann"}, "by the tuner, from suggestion 2 by ann"),
        (
            {"by": "user", "average_of": [{"trial": 1, "step": 9}, {"trial": 4}]},
            "by a user, from the mean of trial 1 at step 9, trial 4",
        ),
        ({"by": "tuner", "hunch": 0.123456}, "by the tuner, hunch 0.1235"),
    ],
)
def test_a_trial_shows_why_it_was_started(
    capsys: pytest.CaptureFixture[str], reason: dict[str, Any], said: str
) -> None:
    """It was the record as it is: by tuner  rung 0."""
    print_trial("digits", TRIAL_DETAIL | {"reason": reason})
    assert f"started   {said}" in capsys.readouterr().out.splitlines()


def test_an_exact_study_has_no_line_about_exactness(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(STUDY | {"not_exact": []})
    print_trial("digits", TRIAL_DETAIL)
    assert "not exact" not in capsys.readouterr().out


def test_notes_are_printed_with_their_trial(capsys: pytest.CaptureFixture[str]) -> None:
    note = {"event": 9, "time": 0.0, "trial": None, "text": "two\nlines"}
    print_result(STUDY | {"notes": [note, note | {"trial": 3, "text": "diverges"}], "not_exact": []})
    assert "note    two lines\nnote    trial 3: diverges\n" in capsys.readouterr().out
    print_trial("digits", TRIAL_DETAIL | {"notes": [note | {"trial": 3}]})
    assert "note      two lines\n" in capsys.readouterr().out


@pytest.mark.parametrize(("steps", "says"), [(1, ""), (40, ", about 0:27 of slot time")])
def test_slot_time_below_a_second_is_not_printed(capsys: pytest.CaptureFixture[str], steps: int, says: str) -> None:
    cost = STUDY["cost"] | {"alone": 2 * steps, "run": steps, "shared": steps, "spared": steps, "taken": 2 * steps}
    cost |= {"saved_by_sharing": 0.5}
    story = STUDY["story"] | {"seconds_by_sharing": 2 / 3 * steps}
    print_result(STUDY | {"cost": cost, "story": story, "notes": []})
    said = f"saved   50% by sharing: {steps} of the {2 * steps} steps that the trials took{says}\n"
    assert said in capsys.readouterr().out


def test_sharing_and_early_stopping_are_never_one_number(capsys: pytest.CaptureFixture[str]) -> None:
    """12 trials of ASHA, none of which went past step 9 of 100: `99% saved`."""
    cost = {"alone": 1200, "stopped_early": 1172, "unfinished": 0, "shared": 15, "known": 0}
    cost |= {"repeated": 0, "retried": 0, "lost": 0, "run": 13, "taken": 28, "spared": 15}
    print_result(STUDY | {"cost": cost | {"saved_by_sharing": 15 / 28, "saved_by_stopping": 1172 / 1200}, "notes": []})
    said = capsys.readouterr().out
    assert "saved   54% by sharing: 15 of the 28 steps that the trials took" in said
    assert "; 98% by early stopping: 1172 of 1200 steps to every trial's end\n" in said
    assert "99%" not in said


def test_an_untrained_study_shows_only_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    """It was the last of ten lines of zeros, below an empty place for the best trials."""
    cost = STUDY["cost"] | {"run": 0, "known": 0}
    failed = {"state": "failed", "best": None, "error": "there is no val_ac", "cost": cost, "trials": [], "notes": []}
    print_result(STUDY | failed | {"story": STUDY["story"] | {"lines": ["No trial has a result."]}})
    assert capsys.readouterr().out == "error   there is no val_ac\n"
    story = STUDY["story"] | {"lines": ["No trial.", "Nothing was saved."]}
    print_result(STUDY | failed | {"cost": STUDY["cost"], "story": story})
    assert capsys.readouterr().out.startswith("error   there is no val_ac\n\nNo trial.\n\nsteps "), "the error first"


def test_the_output_of_a_failed_check_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    study = STUDY | {"failed_check": 3}
    print_check_output(study, "--- check at node 1, steps 0 to 2\nlr is missing\n", " --dir there")
    [head, line] = capsys.readouterr().out.strip().splitlines()
    assert (
        head == f"printed in the check: stagetree logs {STUDY['study']} 3 --dir there"
        and line == f"{'':8}lr is missing"
    )
    print_check_output(study, "\n".join(map(str, range(20))), "")
    assert capsys.readouterr().out.splitlines()[2:] == [f"{'':8}{number}" for number in range(10, 20)]
    print_check_output(study, "--- check at node 1, steps 0 to 2\n", "")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("cut", "words"), [(1, "the best one is promoted"), (3, "the best 3 are promoted"), (None, "")]
)
def test_the_number_of_promotions_is_in_correct_english(cut: int | None, words: str) -> None:
    reason = {"rank": 1, "of": 3} | ({} if cut is None else {"cut": cut})
    assert rank_text(reason) == ", ".join(filter(None, ["rank 1 of 3", words]))


def test_verification_steps_are_not_counted_as_run(capsys: pytest.CaptureFixture[str]) -> None:
    """They were in the slot time, and nowhere else."""
    said = f" = {STUDY['cost']['run']} run, and 7 verification steps\n"
    print_result(STUDY)
    assert said in capsys.readouterr().out
    print_result(STUDY | {"exactness": STUDY["exactness"] | {"proof_steps": 0}})
    assert "verification steps" not in capsys.readouterr().out


def test_repeated_steps_have_their_reason(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(STUDY | {"cost": STUDY["cost"] | {"repeated": 3, "retried": 45, "lost": 7}, "notes": []})
    said = capsys.readouterr().out
    assert " + 45 retried after errors " in said and " + 7 lost with a worker " in said
    assert " + 3 repeated, since no state was kept " in said
    alone = STUDY["exactness"] | {"isolated": True}
    print_result(STUDY | {"cost": STUDY["cost"] | {"repeated": 3}, "notes": [], "exactness": alone})
    assert " + 3 repeated, since the trainer is not exact " in capsys.readouterr().out


FAILED: dict[str, Any] = {"kind": "exception", "step": 3, "tries": 3, "place": "ValueError in train, trainer.py:3"}
FAILED["error"] = "Traceback\n  in train\nValueError: \x1b[2J"


def test_the_traceback_of_a_failed_trial_is_under_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    print_trial("digits", TRIAL_DETAIL | {"standing": "ValueError, after step 3", "trained": 3, "failure": FAILED})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "trial     3 of digits: ValueError, after step 3"
    assert lines[2:6] == ["exception after step 3, tried 3 times:", "Traceback", "  in train", "ValueError: \\x1b[2J"]
    assert lines[7] == "steps     3 trained of 40 that the trial takes"


def test_equal_failures_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    group = {"trials": list(range(11)), "text": "11 trials: ValueError, after step 3, all with lr >= 0.85"}
    study = STUDY | {"counts": STUDY["counts"] | {"failed": 11}, "failures": [group]}
    print_failures(study, {"trial": 0, "failure": FAILED}, "")
    assert f"{group['text']} (trials 0, 1, 2, 3, 4, 5, 6, 7 and 3 more)\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("state", "has_best", "failed", "is_strict", "code"),
    [
        ("completed", True, 0, True, 0),
        ("completed", True, 2, False, 0),
        ("completed", True, 2, True, 5),
        ("completed", False, 2, True, 1),
        ("failed", True, 2, True, 1),
        ("cancelled", True, 0, False, 1),
    ],
)
def test_scripts_can_request_failed_trials(state: str, has_best: bool, failed: int, is_strict: bool, code: int) -> None:
    study = {"state": state, "best": {} if not has_best else {"trial": 0}, "counts": {"failed": failed}}
    assert study_exit_code(study, is_strict=is_strict) == code


def test_an_event_in_a_line_names_the_first_trial_and_the_first_stage() -> None:
    assert brief({"study": "s", "trial": 0, "steps": 40, "reason": {}}) == "trial=0  steps=40"
    assert brief({"chain": "3f9c1a77d0", "index": 0, "seconds": 1.5}) == "chain=3f9c1a77  index=0  seconds=1.5"
    assert brief({"trial": None, "text": "diverges", "steps": 0}) == "text=diverges"


def test_hyper_parameters_are_separated_by_two_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    print_trial("digits", TRIAL_DETAIL | {"hp": {"lr": {"family": "warmup", "steps": 5, "then": 0.1}, "note": "a\n b"}})
    assert "values    lr=warmup(steps=5, then=0.1)  note=a b\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "best_of_longest", "says"), [("last", 2, True), ("best", 2, False), ("last", 54, False)]
)
def test_worsening_of_the_longest_trials_is_reported(value: str, best_of_longest: int, says: bool) -> None:
    last, best = {"step": 54, "value": 47.0}, {"step": best_of_longest, "value": 41.0}
    trials = [{"trial": 8, "trained": 54, "last": last, "best": best}, {"trial": 1, "trained": 6, "last": None}]
    study = {"value": value, "metric": "mae", "best": {"steps": 6}, "trials": trials}
    sentence = "training longer made it worse: trial 8 had its best mae at step 2 of 54; "
    assert [each.startswith(sentence) for each in worsening_advice(study, 54)] == [True] * says


@pytest.mark.parametrize(
    ("tied", "ties", "advice"),
    [
        (0, "seed", []),
        (20, "seed", []),
        (31, "seed", ["31 of 40 results at step 4 are equal, so promotions among them are by chance: "]),
        (31, "number", ["31 of 40 results at step 4 are equal, so promotions among them are by number: "]),
        (31, None, ["31 of 40 results at step 4 are equal, so promotions among them are by number: "]),
    ],
)
def test_mostly_equal_results_are_reported(tied: int, ties: str | None, advice: list[str]) -> None:
    """At the first such rung, with what tells trials apart."""
    rungs = [{"steps": 2, "arrived": 80, "tied": 9}, {"steps": 4, "arrived": 40, "tied": tied}]
    study = {
        "progress": {"rungs": [*rungs, {"steps": 8, "arrived": 9, "tied": tied}][: 3 if tied > 20 else 2]},
        "spec": {"tuner": {"ties": ties} if ties else {}},
    }
    cure = "a finer metric, such as the loss, or a first rung after that step tells them apart"
    assert [*tie_advice(study)] == [each + cure for each in advice]
