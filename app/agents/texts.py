"""Answers in words: prices, costs and verification, and trials and events on one line each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from stagetree.models.previews import Preview
from stagetree.models.studies import StudyAnswer
from stagetree.models.trials import Branch, Outcome, Trial, TrialDetail
from stagetree.text import FINAL, decision_text, percent, rank_text, rough_duration, saved_text, short_hp, value_text

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


MOST_CHARACTERS = 160
"""The longest text about hyper-parameters, an error or a note within an answer. Longer ones are cut."""


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """The text on one line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def hp_text(hp: Mapping[str, Any]) -> str:
    """Hyper-parameters on one line, constants as values: lr=0.1 bs=64."""
    return cut(short_hp(hp))


def outcome_of(trial: Trial) -> Outcome | None:
    """The outcome that is the trial's value."""
    return next((each for each in (trial.last, trial.best) if each is not None and each.value == trial.value), None)


def trial_text(trial: Trial) -> str:
    """A trial with its result and spread, its standing and its hyper-parameters."""
    result = outcome_of(trial)
    value = "no result yet" if result is None else f"{value_text(result.to_json())} at step {result.step}"
    return f"trial {trial.trial}: {value}; {cut(trial.standing)}; {hp_text(trial.hp)}"


def decided_text(kind: str, trial: int | None, steps: int | None, reason: Mapping[str, Any]) -> str:
    """A decision with its reason: trial 3 is pruned: rank 5 of 9, the best 3 are promoted."""
    if trial is None:
        return f"study: {kind}{_reason_text(reason)}"
    if kind in ("promote", "stop"):
        return f"{decision_text(kind, trial, steps or 0)}{_reason_text(reason)}"
    return f"trial {trial}: {kind}{'' if steps is None else f' for {steps} steps'}"


def _reason_text(reason: Mapping[str, Any]) -> str:
    if not reason:
        return ""
    return f": {rank_text(reason) or cut(json.dumps(reason, ensure_ascii=False))}"


def numbers_text(numbers: Iterable[int], count: int) -> str:
    """Some of `count` trials by number: trials 3, 5 and 7 more."""
    if not count:
        return "steps that no trial of it waits for"
    named = list(numbers)[:3]
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return f"trial{'' if count == 1 else 's'} {', '.join(map(str, named))}{more}"


def elapsed_text(at: float, now: float) -> str:
    """A moment and how long ago it was: since 12:03:10 UTC (5 min)."""
    return f"since {time.strftime('%H:%M:%S', time.gmtime(at))} UTC ({rough_duration(max(0.0, now - at))})"
