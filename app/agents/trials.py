"""The tools for trials: look at one, compare two, branch one off, and enqueue one.

A tool that costs steps first answers its price, and acts when called again with the price's token.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from hashlib import sha256
from itertools import takewhile
from typing import Any

from pydantic import Field

from app.agents.texts import (
    cut,
    decided_text,
    hp_text,
    outcome_of,
    pace_of,
    trial_cost,
    trial_price,
    trial_text,
    trial_verification,
)
from app.agents.tool import Json, OfStudy, history_of, study_id
from app.domain.results import STANDARD_ERRORS, standard_error
from stagetree.client import AsyncClient
from stagetree.models.pages import History
from stagetree.models.studies import StudyAnswer
from stagetree.models.trials import Branch, Outcome, TrialDetail
from stagetree.text import value_text

POINTS = 12
"""How many points of a curve an answer has: some of the first ones, and the last."""

Number = Field(ge=0, description="the number of a trial, from 0 on")


class TrialArguments(OfStudy):
    trial: int = Number


async def trial(client: AsyncClient, given: TrialArguments) -> Json:
    """Show a trial: its curve, why the tuner promoted or pruned it with the numbers of the events, how it failed, its
    notes, the steps that it shares, and how far its numbers are verified. Trains nothing.
    """
    study = await study_id(client, given.study)
    of, shown, history = await asyncio.gather(
        client.study(study, trials=False), client.trial(study, given.trial), history_of(client, study)
    )
    answer = {
        "trial": trial_text(shown),
        "cost": trial_cost(shown),
        "verification": trial_verification(of, shown),
        "curve": _curve(of, shown),
        "decisions": _decisions(shown, history),
        "failure": "" if shown.failure is None else cut(shown.failure.error.strip().rpartition("\n")[2], 400),
        "notes": [f"event {each.event}: {cut(each.text)}" for each in shown.notes],
    }
    return {name: part for name, part in answer.items() if part not in ([], "")}


def _curve(study: StudyAnswer, trial: TrialDetail) -> str:
    """The metric over the steps: 10: 0.5, 20: 0.75."""
    points = [(point.step, point.metrics.get(study.metric)) for point in trial.curve]
    every = max(1, -(-len(points) // POINTS))
    chosen = [*points[:-1:every], *points[-1:]]
    return ", ".join(f"{step}: {'not finite' if value is None else f'{value:.6g}'}" for step, value in chosen)


def _decisions(trial: TrialDetail, history: History) -> list[str]:
    """The decisions on a trial, each with its event and, where the log has one, its reason."""
    made = history.decisions
    columns = zip(made.position, made.kind, made.trial, made.steps, made.reason, strict=True)
    return [
        f"event {position}: {_why(trial, kind, steps) or decided_text(kind, number, steps, reason)}"
        for position, kind, number, steps, reason in columns
        if number == trial.trial
    ]


def _why(trial: TrialDetail, kind: str, steps: int | None) -> str:
    """The sentence of the API about a decision; empty if it has none."""
    begins = {"stop": "pruned after step", "promote": f"asked for step {steps}:"}.get(kind)
    return next((each for each in trial.decisions if begins and each.startswith(begins)), "")


class CompareArguments(OfStudy):
    trial: int = Number
    other: int = Field(ge=0, description="the number of the other trial, from 0 on")


async def compare(client: AsyncClient, given: CompareArguments) -> Json:
    """Compare two trials of a study: the step at which they part, the values in which they differ, the difference of
    their results, and whether it is within the noise of their repeats. Trains nothing.
    """
    study = await study_id(client, given.study)
    of, one, other = await asyncio.gather(
        client.study(study, trials=False), client.trial(study, given.trial), client.trial(study, given.other)
    )
    only: dict[int, str] = {}
    for each, beside in ((one, other), (other, one)):
        only[each.trial] = hp_text({name: value for name, value in each.hp.items() if beside.hp.get(name) != value})
    marked = [f"trial {each.trial}: {each.exactness}" for each in (one, other) if each.exactness]
    return {
        "parting": parting_text(one, other),
        "only": only,
        "difference": difference_text(of, one, other),
        "cost": f"{trial_cost(one)} and {trial_cost(other)}",
        "verification": "; ".join(marked) or trial_verification(of, one),
    }


def parting_step(one: TrialDetail, other: TrialDetail) -> int:
    """The last step that two trials share: that of the shorter one if they do not part."""
    pairs = zip(one.path, other.path, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    ends = [*one.starts[common : common + 1], *other.starts[common : common + 1]]
    return min([one.steps, other.steps, *ends]) if common else 0


def parting_text(one: TrialDetail, other: TrialDetail) -> str:
    """Where the paths of two trials through the plan part."""
    if not (step := parting_step(one, other)):
        return "they share no step"
    if step == min(one.steps, other.steps):
        return f"they do not part: all {step:,} steps of the shorter one are one training"
    return f"at step {step:,}: the {step:,} steps until there are one training"


def difference_text(study: StudyAnswer, one: TrialDetail, other: TrialDetail) -> str:
    """The difference of two results, and whether it is within noise."""
    mine, theirs = outcome_of(one), outcome_of(other)
    if mine is None or theirs is None:
        missing = [str(each.trial) for each in (one, other) if each.value is None]
        return f"unknown: trial {' and '.join(missing)} {'has' if len(missing) == 1 else 'have'} no result yet"
    better = one if (mine.value < theirs.value) == (study.mode == "min") else other
    values = " and ".join(f"{value_text(each.to_json())} at step {each.step}" for each in (mine, theirs))
    if mine.value == theirs.value:
        return f"none: both have {study.metric} {values}"
    steps = "" if mine.step == theirs.step else "; they were measured at other steps, so lengths differ, too"
    noise = _noise_text(mine, theirs, parting_step(one, other))
    gap = f"{abs(mine.value - theirs.value):.3g} in {study.metric}"
    return f"trial {better.trial} is better by {gap}: {values}; {noise}{steps}"


def _noise_text(one: Outcome, other: Outcome, shared: int) -> str:
    """Whether the difference is noise. shared: the steps that both trials share."""
    if (error := standard_error(one, other)) is None:
        return "whether that is noise is unknown: `repeats` in the study file would measure it"
    if max(one.repeats_from, other.repeats_from) > shared:
        return (
            "whether that is noise is unknown: their repeats share beginnings that differ, and have no noise of these"
        )
    gap = abs(one.value - other.value)
    is_noise = gap < STANDARD_ERRORS * error
    errors = f"{gap / error:.1f} standard errors of the difference" if error else "repeats that are all equal"
    return f"{'within' if is_noise else 'more than'} noise: {errors}"


CONFIRM = "nothing yet: the token that was answered with the price; with it, the trial is added"
"""The description of the argument, which completes "must be"."""

DIGITS = 12


def token_of(tool: str, study: str, request: Mapping[str, Any], price: Branch) -> str:
    """The token that confirms this request at this price.

    It is a digest of both. So a server that was restarted meanwhile accepts it, and none is valid after the price has
    changed.
    """
    steps = [price.steps, price.shared, price.new, price.again]
    text = json.dumps([tool, study, dict(request), steps], sort_keys=True)
    return sha256(text.encode()).hexdigest()[:DIGITS]


def ask_to_confirm(price: str, token: str, given: str | None, verification: str) -> Json:
    """The answer before anything is added. given: the token of the call, for another price or another request."""
    changed = "" if given is None else "The price or the request has changed since that token: nothing was added. "
    how = f"{changed}Nothing is trained yet: call again with this `confirm` to accept the price."
    return {"price": price, "confirm": token, "next": how, "verification": verification}


class BranchArguments(OfStudy):
    trial: int = Number
    at: int = Field(ge=1, description="the last step that both trials share, at least 1")
    steps: int = Field(ge=1, description="the number of steps of the new trial in all, at least 1")
    hp: dict[str, Any] = Field(
        min_length=1,
        description="an object from hyper-parameter to value from there on; a sequence has its step 0 there",
    )
    confirm: str | None = Field(default=None, max_length=64, description=CONFIRM)


async def branch(client: AsyncClient, given: BranchArguments) -> Json:
    """Branch a new trial off another one with other values from a step on; the steps until then are not trained again.
    Without `confirm` it answers the price and a token. Called again with that token as `confirm`, it adds the trial. A
    study that is over is reopened for it.
    """
    study = await study_id(client, given.study)
    request = {"trial": given.trial, "at": given.at, "steps": given.steps, "hp": given.hp}
    of, price = await asyncio.gather(
        client.study(study, trials=False), client.branch_trial(study, request, preview=True)
    )
    text, token = trial_price(price, pace_of(of)), token_of("branch", study, request, price)
    if given.confirm != token:
        return ask_to_confirm(text, token, given.confirm, _verification_of_shared(of, price))
    added = await client.branch_trial(study, request)
    number = None if added.trial is None else added.trial.trial
    return {"added": f"trial {number} of {study}", "price": text, "verification": _verification_of_shared(of, price)}


class EnqueueArguments(OfStudy):
    hp: dict[str, Any] = Field(
        description="an object from hyper-parameter to value; for the tuner's next trial also some of them, or places "
        "in the space such as lr.init"
    )
    steps: int | None = Field(
        default=None, ge=1, description="the steps of a trial of your own; left out, the tuner tries it next"
    )
    confirm: str | None = Field(default=None, max_length=64, description=CONFIRM)


async def enqueue(client: AsyncClient, given: EnqueueArguments) -> Json:
    """Enqueue a configuration: as the next trial of the study's tuner, or with `steps` as a trial of your own beside
    it. Without `confirm` it answers the price and a token. Called again with that token as `confirm`, it adds
    the trial.
    """
    study = await study_id(client, given.study)
    if given.steps is None:
        asked = client.price_suggestions(study, [given.hp])
    else:
        asked = client.price_trial(study, given.hp, given.steps)
    of, price = await asyncio.gather(client.study(study, trials=False), asked)
    most = "" if given.steps else "at most, as the tuner may end it earlier: "
    text = f"{most}{trial_price(price, pace_of(of))}"
    token = token_of("enqueue", study, {"hp": given.hp, "steps": given.steps}, price)
    proof = _verification_of_shared(of, price)
    if given.confirm != token:
        return ask_to_confirm(text, token, given.confirm, proof)
    return {"added": f"{await _enqueue(client, study, given)} of {study}", "price": text, "verification": proof}


async def _enqueue(client: AsyncClient, study: str, given: EnqueueArguments) -> str:
    """Add the trial; its name."""
    if given.steps is not None:
        return f"trial {(await client.add_trial(study, given.hp, given.steps)).trial}"
    (suggestion,) = await client.suggest(study, [given.hp])
    return f"suggestion {suggestion.suggestion}"


def _verification_of_shared(study: StudyAnswer, price: Branch) -> str:
    """How far the shared beginning of a new trial is verified."""
    if not price.shared:
        return "nothing is shared: the trial would rest on no saved state"
    return f"the trial has no result yet; the steps that it would share: {study.exactness.text or 'not trained yet'}"
