"""When p is proven: claims of earlier judgements, against what came of them."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.tuners.promising import ENOUGH_ENDED, ENOUGH_NEXT, FORETOLD, ForecastProof
from tests.plans import max_examples

MARK, END = 0.5, 10


def result(trial: int, step: int, value: float) -> TrialEvent:
    return TrialEvent(TrialEventKind.RESULT, trial, step, metrics={"accuracy": value})


def forecast_event(trial: int, step: int, p: float, **others: Any) -> TrialEvent:
    claim = {"mark": MARK, "next": step + 5, "p_next": p, "p_end": p} | others
    return TrialEvent(TrialEventKind.PRIORITIZE, trial, step, reason={"class": "opportunistic", FORETOLD: claim})


def proof(trials: int, p_if: tuple[float, float], rate: float = 0.5) -> ForecastProof:
    """Trials below the mark are judged at step 5; some reach it by step 10, their end.

    p_if: the prediction for trials that fail to reach it, and for the others.
    """
    found, rng = ForecastProof("accuracy", -1.0, END), Random(3)
    for trial in range(trials):
        rises = rng.random() < rate
        found.observe(result(trial, 5, 0.4))
        found.observe(forecast_event(trial, 5, p_if[rises]))
        found.observe(result(trial, END, 0.6 if rises else 0.4))
    return found


def test_a_discriminating_forecast_is_proven() -> None:
    assert proof(40, (0.1, 0.9)).is_given


def test_an_overconfident_forecast_is_not_proven() -> None:
    """Mean p 0.27, and 4 of 100 come true: as it was on recorded studies, and shown to users."""
    found = proof(100, (0.27, 0.27), rate=0.04)
    assert found.next.number >= ENOUGH_NEXT and found.ended >= ENOUGH_ENDED and not found.is_given


def test_a_constant_forecast_is_no_better_than_the_base_rate() -> None:
    assert not proof(100, (0.5, 0.45)).is_given


def test_a_few_claims_prove_nothing() -> None:
    assert not proof(ENOUGH_NEXT - 1, (0.0, 1.0)).is_given
    found = ForecastProof("accuracy", -1.0, END)
    for trial in range(60):
        found.observe(result(trial, 5, 0.4))
        found.observe(forecast_event(trial, 5, 0.1 if trial % 2 else 0.9, next=7))
        found.observe(result(trial, 7, 0.4 if trial % 2 else 0.6))
    assert found.next.is_no_worse and found.next.number == 60 and not found.is_given, "no trial reached the end"


def comes_to_a_stop(p: float) -> ForecastProof:
    """Of 40 trials every second one reaches the mark, as predicted; then none of 20 does, for which p was predicted."""
    found = ForecastProof("accuracy", -1.0, END)
    for trial in range(60):
        rises = trial < 40 and bool(trial % 2)
        found.observe(result(trial, 5, 0.4))
        found.observe(forecast_event(trial, 5, p if trial >= 40 else 0.9 if rises else 0.1))
        found.observe(result(trial, END, 0.6 if rises else 0.4))
    return found


def test_what_was_right_about_the_first_marks_proves_nothing_of_those_of_now() -> None:
    """The best value of the time rises: by and by no trial reaches it any more, and p must have seen that."""
    assert not comes_to_a_stop(0.1).is_given
    assert comes_to_a_stop(0.01).is_given, "no trial is as good as the verdict"


def test_the_last_value_s_own_verdict_is_to_be_beaten() -> None:
    """Trials at the mark stay there, others never reach it: then a p that is less sure than that is worth nothing."""
    found = ForecastProof("accuracy", -1.0, END)
    for trial in range(40):
        value = 0.6 if trial % 2 else 0.4
        found.observe(result(trial, 5, value))
        found.observe(forecast_event(trial, 5, 0.9 if trial % 2 else 0.1))
        found.observe(result(trial, END, value))
    assert found.next.verdicts_score == 0 and not found.is_given


def test_ended_trials_and_judgements_without_a_claim_settle_nothing() -> None:
    found = ForecastProof("accuracy", -1.0, END)
    found.observe(TrialEvent(TrialEventKind.PRIORITIZE, 0, 5, reason={"class": "opportunistic", "p": 0.3}))
    found.observe(result(1, 5, 0.4))
    found.observe(forecast_event(1, 5, 0.3))
    found.observe(TrialEvent(TrialEventKind.STOP, 1, 5))
    found.observe(result(1, END, 0.6))
    assert (found.next.number, found.at_end.number, found.ended) == (0, 0, 0)


@max_examples(60)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_scores_are_those_of_brier(claims: list[tuple[float, bool, bool]]) -> None:
    found = ForecastProof("accuracy", -1.0, END)
    for p, is_there, came in claims:
        found.next.add(p, is_there, came)
    number = len(claims)
    assert abs(found.next.claims_score - sum((p - came) ** 2 for p, _, came in claims) / number) < 1e-9
    assert found.next.verdicts_score == sum(is_there != came for _, is_there, came in claims) / number
    rate = sum(came for *_, came in claims) / number
    assert abs(found.next.base_rate_score - sum((rate - came) ** 2 for *_, came in claims) / number) < 1e-9
