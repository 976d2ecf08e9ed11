"""The price, the cost and the verification of an answer, in words."""

from __future__ import annotations

from stagetree.models.previews import Preview
from stagetree.models.studies import StudyAnswer
from stagetree.models.trials import Branch, Trial, TrialDetail
from stagetree.text import FINAL, percent, rough_duration, saved_text

FREE = "nothing: no step is trained for it"
"""The cost of a tool that trains nothing."""

NOTHING_TRAINED = "nothing was trained for this answer"
"""The verification of an answer without a result."""


def preview_price(costs: Preview) -> str:
    """The price of a study: new and unique steps, and slot time."""
    new = costs.unique - costs.known
    guess = "a guess as if all results were equal: " if costs.by_results else ""
    trained = f"{costs.known:,} are trained already, " if costs.known else ""
    steps = f"{trained}{new:,} new steps: {costs.unique:,} unique of the {costs.requested:,} that its trials take"
    return f"{guess}{steps}; {_preview_time(costs, new)}"


def _preview_time(costs: Preview, new: int) -> str:
    if costs.time is None or not costs.unique:
        return "slot time unknown: no step of its plan was measured yet"
    whole, makespan = costs.time.slot_seconds * new / costs.unique, costs.time.makespan_seconds
    error = f"an estimate is {percent(min(costs.time.error, 1.0))} off (median)"
    on_slots = "1 slot" if costs.slots == 1 else f"{costs.slots} slots"
    return f"about {rough_duration(whole)} of slot time, at most {rough_duration(makespan)} on {on_slots}; {error}"


def trial_price(price: Branch, pace: float) -> str:
    """The price of a trial. pace: the study's slot seconds per step, 0 if unknown."""
    again = f", and {price.again:,} trained again since no state is kept there" if price.again else ""
    steps = f"{price.new:,} new steps of {price.steps:,}: {price.shared:,} are shared{again}"
    if not pace:
        return f"{steps}; slot time unknown: no step of the study was measured yet"
    return f"{steps}; about {rough_duration(pace * (price.new + price.again))} of slot time"


def pace_of(study: StudyAnswer) -> float:
    """The slot seconds per step of a study; 0 if nothing was trained for it."""
    return study.gpu_seconds / study.steps.executed if study.steps.executed else 0.0


def study_cost(study: StudyAnswer) -> str:
    """The cost of a study until now, and its savings."""
    steps, verified = study.steps, study.exactness.proof_steps
    proofs = f" +{verified:,} verification steps" if verified else ""
    run = f"{steps.executed:,} steps run of {steps.unique:,} unique{proofs}"
    saved = saved_text(study.cost.saved_by_sharing, study.cost.saved_by_stopping)
    return f"{run}, {rough_duration(study.gpu_seconds)} of slot time; saved {saved}"


def trial_cost(trial: TrialDetail) -> str:
    """The steps of a trial that are trained."""
    return f"trial {trial.trial}: {trial.trained:,} of {trial.steps:,} steps trained, shared ones included"


def study_verification(study: StudyAnswer) -> str:
    """How far the numbers of a study are verified."""
    text = study.exactness.text or NOTHING_TRAINED
    return text if study.state in FINAL or text == NOTHING_TRAINED else f"{text} (until now)"


def trial_verification(study: StudyAnswer, trial: Trial) -> str:
    """How far the numbers of a trial are verified: its own mark, or else the verdict on its study."""
    return trial.exactness or study_verification(study)
