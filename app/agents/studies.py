"""The tools for whole studies: price and submit them, stop them, note something on them, replay them."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import Field

from app.agents.texts import (
    FREE,
    NOTHING_TRAINED,
    cut,
    preview_price,
    study_cost,
    study_verification,
)
from app.agents.tool import Json, OfStudy, ToolArguments, study_id, token_rest
from stagetree.client import AsyncClient, ProblemError
from stagetree.models.previews import Preview
from stagetree.models.studies import StudyAnswer

MOST_ADVICE = 4
"""How many pieces of advice and other ways to write a study a preview names."""


class PreviewArguments(ToolArguments):
    spec: dict[str, Any] = Field(
        description="the study file as an object: name, trainer, metric, mode, space and tuner at least"
    )
    slots: int = Field(default=1, ge=1, le=10_000, description="the number of slots for the study")


async def preview(client: AsyncClient, given: PreviewArguments) -> Json:
    """Price a study before anything is trained, in new steps and slot time. Answers its trials, its price, and advice
    that would let trials share more. Call it before `submit`.
    """
    costs, rest = await asyncio.gather(_price(client, given.spec, given.slots), token_rest(client))
    answer: Json = {
        "price": preview_price(costs),
        "verification": NOTHING_TRAINED,
        "trials": costs.trials,
        "saved": f"merge rate {costs.merge_rate}: requested / unique steps",
        "critical_path": f"{costs.critical_path_steps:,} steps, on any number of slots",
    }
    advice = [cut(each, 300) for each in costs.advice[:MOST_ADVICE]]
    advice += [f"{each.change}: saves {each.saved:.0%} of the steps" for each in costs.rewrites[:MOST_ADVICE]]
    if costs.budget and costs.budget.get("ends"):
        ends = costs.budget["ends"]
        answer["budget"] = f"{ends['by']} ends it after {ends['steps']:,} steps, with {ends['trials']} complete trials"
    more: Json = {"advice": advice, "token_left": rest.partition(": ")[2]}
    return answer | {name: part for name, part in more.items() if part}


async def _price(client: AsyncClient, spec: Json, slots: int = 1) -> Preview:
    return Preview.from_json(await client.http.post("/studies:preview", spec, slots=slots))


class SubmitArguments(ToolArguments):
    spec: dict[str, Any] = Field(description="the study file as an object, as for `preview`")
    key: str | None = Field(
        default=None,
        pattern=r"^[\x21-\x7e]{1,200}$",
        description="up to 200 visible ASCII characters: calls with one key and one study make one study",
    )


async def submit(client: AsyncClient, given: SubmitArguments) -> Json:
    """Submit a study, which the server trains from then on; your program may end. Answers its id and its price. Repeat
    a call that was lost with the same `key`, and there is one study. Then call `wait`.
    """
    try:
        price = preview_price(await _price(client, given.spec))
    except ProblemError as problem:
        price = f"unknown: {problem}"  # the study is refused below for its mistakes
    study = StudyAnswer.from_json(await client.http.post("/studies", given.spec, given.key))
    return {
        "study": study.study,
        "state": study.state,
        "price": price,
        "verification": NOTHING_TRAINED,
        "cursor": 1,
    }


class StopArguments(OfStudy):
    trial: int | None = Field(default=None, ge=0, description="a trial's number; without one, the whole study is meant")


async def stop(client: AsyncClient, given: StopArguments) -> Json:
    """Cancel a trial, or without `trial` the whole study, for good. Its results stay, and steps that other trials
    share are still trained. Answers its cost.
    """
    study = await study_id(client, given.study)
    if given.trial is None:
        await client.cancel(study)
    else:
        await client.cancel_trial(study, given.trial)
    shown = await client.study(study, trials=False)
    what = study if given.trial is None else f"trial {given.trial} of {study}"
    return {"stopped": what, "state": shown.state, "cost": study_cost(shown), "verification": study_verification(shown)}


class NoteArguments(OfStudy):
    text: str = Field(min_length=1, max_length=2_000, description="what you learned, in at most 2,000 characters")
    trial: int | None = Field(default=None, ge=0, description="the number of the trial that it is about, if one is")


async def note(client: AsyncClient, given: NoteArguments) -> Json:
    """Write a note on a study or a trial into the log: your question, your conclusion, a dead end. The next reader of
    the study, such as you after a restart, gets it from `status`. Trains nothing.
    """
    study = await study_id(client, given.study)
    written = await client.add_note(study, given.text, given.trial)
    shown = await client.study(study, trials=False)
    proof = study_verification(shown)
    return {"study": study, "note": f"event {written.position}", "cost": FREE, "verification": proof}


class ReplayArguments(OfStudy):
    at: int | None = Field(default=None, ge=1, description="an event's number: the decisions up to there")


async def replay(client: AsyncClient, given: ReplayArguments) -> Json:
    """Derive every decision of a study again from its log, and compare with the recorded ones. Trains nothing. Answers
    whether all are identical and, if not, the first event that differs.
    """
    study = await study_id(client, given.study)
    replayed = await client.replay(study, given.at)
    shown = await client.study(study, trials=False)
    answer: Json = {
        "study": study,
        "identical": replayed.identical,
        "decisions": replayed.decisions,
        "events": replayed.events,
        "cost": FREE,
        "verification": f"decisions follow from the log: {replayed.identical}; numbers: {study_verification(shown)}",
    }
    if (best := replayed.best) is not None:
        answer["best"] = f"trial {best.trial}: {best.value:.6g} at step {best.steps}"
    if (wrong := replayed.difference) is not None:
        answer["difference"] = f"event {wrong.event}: {cut(wrong.problem, 300)}"
    return answer
