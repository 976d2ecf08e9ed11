"""Equal failures are grouped, with the condition that only failed trials fulfil."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.failures import failure_text, group_text, groups
from app.domain.search_plan import StoredSpec, Study, Trial
from app.domain.terms import StudyId, TrialState
from tests.plans import max_examples

Hp = dict[str, Any]
PLACE = "FloatingPointError in train, trainer.py:12"


def study_of(*trials: tuple[Hp, str | None], step: int = 3) -> Study:
    """A study of (hyper-parameters, the error of the trial; None if it completed)."""
    study = Study(StudyId("study"), StoredSpec({}), 0.0)
    for number, (hp, error) in enumerate(trials):
        trial = Trial(study.id, number, hp, {}, state=TrialState.COMPLETED)
        if error is not None:
            trial.state = TrialState.FAILED
            text = f"Traceback\n  line 12\n{error}\n"
            trial.error = {"kind": "exception", "step": step, "error": text, "place": PLACE, "tries": 1}
            study.failed.append(number)
        study.trials.append(trial)
    return study


def group_texts(study: Study, reached: int = 6) -> list[str]:
    ends = {trial.number: 3 if trial.state == TrialState.FAILED else reached for trial in study.trials}
    return [group_text(group) for group in groups(study, ends)]


BAD = "FloatingPointError: loss is nan"


def test_eight_trials_that_failed_alike_are_one_line() -> None:
    trials = [({"lr": 0.05 + 0.1 * n, "bs": [64, 128][n % 2]}, BAD if n >= 8 else None) for n in range(16)]
    assert group_texts(study_of(*trials)) == [f"8 trials: {BAD}, after step 3, all with lr >= 0.85"]


def test_values_that_do_not_separate_failures_are_not_named() -> None:
    trials = [({"lr": 0.05 + 0.1 * n, "bs": [64, 128][n % 2]}, BAD if n >= 8 or n == 2 else None) for n in range(16)]
    assert group_texts(study_of(*trials)) == [f"9 trials: {BAD}, after step 3"]


def test_a_trial_that_ended_earlier_proves_nothing() -> None:
    trials: list[tuple[Hp, str | None]] = [({"lr": 0.1 * n}, BAD if n >= 4 else None) for n in range(8)]
    assert group_texts(study_of(*trials), reached=3) == [f"4 trials: {BAD}, after step 3"]


def test_no_condition_is_named_for_one_failure() -> None:
    trials: list[tuple[Hp, str | None]] = [({"lr": 0.1 * n}, BAD if n == 5 else None) for n in range(6)]
    assert group_texts(study_of(*trials)) == [f"1 trial: {BAD}, after step 3"]


def test_conditions_name_words_and_fields_of_schedules() -> None:
    def hp(optimizer: str, init: float) -> Hp:
        return {"optimizer": {"family": "constant", "value": optimizer}, "lr": {"family": "linear", "init": init}}

    trials = [(hp("sgd", 0.1), BAD)] * 4 + [(hp("adam", 0.1), None)] * 4
    assert group_texts(study_of(*trials)) == [f"4 trials: {BAD}, after step 3, all with optimizer = sgd"]
    trials = [(hp("sgd", 0.9), BAD)] * 4 + [(hp("sgd", 0.1), None)] * 4
    assert group_texts(study_of(*trials)) == [f"4 trials: {BAD}, after step 3, all with lr.init >= 0.9"]


def test_messages_that_hold_numbers_are_of_one_error() -> None:
    trials: list[tuple[Hp, str | None]] = [({"lr": 1}, f"FloatingPointError: loss is {n}") for n in range(3)]
    assert group_texts(study_of(*trials)) == ['3 trials: FloatingPointError, such as "loss is 0", after step 3']


def test_other_errors_are_other_groups_the_most_frequent_first() -> None:
    study = study_of(({"lr": 1}, "ValueError: a"), ({"lr": 2}, BAD), ({"lr": 3}, BAD))
    (study.trials[0].error or {})["place"] = "ValueError in train, trainer.py:4"
    assert [line.partition(",")[0] for line in group_texts(study)] == [f"2 trials: {BAD}", "1 trial: ValueError: a"]


def test_failures_without_an_exception_are_grouped_by_kind() -> None:
    study = study_of(({"lr": 1}, BAD), ({"lr": 2}, BAD))
    for trial, step in zip(study.trials, (3, 6), strict=True):
        trial.error = {"kind": "nan", "step": step, "error": f"loss is not a finite number after step {step}"}
    found = groups(study, {0: 3, 1: 6})
    assert [(group.trials, group.steps) for group in found] == [((0, 1), (3, 6))]
    assert failure_text(study.trials[0]) == "loss is not a finite number, after step 3"


@pytest.mark.parametrize("error", ["", "\n", None])
def test_an_error_without_a_message_is_shown_by_its_type(error: str | None) -> None:
    study = study_of(({"lr": 1}, BAD))
    study.trials[0].error = {"kind": "crash", "step": 0, "error": error or ""}
    assert failure_text(study.trials[0]) == "crash, after step 0"
    assert group_texts(study) == ["1 trial: crash, after step 0"]


values = st.one_of(st.integers(-3, 3), st.sampled_from(["a", "b"]), st.booleans(), st.none())


@max_examples(200)
@given(st.lists(st.tuples(st.dictionaries(st.sampled_from("xyz"), values, max_size=3), st.booleans()), max_size=12))
def test_a_condition_holds_for_all_failed_trials_and_for_no_other(trials: list[tuple[Hp, bool]]) -> None:
    study = study_of(*((hp, BAD if failed else None) for hp, failed in trials))
    for group in groups(study, {trial.number: 6 for trial in study.trials}):
        for condition in filter(None, group.where.split(" and ")):
            name, sign, given_value = condition.split(" ", 2)

            def holds(hp: Hp, name: str = name, sign: str = sign, given_value: str = given_value) -> bool:
                value = hp.get(name)
                if sign == "=":
                    return str(value) == given_value
                return value >= float(given_value) if sign == ">=" else value <= float(given_value)

            assert [holds(hp) for hp, _ in trials] == [failed for _, failed in trials]
