"""A study whose trials are struck and trained alone, from the client: awaited results come."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.domain import commands as c
from app.domain import events as e
from app.domain.terms import ChainId, ChainOutcome, StudyId, VerificationKind
from stagetree.client.trial_requests import Result
from stagetree.study import AsyncStudy, Study
from tests.api.world import Workers, study_file
from tests.stagetree.test_study import FIELDS, train, trials_of, wait_for_trials, wait_until, working

pytestmark = pytest.mark.anyio
WHY = "1 of 2 leaves differ, the first is x"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def isolate(workers: Workers, study: str) -> None:
    """A hand-over was compared, and differs: what follows from that is decided."""
    node, chain = next(iter(workers.plan(study).nodes)), ChainId("proof")
    stage = e.Stage(node=node, start=0, end=1, study=StudyId(study), evaluate=())
    tested: Any = {"device": "cpu", "begin": 0, "step": 1, "difference": WHY}
    workers.record(
        study,
        e.ChainAssigned(chain=chain, slot="gpu9", stages=(stage,), at=1.0, proof=VerificationKind.HANDOVER),
        e.ExactnessTested(chain=chain, proof=VerificationKind.HANDOVER, node=node, **tested),
        e.ChainEnded(chain=chain, outcome=ChainOutcome.DONE, steps=1, seconds=1.0),
    )
    workers.decide(study, c.IsolateStudy(study=StudyId(study), at=2.0))
    assert workers.plan(study).studies[StudyId(study)].isolated


async def test_awaited_results_come_from_the_isolated_trial(server: str, workers: Workers) -> None:
    async with await AsyncStudy.create(FIELDS, url=server) as study:
        waiting = [asyncio.ensure_future(study.eval({"lr": lr}, 4)) for lr in (0.5, 0.25)]
        await wait_for_trials(study, 2)
        await asyncio.to_thread(isolate, workers, study.id)
        with working(workers, study.id):
            assert [(await each).value for each in waiting] == [2.0, 1.0]
        assert len(await trials_of(study)) == 2, "they are not run a third time"


async def test_numbers_are_those_of_the_new_trials(server: str, workers: Workers) -> None:
    """The study's own tuner had the first ones; what a user asked for comes first after all was struck."""
    async with await AsyncStudy.create(study_file(), url=server) as study:
        await asyncio.to_thread(workers.tune, study.id)
        waiting = asyncio.ensure_future(study.eval({"lr": 0.5, "bs": 8}, 20))
        await wait_for_trials(study, 3)
        await asyncio.to_thread(isolate, workers, study.id)
        await asyncio.to_thread(workers.tune, study.id)
        await train(workers, study, 2, 0.9)
        assert not waiting.done()
        await train(workers, study, 0, 0.3)
        assert await waiting == Result(0, 20, 0.3, {"accuracy": 0.3})


async def test_earlier_results_are_requested_anew(server: str, workers: Workers) -> None:
    async with await AsyncStudy.create(FIELDS, url=server) as study:
        first = asyncio.ensure_future(study.eval({"lr": 0.5}, 4))
        await wait_for_trials(study, 1)
        await train(workers, study, 0, 0.99)
        assert (await first).value == 0.99
        kept = asyncio.ensure_future(study.eval({"lr": 0.25}, 4))  # a client listens
        await wait_for_trials(study, 2)
        await asyncio.to_thread(isolate, workers, study.id)
        await wait_until(lambda: all(trial.value is None for trial in study.trials))
        again = asyncio.ensure_future(study.eval({"lr": 0.5}, 4))
        await train(workers, study, 0, 0.4)
        await train(workers, study, 1, 0.2)
        assert ((await again).value, (await kept).value) == (0.4, 0.2)
        assert len(await trials_of(study)) == 2


async def test_more_steps_extend_the_isolated_trial(server: str, workers: Workers) -> None:
    async with await AsyncStudy.create(FIELDS, url=server) as study:
        waiting = asyncio.ensure_future(study.eval({"lr": 0.5}, 4))
        await wait_for_trials(study, 1)
        await asyncio.to_thread(isolate, workers, study.id)
        with working(workers, study.id):
            assert (await waiting).value == 2.0
        more = asyncio.ensure_future(study.eval({"lr": 0.5}, 8))
        await wait_until(lambda: workers.plan(study.id).studies[StudyId(study.id)].trials[0].steps == 8)
        node = workers.plan(study.id).studies[StudyId(study.id)].trials[0].path[-1]
        await asyncio.to_thread(workers.record, study.id, e.Evaluated(node=node, step=8, metrics={"accuracy": 4.0}))
        assert await more == Result(0, 8, 4.0, {"accuracy": 4.0})
        assert len(await trials_of(study)) == 1


def test_an_isolated_study_is_shown_as_isolated(server: str, workers: Workers) -> None:
    with Study.create(FIELDS, url=server) as study:
        later = study.submit({"lr": 0.5}, 4)
        while not workers.plan(study.id).studies[StudyId(study.id)].trials:
            pass
        first = workers.plan(study.id).version
        isolate(workers, study.id)
        with working(workers, study.id):
            assert later.result().value == 2.0
        study.refresh()
        results = study.results()
        text = f"inexact, so each trial is trained alone: {WHY}"
        assert (results.study.exactness.verdict, results.study.exactness.text) == ("inexact", text)
        assert not any("*" in repr(each) for each in (study, results)), "a trial that was trained alone has no mark"
        assert "exactness" not in results.dataframe()
        added = [event for event in results.events if event.type == "TrialAdded"]
        assert len(added) == 2 and results.history(0).added == added[-1].at and first
