"""A study that is tuned from the client (TreeML, section 5.3): ask for a configuration at a step, and await its result.

    study = await Study().create(name="mine", trainer="digits", metric="val_accuracy", mode="max")
    results = await wait_all(study.eval({"lr": lr}, 5) for lr in (0.1, 0.01, 0.001))

A tuner is any coroutine over a study. What it asks for in one moment goes to the server in one call; results come over
one stream of events. The same configuration asked for more steps is the same trial, trained on from where it is.

`SyncStudy` is the same without `await`. It runs a loop in a thread of its own, so that it also works where a loop runs
already, as in notebooks, and so that what several threads ask for at once is one call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast

from stagetree import _frames
from stagetree.client import Conflict, Invalid, Json, NotFound, StagetreeError, body_of, path_of
from stagetree.sequences import parse
from stagetree.space import plain

if TYPE_CHECKING:
    from pandas import DataFrame

    from stagetree._async_client import AsyncClient
    from stagetree.spec import StudySpec

__all__ = ["Result", "Study", "StudyOver", "SyncStudy", "TrialFailed", "wait_all", "wait_any"]

T = TypeVar("T")
Hp = Mapping[str, Any]
Tuner = Callable[["Study"], Awaitable[T]]

_MOST = 500
"""How many trials are asked for in one call."""

_ENDINGS = {"StageFailed", "CheckpointDropped", "TrialCancelled", "TrialStopped"}
"""Events after which a trial may be over without a result."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a trial came to after `step` steps: `value` is the study's metric, one of `metrics`."""

    trial: int
    step: int
    value: float
    metrics: Mapping[str, float | None]


class TrialFailed(StagetreeError):
    """There will be no result: the trial failed, or was stopped or cancelled."""

    def __init__(self, trial: int, state: str, error: str) -> None:
        super().__init__(f"trial {trial} is {state}" + (f": {error}" if error else ""))
        self.trial, self.state, self.error = trial, state, error


class StudyOver(StagetreeError):
    """There will be no result: the study is over."""


@dataclass(slots=True, eq=False)
class _Ask:
    """A configuration that is wanted at a step. `key` is the configuration's name with us, `node` its place there."""

    key: str
    hp: Json
    step: int
    result: asyncio.Future[Result]
    trial: int = -1
    node: str = ""


@dataclass(slots=True)
class _Known:
    """What the client has heard of a study."""

    study: Json = field(default_factory=dict)
    trials: dict[int, Json] = field(default_factory=dict)
    longest: dict[str, int] = field(default_factory=dict)  # by configuration: the trial with the most steps
    metrics: dict[tuple[str, int], Mapping[str, float | None]] = field(default_factory=dict)
    position: int = 0
    endings: int = 0

    def take(self, trial: Json) -> None:
        """Know how a trial stands."""
        number, key = trial["trial"], _key(trial["hp"])
        self.trials[number] = trial
        if trial["steps"] >= self.trials[self.longest.setdefault(key, number)]["steps"]:
            self.longest[key] = number

    def extendable(self, key: str, step: int) -> int | None:
        """The trial that is there, or gets there by being trained on."""
        number = self.longest.get(key)
        if number is None or self.trials[number]["state"] not in ("waiting", "running", "completed"):
            return None
        return number if self.trials[number]["steps"] <= step else None


class Study:
    """A study on the server at `url`, or else at `$STAGETREE_URL`, or else on this machine.

    It is made with `create`, or found with `open`. What is shown of it is what was last heard; `refresh` hears it anew.
    """

    def __init__(
        self, url: str | None = None, *, timeout: float = 30.0, retries: int = 4, transport: Any = None
    ) -> None:
        from stagetree._async_client import AsyncClient

        self._client: AsyncClient = AsyncClient(url, timeout, retries, transport)
        self._known = _Known()
        self._wanted: dict[tuple[str, int], _Ask] = {}
        self._asks: list[_Ask] = []
        self._pending: list[_Ask] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_doubtful = False

    async def __aenter__(self) -> Study:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the study goes on."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._fail(StudyOver("the connection to the study was closed"), self._open())
        await self._client.close()

    # The study

    @property
    def id(self) -> str:
        """The study's name in URLs and on the command line."""
        if not self._known.study:
            raise StagetreeError("there is no study yet: create one, or open one")
        return str(self._known.study["study"])

    @property
    def metric(self) -> str:
        """The metric that counts."""
        return str(self._known.study["metric"])

    @property
    def mode(self) -> str:
        """Whether more (`max`) or less (`min`) of it is better."""
        return str(self._known.study["mode"])

    @property
    def best(self) -> Json | None:
        """The best trial heard of."""
        return _frames.best(self._known.trials.values(), self.mode)

    async def create(self, spec: StudySpec | Mapping[str, Any] | None = None, /, **fields: Any) -> Study:
        """Submit a study, whole or by its fields. Where no tuner is named, its trials are those that are asked for."""
        body = {"tuner": {"kind": "external"}, **(body_of(spec) if spec is not None else {}), **plain(fields)}
        self._known = _Known(await self._client.post("/studies", body))
        return self

    async def open(self, study: str) -> Study:
        """A study that is there."""
        self._known = _Known({"study": study})
        return await self.refresh()

    async def refresh(self) -> Study:
        """Hear how the study and all its trials stand."""
        self._known.study = await self._client.get(path_of(self.id), trials="false")
        async for trial in self._all_trials():
            self._known.take(trial)
        return self

    async def complete(self) -> Study:
        """Say that nothing more will be asked for. Raises `Conflict` while trials are under way."""
        self._known.study = await self._client.post(f"{path_of(self.id)}:complete")
        return self

    async def cancel(self) -> Study:
        """End the study for good."""
        self._known.study = await self._client.post(f"{path_of(self.id)}:cancel")
        return self

    def _all_trials(self) -> AsyncIterator[Json]:
        return self._client.pages(f"{path_of(self.id)}/trials")

    # Asking

    async def eval(self, hp: Hp, step: int) -> Result:
        """Train a configuration for `step` steps in all, and evaluate it there. Raises `TrialFailed`, `StudyOver`."""
        ask = self._ask(hp, step)
        return await asyncio.shield(ask.result)

    def _ask(self, hp: Hp, step: int) -> _Ask:
        given = {name: parse(plain(value), name).to_json() for name, value in hp.items()}
        place = _key(given), step
        if place not in self._wanted:
            self._wanted[place] = _Ask(place[0], given, step, asyncio.get_running_loop().create_future())
            self._wanted[place].result.add_done_callback(_look_at)
            self._asks.append(self._wanted[place])
            self._start("ask", self._ask_server)
        return self._wanted[place]

    def _start(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have something done in the background, if it is not being done already. It begins after this moment."""
        if name not in self._tasks or self._tasks[name].done():
            self._tasks[name] = asyncio.create_task(self._guarded(run))

    async def _guarded(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Nobody waits for what goes on in the background: who waits for its results is told when it breaks."""
        try:
            await run()
        except Exception as error:
            self._fail(error, self._open())

    def _open(self) -> list[_Ask]:
        return [ask for ask in self._wanted.values() if not ask.result.done()]

    async def _ask_server(self) -> None:
        while self._asks:
            batch = self._next_batch()
            try:
                await self._ask_for(batch)
            except (Conflict, Invalid, NotFound):
                await self._ask_one_by_one(batch)
            except StagetreeError as error:
                self._fail(error, batch)

    def _next_batch(self) -> list[_Ask]:
        """Each configuration once: asked for more steps, it is the trial that the answer to the first will name."""
        self._asks.sort(key=lambda ask: ask.step)
        first: dict[str, _Ask] = {}
        for ask in self._asks:
            first.setdefault(ask.key, ask)
        batch = list(first.values())[:_MOST]
        self._asks = [ask for ask in self._asks if ask not in batch]
        return batch

    async def _ask_one_by_one(self, batch: list[_Ask]) -> None:
        """The server refused: find out whose fault it is. What it will not train on, it may well train anew."""
        for ask in batch:
            try:
                if self._known.extendable(ask.key, ask.step) is not None:
                    with suppress(Conflict):
                        await self._ask_for([ask])
                        continue
                    del self._known.longest[ask.key]
                await self._ask_for([ask])
            except StagetreeError as error:
                self._fail(error, [ask])

    async def _ask_for(self, batch: list[_Ask]) -> None:
        endings = self._known.endings
        asked = [self._body(ask) for ask in batch]
        answer = await self._client.post(f"{path_of(self.id)}/trials:batch", {"trials": asked})
        for ask, trial in zip(batch, answer["items"], strict=True):
            self._asked(ask, trial)
        if self._pending:
            self._start("listen", self._listen)
        if endings != self._known.endings:
            self._doubt()

    def _body(self, ask: _Ask) -> Json:
        number = self._known.extendable(ask.key, ask.step)
        return {"hp": ask.hp, "steps": ask.step} if number is None else {"trial": number, "steps": ask.step}

    def _asked(self, ask: _Ask, trial: Json) -> None:
        self._known.take(trial)
        ask.trial, ask.node = trial["trial"], trial["path"][-1]
        known = {point["step"]: point["metrics"] for point in trial["curve"]}
        self._pending.append(ask)
        if ask.step in known:
            self._answer(ask, known[ask.step])
        elif (ask.node, ask.step) in self._known.metrics:
            self._answer(ask, self._known.metrics[ask.node, ask.step])
        self._end(ask, trial)

    # Hearing

    async def _listen(self) -> None:
        """One stream for all that is asked for, as long as the study goes on."""
        async for event in self._client.follow(f"{path_of(self.id)}/events", self._known.position):
            self._hear(event)
        await self.refresh()
        self._fail(StudyOver(f"study {self.id} is {self._known.study['state']}"), self._pending)

    def _hear(self, event: Json) -> None:
        self._known.position = event["position"]
        data = event["data"]
        if event["type"] == "Evaluated":
            place = data["node"], data["step"]
            self._known.metrics[place] = data["metrics"]
            for ask in [ask for ask in self._pending if (ask.node, ask.step) == place]:
                self._answer(ask, data["metrics"])
        elif event["type"] in _ENDINGS:
            self._known.endings += 1
            self._doubt()

    def _answer(self, ask: _Ask, metrics: Mapping[str, float | None]) -> None:
        value = metrics.get(self.metric)
        if value is None:
            return self._doubt()
        trial = self._known.trials[ask.trial]
        done = {"state": "completed"} if trial["steps"] == ask.step else {}
        self._known.trials[ask.trial] = {**trial, **done, "value": value}
        self._pending.remove(ask)
        if not ask.result.done():
            ask.result.set_result(Result(ask.trial, ask.step, value, metrics))
        return None

    def _doubt(self) -> None:
        """Somebody's trial is over, and it may be one that is waited for."""
        self._is_doubtful = True
        if self._pending:
            self._start("look", self._look)

    async def _look(self) -> None:
        while self._is_doubtful and self._pending:
            self._is_doubtful = False
            trials = {trial["trial"]: trial async for trial in self._all_trials()}
            for ask in list(self._pending):
                self._known.take(trials[ask.trial])
                self._end(ask, trials[ask.trial])

    def _end(self, ask: _Ask, trial: Json) -> None:
        if trial["state"] in ("failed", "cancelled", "stopped") and not ask.result.done():
            self._pending.remove(ask)
            ask.result.set_exception(TrialFailed(ask.trial, trial["state"], trial.get("error", "")))

    def _fail(self, error: Exception, asks: list[_Ask]) -> None:
        """No result came, for a reason that is not the trials': asked for again, they are tried again."""
        for ask in list(asks):
            self._wanted.pop((ask.key, ask.step), None)
            if ask in self._pending:
                self._pending.remove(ask)
            if not ask.result.done():
                ask.result.set_exception(error)

    # Showing

    async def trials_frame(self) -> DataFrame:
        """All trials as a pandas DataFrame, as they stand now."""
        await self.refresh()
        return _frames.frame(self._known.trials.values())

    def __repr__(self) -> str:
        return _frames.text(type(self).__name__, self._client.url, self._known.study, self._known.trials.values())

    def _repr_html_(self) -> str:
        return _frames.html(repr(self), self._known.study, self._known.trials.values())


def _key(hp: Mapping[str, Any]) -> str:
    return json.dumps(hp, sort_keys=True)


def _look_at(result: asyncio.Future[Result]) -> None:
    """Whoever asked may have gone: that nobody looks at an error is no news then."""
    if not result.cancelled():
        result.exception()


# ------------------------------------------------------------------------------------------------------------- waiting


async def wait_all(results: Iterable[Awaitable[T]], *, return_exceptions: bool = False) -> list[T]:
    """Wait for all, and return what they came to, in order. The first error is raised, unless errors are returned."""
    return cast("list[T]", await asyncio.gather(*results, return_exceptions=return_exceptions))


async def wait_any(
    results: Iterable[Coroutine[Any, Any, T] | asyncio.Future[T]],
) -> tuple[list[asyncio.Future[T]], list[asyncio.Future[T]]]:
    """Wait for one or more, and return those that are done and those that are not: `wait_any` takes them again."""
    futures = [asyncio.ensure_future(result) for result in results]
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    return [each for each in futures if each.done()], [each for each in futures if not each.done()]


# --------------------------------------------------------------------------------------------------- without asyncio


class SyncStudy:
    """A `Study` without `await`: each call returns when it is done, and `submit` at once."""

    def __init__(self, url: str | None = None, *, timeout: float = 30.0, retries: int = 4) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="stagetree study", daemon=True)
        self._thread.start()
        self.study = Study(url, timeout=timeout, retries=retries)

    def __enter__(self) -> SyncStudy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the study goes on."""
        if self._loop.is_running():
            self._do(self.study.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def id(self) -> str:
        """The study's name in URLs and on the command line."""
        return self.study.id

    @property
    def best(self) -> Json | None:
        """The best trial heard of."""
        return self.study.best

    def create(self, spec: StudySpec | Mapping[str, Any] | None = None, /, **fields: Any) -> SyncStudy:
        """Submit a study; see `Study.create`."""
        self._do(self.study.create(spec, **fields))
        return self

    def open(self, study: str) -> SyncStudy:
        """A study that is there."""
        self._do(self.study.open(study))
        return self

    def refresh(self) -> SyncStudy:
        """Hear how the study and all its trials stand."""
        self._do(self.study.refresh())
        return self

    def complete(self) -> SyncStudy:
        """Say that nothing more will be asked for. Raises `Conflict` while trials are under way."""
        self._do(self.study.complete())
        return self

    def cancel(self) -> SyncStudy:
        """End the study for good."""
        self._do(self.study.cancel())
        return self

    def submit(self, hp: Hp, step: int) -> Future[Result]:
        """Ask for a result, and go on; its `result()` waits for it."""
        return asyncio.run_coroutine_threadsafe(self.study.eval(hp, step), self._loop)

    def eval(self, hp: Hp, step: int) -> Result:
        """Train a configuration for `step` steps in all, and evaluate it there."""
        return self._do(self.study.eval(hp, step))

    def eval_all(self, asked: Iterable[tuple[Hp, int]]) -> list[Result]:
        """Many configurations at their steps, in one call, in order."""
        return self._do(wait_all(self.study.eval(hp, step) for hp, step in asked))

    def run(self, tuner: Tuner[T]) -> T:
        """Run a tuner, a coroutine over the study, to its end."""

        async def running() -> T:
            return await tuner(self.study)

        return self._do(running())

    def trials_frame(self) -> DataFrame:
        """All trials as a pandas DataFrame, as they stand now."""
        return self._do(self.study.trials_frame())

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def __repr__(self) -> str:
        return repr(self.study).replace("Study", "SyncStudy", 1)

    def _repr_html_(self) -> str:
        return self.study._repr_html_()
