"""The tools that look at a study and wait for it: its best trials, its running stages, and the news since a cursor."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

from pydantic import Field

from app.agents.texts import cut, decided_text, elapsed_text, numbers_text, study_cost, study_verification, trial_text
from app.agents.tool import Json, OfStudy, history_of, study_id, token_rest
from stagetree.client import AsyncClient
from stagetree.client.http import path_of
from stagetree.models.pages import History
from stagetree.models.service import Slot
from stagetree.models.studies import StudyAnswer, UnderWay
from stagetree.models.trials import Trial
from stagetree.text import FINAL, rough_duration

MOST_CHARACTERS = 6_000
"""The longest answer of `status`: 1,500 tokens at four characters each."""

WAIT_SECONDS = 45.0
"""How long `wait` waits. Programs that call tools give up after a minute."""

LOOK_SECONDS = 1.0
"""The pause between two looks of `wait`."""

BEST, NEWS, RUNNING, NOTES = 5, 8, 6, 3
"""How many trials, decisions, slots and notes an answer names. Of more, the last ones are named."""

AWAITED = {
    "StageFailed",
    "StudyCancelled",
    "StudyCompleted",
    "StudyFailed",
    "StudyIsolated",
    "StudyPaused",
    "TrialCancelled",
    "TrialExtended",
    "TrialStopped",
}
"""The events at which `wait` returns: decisions, ends and failures."""


class StatusArguments(OfStudy):
    cursor: int = Field(default=0, ge=0, description="the `cursor` of an earlier answer: only later events are news")


async def status(client: AsyncClient, given: StatusArguments) -> Json:
    """Show a study: its best five trials with their spread, the stages that slots train now and since when, the news
    since `cursor`, the rest of its budgets, its cost, and how far its numbers are verified. Trains nothing.
    """
    study = await study_id(client, given.study)
    shown, history, rest = await asyncio.gather(
        client.study(study, trials=False), history_of(client, study), token_rest(client)
    )
    slots = {slot.name: slot for slot in await client.slots()} if shown.progress.running else {}
    left = ", ".join(f"{amount:,.0f} of {name}" for name, amount in shown.budget_left.items())
    answer = {
        **_head(shown),
        "best": [trial_text(each) for each in await _best_trials(client, study)],
        "training": list(_training(shown, slots, time.time())),
        "progress": _progress_text(shown),
        "budget_left": "; ".join(filter(None, (left or "no budget is set", rest))),
        "waits_for": [cut(each, 300) for each in shown.waits_for],
        "failures": [cut(each.text) for each in shown.failures[:NOTES]],
        "notes": [f"event {each.event}: {cut(each.text)}" for each in shown.notes[-NOTES:]],
        "news": list(_news(history, given.cursor)),
        "cursor": history.position,
    }
    return _fit({name: part for name, part in answer.items() if part not in ([], "")})


async def wait(client: AsyncClient, given: StatusArguments) -> Json:
    """Wait for the next decision of a study: a promotion, a pruned or failed trial, or its end. Returns at once if one
    came after `cursor`, else when it comes or after 45 s. Call it again with the answered `cursor` until the state is
    completed, failed or cancelled. Trains nothing itself.
    """
    study = await study_id(client, given.study)
    cursor = given.cursor or (await history_of(client, study)).position
    if (await client.study(study, trials=False)).state not in FINAL:
        await _wait_for_decision(client, study, cursor)
    shown, history = await asyncio.gather(client.study(study, trials=False), history_of(client, study))
    best = [trial_text(each) for each in await _best_trials(client, study, 1)]
    news = list(_news(history, cursor))
    return {
        **_head(shown),
        "best": best[0] if best else "no result yet",
        "progress": _progress_text(shown),
        "news": news or ["no decision yet: call `wait` again"],
        "cursor": history.position,
    }


async def _wait_for_decision(client: AsyncClient, study: str, after: int) -> None:
    """Return after the next decision after an event, or when it is time. Each event is read once."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        async for event in client.events(study, after):
            if event.type in AWAITED:
                return
            after = event.position
        if time.monotonic() >= until:
            return
        await asyncio.sleep(LOOK_SECONDS)


async def _best_trials(client: AsyncClient, study: str, count: int = BEST) -> list[Trial]:
    page = await client.http.get(f"{path_of(study)}/trials", sort="value", limit=count)
    trials = [Trial.from_json(each) for each in page["items"]]
    return [each for each in trials if each.value is not None]


def _head(study: StudyAnswer) -> Json:
    """The state of a study, its cost and its verification."""
    why = study.ending or study.error or ""
    return {
        "study": study.study,
        "state": f"{study.state}: {cut(why, 300)}" if why else study.state,
        "result": [cut(line, 400) for line in study.story.lines],
        "cost": study_cost(study),
        "verification": cut(study_verification(study), 400),
    }


def _training(study: StudyAnswer, slots: dict[str, Slot], now: float) -> Iterator[str]:
    """The stage that each slot trains for the study, and whether its worker still reports."""
    running = study.progress.running
    for stage in running[:RUNNING]:
        yield _stage_text(stage, slots.get(stage.slot), now)
    if len(running) > RUNNING:
        yield f"and {len(running) - RUNNING} more slots"
    if not running and study.state not in FINAL:
        yield "nothing: no slot works for it now"


def _stage_text(stage: UnderWay, slot: Slot | None, now: float) -> str:
    served = numbers_text(stage.trials, stage.trial_count)
    since = f", {elapsed_text(stage.since, now)}" if stage.since else ""
    if slot is not None and slot.state == "lost":
        return f"{stage.slot}: silent, its worker is lost; had {served} at step {stage.step} of {stage.end}{since}"
    if stage.proof is not None:
        return f"{stage.slot}: verifies {served}, step {stage.step} of {stage.end}{since}"
    begun = f"trains {served}, step {stage.step} of {stage.end}" if stage.step > stage.start else f"starts {served}"
    return f"{stage.slot}: {begun}{since}"


def _progress_text(study: StudyAnswer) -> str:
    trials, steps = study.progress.trials, study.progress.steps
    of = "" if trials.expected is None else f" of {trials.expected:,}"
    left = study.progress.seconds_left
    time_left = "" if left is None else f", about {rough_duration(left)} left"
    return f"{trials.done:,}{of} trials have a result or an end, {steps.done:,} of {steps.expected:,} steps{time_left}"


def _news(history: History, cursor: int) -> Iterator[str]:
    """The decisions and better results after an event, the last ones with their event numbers."""
    decisions, news = history.decisions, list[tuple[int, str]]()
    columns = (decisions.position, decisions.kind, decisions.trial, decisions.steps, decisions.reason)
    for position, kind, trial, steps, reason in zip(*columns, strict=True):
        if position > cursor:
            news.append((position, decided_text(kind, trial, steps, reason)))
    for better in history.best:
        if better.position > cursor:
            news.append((better.position, f"trial {better.trial} is the best until then: {better.value:.6g}"))
    news.sort(key=lambda each: each[0])
    if len(news) > NEWS:
        yield f"{len(news) - NEWS} earlier ones are left out"
    yield from (f"event {position}: {text}" for position, text in news[-NEWS:])


def _fit(answer: Json) -> Json:
    """The answer without the last items of its longest lists, until it is short enough."""
    while len(json.dumps(answer, ensure_ascii=False)) > MOST_CHARACTERS:
        lists = [part for part in answer.values() if isinstance(part, list)]
        longest: list[str] = max(lists, key=lambda part: len(str(part)))
        if not longest:
            break
        longest.pop(0 if longest is answer.get("news") else -1)
    return answer
