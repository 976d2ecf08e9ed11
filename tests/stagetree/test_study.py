"""Studies tuned from the client, against the real application: the test plays the workers."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
import pytest

from app.domain import commands as c
from app.domain import events as e
from app.domain.terms import StudyId
from stagetree import Constant, FailedStudy, MultiStep
from stagetree.client import AsyncClient, Conflict, Invalid, NotFound, StagetreeError, Unreachable
from stagetree.client.blocking import wait_all, wait_any
from stagetree.client.trial_requests import Result
from stagetree.errors import StudyOver, TrialFailed
from stagetree.models import Trial
from stagetree.study import AsyncStudy, Study
from tests.api.world import Workers, study_file

pytestmark = pytest.mark.anyio
FIELDS: dict[str, Any] = {"name": "mine", "trainer": "digits", "metric": "accuracy", "mode": "max"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def train(workers: Workers, study: AsyncStudy, trial: int, value: float | None) -> None:
    """A slot does what the trial waits for."""
    await asyncio.to_thread(lambda: workers.finish(study.id, workers.assign(study.id, trial), {"accuracy": value}))


@contextlib.contextmanager
def working(workers: Workers, study: str) -> Iterator[None]:
    """A slot that trains every request: accuracy is lr times the steps."""
    stopping = threading.Event()

    def work() -> None:
        while not stopping.wait(0.02):
            for trial in list(workers.plan(study).studies[study].trials):  # type: ignore[index]
                if trial.state == "active":
                    chain, lr = workers.assign(study, trial.number), trial.hp["lr"]["value"]
                    for step in trial.requested_steps[:-1]:
                        metrics = {"accuracy": lr * step}
                        workers.record(study, e.Evaluated(node=trial.path[0], step=step, metrics=metrics))
                    workers.finish(study, chain, {"accuracy": lr * workers.plan(study).chains[chain].stages[-1].end})

    thread = threading.Thread(target=work)
    thread.start()
    yield
    stopping.set()
    thread.join()


async def wait_until(look: Callable[[], bool]) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(look):
            await asyncio.sleep(0.01)


async def wait_for_trials(study: AsyncStudy, trials: int) -> None:
    """Wait until the server has this many trials."""
    async with asyncio.timeout(60):
        while len(await trials_of(study)) < trials:
            await asyncio.sleep(0.01)


async def trials_of(study: AsyncStudy) -> list[Trial]:
    """Its trials as they stand now."""
    await study.refresh()
    return study.trials


class Counting(httpx2.AsyncHTTPTransport):
    """Counts requests to the server, by the ends of paths."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.asked[request.url.path.rsplit("/", 1)[-1]] += 1
        return await super().handle_async_request(request)


async def test_requests_of_one_moment_are_one_call(server: str, workers: Workers) -> None:
    transport = Counting()
    async with await AsyncStudy.create(FIELDS, url=server, transport=transport) as study:
        results = asyncio.ensure_future(wait_all(study.eval({"lr": lr}, 5) for lr in (0.1, 0.2, 0.3, 0.2)))
        await wait_for_trials(study, 3)
        for trial in (2, 0, 1):
            await train(workers, study, trial, trial / 10)
        found = await results
        assert found == [Result(n, 5, n / 10, {"accuracy": n / 10}) for n in (0, 1, 2, 1)]
        assert (transport.asked["trials:batch"], transport.asked["events"]) == (1, 1)
        assert study.best is not None and study.best.trial == 2


async def test_more_steps_of_a_configuration_are_the_same_trial(server: str, workers: Workers) -> None:
    async with await AsyncStudy.create(FIELDS, url=server) as study:
        hp = {"lr": MultiStep(0.1, [7], 0.5), "bs": Constant(64)}
        both = asyncio.ensure_future(wait_all([study.eval(hp, 10), study.eval(hp, 5)]))
        await wait_until(lambda: workers.plan(study.id).studies[study.id].requested == 10)
        root = workers.plan(study.id).roots[0]
        await asyncio.to_thread(workers.record, study.id, e.Evaluated(node=root, step=5, metrics={"accuracy": 0.25}))
        await train(workers, study, 0, 0.5)
        assert [(result.trial, result.step, result.value) for result in await both] == [(0, 10, 0.5), (0, 5, 0.25)]
        again = await study.eval({"lr": MultiStep(0.1, [7], 0.5), "bs": 64}, 10)
        assert (again.trial, again.value) == (0, 0.5)
        fewer = asyncio.ensure_future(study.eval(hp, 7))
        assert (await fewer).trial == 1
        assert [trial.steps for trial in await trials_of(study)] == [10, 7]


def measure(workers: Workers, study: AsyncStudy, repeat: int, value: float | None) -> None:
    """A slot says what a repeat of the first trial comes to."""
    [trial] = workers.plan(study.id).studies[StudyId(study.id)].trials
    node = trial.runs[repeat].path[-1]
    workers.record(study.id, e.Evaluated(node=node, step=trial.steps, metrics={"accuracy": value}))


async def test_the_result_of_a_trial_with_repeats_is_their_mean(server: str, workers: Workers) -> None:
    """It was that of the first one, as soon as that was measured."""
    async with await AsyncStudy.create(FIELDS | {"repeats": 2}, url=server) as study:
        result = asyncio.ensure_future(study.eval({"lr": 0.1}, 5))
        await wait_for_trials(study, 1)
        for repeat, value in ((0, 0.25), (1, 0.75)):
            await asyncio.sleep(0.2)
            assert not result.done()
            await asyncio.to_thread(measure, workers, study, repeat, value)
        assert await result == Result(0, 5, 0.5, {"accuracy": 0.5})
    async with await AsyncStudy.create(FIELDS | {"repeats": 3}, url=server) as study:
        result = asyncio.ensure_future(study.eval({"lr": 0.1}, 5))
        await wait_for_trials(study, 1)
        await asyncio.to_thread(measure, workers, study, 2, 2.0)  # no event of this study says what the others came to
        assert await result == Result(0, 5, 1.0, {"accuracy": 1.0})
    async with await AsyncStudy.create(FIELDS | {"repeats": 2}, url=server) as study:
        failing = asyncio.ensure_future(study.eval({"lr": 0.2}, 5))
        await wait_for_trials(study, 1)
        for repeat, loss in ((0, None), (1, 0.5)):
            await asyncio.to_thread(measure, workers, study, repeat, loss)
        with pytest.raises(TrialFailed):
            await failing


async def test_a_trial_that_fails_ends_its_own_eval_only(server: str, workers: Workers) -> None:
    async with await AsyncStudy.create(FIELDS, url=server) as study:
        evals = [asyncio.ensure_future(study.eval({"lr": lr}, 5)) for lr in (1, 2, 3, 4)]
        await wait_for_trials(study, 4)
        await asyncio.to_thread(lambda: workers.fail(study.id, workers.assign(study.id, 0), "ValueError: no"))
        await train(workers, study, 1, None)
        async with AsyncClient(study.url) as other:
            await other.cancel_trial(study.id, 2)
        await train(workers, study, 3, 0.5)
        found = await wait_all(evals, return_exceptions=True)
        assert [str(each) for each in found[:3]] == [
            "trial 0 has failed: ValueError: no, after step 3",
            "trial 1 has failed: accuracy is not a finite number, after step 5",
            "trial 2 is cancelled",
        ]
        assert isinstance(found[3], Result)
        with pytest.raises(TrialFailed):
            await study.eval({"lr": 1}, 5)


async def test_a_study_that_is_over_has_no_more_results(server: str, workers: Workers) -> None:
    async with await AsyncStudy.create(FIELDS, url=server) as study:
        waiting = asyncio.ensure_future(study.eval({"lr": 1}, 5))
        await wait_for_trials(study, 1)
        with pytest.raises(Conflict, match="still training"):
            await study.complete()
        await study.cancel()
        with pytest.raises(StudyOver, match="is cancelled"):
            await waiting
        with pytest.raises(Conflict):
            await study.eval({"lr": 2}, 5)


async def test_wait_any_gives_the_first(server: str, workers: Workers) -> None:
    async with await AsyncStudy.create(FIELDS, url=server) as study:
        first = asyncio.ensure_future(wait_any(study.eval({"lr": lr}, 5) for lr in (1, 2, 3)))
        await wait_for_trials(study, 3)
        await train(workers, study, 1, 0.5)
        done, pending = await first
        assert [each.result().trial for each in done] == [1]
        await train(workers, study, 0, 0.5)
        done, pending = await wait_any(pending)
        assert ([each.result().trial for each in done], len(pending)) == ([0], 1)
        pending[0].cancel()


async def test_a_refusal_is_only_its_own(server: str, workers: Workers) -> None:
    async with await AsyncStudy.create(FIELDS, url=server) as study:
        with working(workers, study.id):
            asked = [study.eval({"lr": 1}, 5), study.eval({"momentum": 1}, 6), study.eval({"lr": 2}, 5)]
            one, refused, two = await wait_all(asked, return_exceptions=True)
        assert (one.value, two.value) == (5, 10)
        assert isinstance(refused, Invalid)
        assert "must hold exactly lr" in str(refused)


async def test_a_tuner_is_a_coroutine_over_a_study(server: str, workers: Workers) -> None:
    async def halving(study: AsyncStudy) -> Result:
        rates = [0.1, 0.2, 0.3, 0.4]
        for step in (2, 4, 8):
            results = await wait_all(study.eval({"lr": lr}, step) for lr in rates)
            best = sorted(zip(results, rates, strict=True), key=lambda pair: -pair[0].value)
            rates = [rate for _, rate in best[: max(1, len(rates) // 2)]]
        return best[0][0]

    async with await AsyncStudy.create(FIELDS, url=server) as study:
        with working(workers, study.id):
            best = await halving(study)
        assert (best.trial, best.step, best.value) == (3, 8, 3.2)
        assert [trial.steps for trial in await trials_of(study)] == [2, 2, 4, 8]
        await study.complete()
        assert study.state == "completed"


async def test_an_equal_study_is_reused(server: str, workers: Workers) -> None:
    async with await AsyncStudy.create(FIELDS, url=server) as first:
        study = first.id
        with working(workers, study):
            await first.eval({"lr": 0.5}, 4)
    async with await AsyncStudy.open(study, url=server) as second:
        assert (await second.eval({"lr": 0.5}, 4)).trial == 0
        with working(workers, study):
            assert await second.eval({"lr": 0.5}, 8) == Result(0, 8, 4.0, {"accuracy": 4.0})
        with pytest.raises(NotFound):
            await AsyncStudy.open("unknown", url=server)


async def test_trials_of_the_studys_own_tuner_are_requested_anew(server: str, workers: Workers) -> None:
    async with await AsyncStudy.create(study_file(), url=server) as study:
        await asyncio.to_thread(workers.tune, study.id)
        await train(workers, study, 1, 0.5)
        await study.refresh()
        found = await study.eval({"lr": 0.1, "bs": 64}, 40)
        assert (found.trial, found.value) == (2, 0.5)


class Faulty(httpx2.AsyncHTTPTransport):
    """The first two streams are cut, one of them before it begins, and the first batch gets no answer."""

    def __init__(self) -> None:
        super().__init__()
        self.faults = {"events": 2, "trials:batch": 1}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        last = request.url.path.rsplit("/", 1)[-1]
        if self.faults.get(last, 0):
            self.faults[last] -= 1
            await response.aclose()
            raise httpx2.ReadError("cut")
        return response


async def test_broken_connections_lose_nothing(server: str, workers: Workers) -> None:
    transport = Faulty()
    async with await AsyncStudy.create(FIELDS, url=server, transport=transport) as study:
        with working(workers, study.id):
            assert (await study.eval({"lr": 1}, 2)).value == 2
        results = asyncio.ensure_future(wait_all(study.eval({"lr": lr}, 3) for lr in (1, 2)))
        await wait_until(lambda: not any(transport.faults.values()))
        with working(workers, study.id):
            assert [result.value for result in await results] == [3, 6]
        assert len(await trials_of(study)) == 2


async def test_no_server() -> None:
    with pytest.raises(Unreachable):
        await AsyncStudy.create(FIELDS, url="http://127.0.0.1:9", retries=0)
    with pytest.raises(Unreachable):
        Study.open("mine", url="http://127.0.0.1:9", retries=0)


async def test_closing_ends_waiting_calls(server: str) -> None:
    study = await AsyncStudy.create(FIELDS, url=server)
    waiting = asyncio.ensure_future(study.eval({"lr": 1}, 5))
    await wait_for_trials(study, 1)
    await study.close()
    with pytest.raises(StudyOver, match="closed"):
        await waiting


async def test_a_study_with_its_own_tuner_has_the_same_views(server: str, workers: Workers) -> None:
    async with await AsyncStudy.create(study_file(), url=server) as study:
        await asyncio.to_thread(workers.tune, study.id)
        await train(workers, study, 0, 0.5)
        frame = await study.dataframe()
        first, last = ["trial", "state", "steps", "value"], ["rung", "reason", "added", "ended", "seconds", "error"]
        lr = ["lr.family", "lr.init", "lr.milestones", "lr.gamma", "bs", "lr"]
        assert list(frame.columns) == [*first, *lr, *last, "accuracy@20", "accuracy@40"]
        assert list(frame["state"]) == ["completed", "waiting"]
        assert list(frame["bs"]) == [64, 64]
        assert (frame["lr.milestones"][0], frame["lr"][1]) == ((20,), 0.1)
        assert frame["accuracy@40"][0] == 0.5 and math.isnan(frame["accuracy@40"][1])
        assert list((await study.dataframe(by_step=False)).columns)[-1] == "error"
        assert await study.curve(0) == {20: 0.5, 40: 0.5}


async def test_waiting_for_the_end(server: str, workers: Workers, capsys: pytest.CaptureFixture[str]) -> None:
    async with await AsyncStudy.create(study_file(), url=server) as study:
        waiting = asyncio.ensure_future(study.wait())
        await asyncio.to_thread(workers.tune, study.id)
        await train(workers, study, 0, 0.5)
        await study.cancel()
        await waiting
        assert (study.state, len(study.trials)) == ("cancelled", 2)
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert last.startswith(f"{study.id} cancelled · 2/2 trials · 40 steps run · best accuracy 0.5 (trial 0)")


@pytest.mark.parametrize("show", [True, False])
async def test_waiting_for_a_study_that_fails_raises_its_reason(server: str, workers: Workers, show: bool) -> None:
    """It returned, and `best` was None: a program continued without an error."""
    async with await AsyncStudy.create(study_file(), url=server) as study:
        waiting = asyncio.ensure_future(study.wait(show=show))
        await asyncio.to_thread(
            workers.decide, study.id, c.FailStudy(study=StudyId(study.id), error="its tuner raised", at=1.0)
        )
        with pytest.raises(FailedStudy, match=f"study {study.id} has failed: its tuner raised"):
            await waiting
        assert study.state == "failed"


# -------------------------------------------------------------------------------------------------------------- showing


async def test_the_notebook_view(server: str, workers: Workers) -> None:
    async with await AsyncStudy.create({**FIELDS, "metric": "<acc>"}, url=server) as study:
        wanted = [asyncio.ensure_future(study.eval({"lr": "<script>", "n": n}, 1)) for n in range(12)]
        await wait_for_trials(study, 12)
        assert repr(study) == f"<AsyncStudy {study.id} at {server}: running, 12 trials>"
        shown = study._repr_html_()
        assert "<script>" not in shown and "&lt;script&gt;" in shown and "&lt;acc&gt;" in shown
        assert (shown.count("<tr>"), "<p>2 more</p>" in shown) == (11, True)
        for each in wanted:
            each.cancel()


async def test_without_pandas(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    async with await AsyncStudy.create(FIELDS, url=server) as study:
        with pytest.raises(StagetreeError, match=r"^a DataFrame needs pandas: pip install 'stagetree\[pandas\]'$"):
            await study.dataframe()


# ------------------------------------------------------------------------------------------------------ without asyncio


def test_without_await(server: str, workers: Workers) -> None:
    with Study.create(FIELDS, url=server) as study:
        with working(workers, study.id):
            assert study.eval({"lr": 0.5}, 2) == Result(0, 2, 1.0, {"accuracy": 1.0})
            assert [result.value for result in study.eval_all([({"lr": 1}, 2), ({"lr": 2}, 2)])] == [2, 4]
            later = study.submit({"lr": 3}, 2)
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(lambda lr: study.eval({"lr": lr}, 4).value, (1, 2, 3, 4)))
            assert (found, later.result().value) == ([4, 8, 12, 16], 6)
            assert study.run(lambda study: study.eval({"lr": 5}, 2)).value == 10
        assert study.best is not None and study.best.value == 16
        assert list(study.dataframe()["value"]) == [1, 4, 8, 12, 16, 10]
        assert repr(study).startswith(f"<Study {study.id} at {server}: running, 6 trials, best accuracy 16 (trial 4")
        assert study._repr_html_().count("<tr>") == 7
        assert study.refresh().complete().wait(show=False).state == "completed"
        with Study.open(study.id, url=server) as again:
            assert again.id == study.id
    study.close()
    with pytest.raises(StagetreeError, match="the connection was closed"):
        study.refresh()


async def test_without_await_inside_a_running_loop(server: str) -> None:
    with Study.create(FIELDS, url=server) as study:
        assert study.cancel().state == "cancelled"


def test_numbers_of_numpy_are_numbers(server: str, workers: Workers) -> None:
    with Study.create(FIELDS, url=server, seed=np.int64(3)) as study, working(workers, study.id):
        assert study.eval({"lr": np.float32(0.5), "bs": np.int64(64)}, np.int64(2)).value == 1.0
        assert study.trials[0].hp["bs"] == {"family": "constant", "value": 64}
