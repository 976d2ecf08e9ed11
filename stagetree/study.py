"""A study in Python: submit or open it, wait for it, read its results, or tune it yourself.

    study = Study.create(StudySpec.from_file("study.yaml")).wait()
    print(study.best, study.dataframe())

A study can also be tuned from the client (TreeML, section 5.3): ask for a configuration at a step, and await its
result.

    study = await AsyncStudy.create(name="mine", trainer="digits", metric="val_accuracy", mode="max")
    results = await wait_all(study.eval({"lr": lr}, 5) for lr in (0.1, 0.01, 0.001))

A tuner is any coroutine over a study. Requests made at the same time go to the server in one call, and results arrive
over one event stream. Requesting a configuration for more steps extends its trial from its last state.

`Study` is `AsyncStudy` without `await`. Simultaneous requests of several threads are still one call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stagetree.client.blocking import Blocking, blocking, blocking_iterator, chained, wait_all
from stagetree.client.client import AsyncClient, Holds
from stagetree.client.http import Json, path_of
from stagetree.client.study_json import Folder, find_study_id, study_body
from stagetree.client.trial_composition import MadeOfTrials
from stagetree.client.trial_requests import Asker, Hp, Known, Result
from stagetree.errors import NotFound
from stagetree.models import Event, StudyAnswer
from stagetree.notebook.live import Showing, StudyView
from stagetree.results import Results

if TYPE_CHECKING:
    from pandas import DataFrame

    from stagetree.plot import Plots
    from stagetree.spec import StudySpec

T = TypeVar("T")
Tuner = Callable[["AsyncStudy"], Awaitable[T]]

_LOOK_SECONDS = 0.5
"""How often `wait` polls the study."""


class AsyncStudy(StudyView, MadeOfTrials):
    """A study on the server at `url`, or else at `$STAGETREE_URL`, or else on this machine.

    `AsyncStudy.create` submits one, `AsyncStudy.open` opens one that exists.
    """

    _client: AsyncClient

    def __init__(self, client: AsyncClient, study: Json) -> None:
        self._client, self._known = client, Known(study)
        self._asker = Asker(client.http, self._known)

    @classmethod
    async def create(
        cls,
        spec: StudySpec | Mapping[str, Any] | None = None,
        /,
        *,
        url: str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
        transport: Any = None,
        **fields: Any,
    ) -> AsyncStudy:
        """Submit a study, as a spec or by its fields. Without a tuner, it trains only the trials that you ask for."""
        body = study_body(spec, fields)
        client = AsyncClient(url, timeout, retries=retries, transport=transport)
        try:
            return cls(client, await client.http.post("/studies", body))
        except BaseException:
            await client.close()
            raise

    @classmethod
    async def open(
        cls, study: str, *, url: str | None = None, timeout: float = 30.0, retries: int = 4, transport: Any = None
    ) -> AsyncStudy:
        """Open a study by its id, its name (the newest of that name), or as `last`. Raises `NotFound`."""
        client = AsyncClient(url, timeout, retries=retries, transport=transport)
        opened = cls(client, {"study": study})
        try:
            try:
                await opened.refresh()
            except NotFound:
                opened = cls(client, {"study": await find_study_id(client.http, study)})
                await opened.refresh()
        except BaseException:
            await client.close()
            raise
        return opened

    async def __aenter__(self) -> AsyncStudy:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the study keeps running."""
        await self._asker.close()
        await self._client.close()

    @property
    def url(self) -> str:
        """The URL of its server."""
        return self._client.url

    # State and results

    async def refresh(self) -> None:
        """Fetch the present state of the study and of all its trials."""
        await self._asker.refresh()

    async def progress(self, every: float = _LOOK_SECONDS) -> AsyncIterator[StudyAnswer]:
        """Yield the state of the study every `every` seconds, until it is over."""
        ended = asyncio.ensure_future(self._end())
        try:
            while not ended.done():
                self._known.study = await self._client.http.get(path_of(self.id), trials="false")
                yield self.answer
                await asyncio.wait({ended}, timeout=every)
            ended.result()
            await self.refresh()
            yield self.answer
        finally:
            ended.cancel()

    async def _end(self) -> None:
        async for _ in self._client.http.follow(f"{path_of(self.id)}/events", self._known.position):
            pass

    async def wait(self, *, show: bool = True) -> None:
        """Wait until the study is over, and show its progress, unless `show` is false. Raises `FailedStudy`."""
        with Showing(show) as showing:
            async for answer in self.progress():
                showing.show(answer)

    async def results(self) -> Results:
        """The results so far: trials, their curves, the reasons of decisions, and times."""
        return await Results.fetch(self._client, self.id)

    async def dataframe(self, *, by_step: bool = True) -> DataFrame:
        """All trials as they stand now, a row for each: see `Results.dataframe`."""
        return (await self.results()).dataframe(by_step=by_step)

    async def curve(self, trial: int, metric: str | None = None) -> dict[int, float | None]:
        """The values of a metric of one trial, by step; by default of the study's metric."""
        document = await self._client.trial(self.id, trial)
        return {point.step: point.metrics.get(metric or self.metric) for point in document.curve}

    async def logged(self, trial: int, name: str) -> dict[int, float | None]:
        """The values that a trial's trainer logged under `name`, by step."""
        return {at.step: at.metrics[name] for at in await self._client.logged(self.id, trial) if name in at.metrics}

    async def events(self, after: int = 0) -> list[Event]:
        """The events of the study after event number `after`, in order."""
        return [event async for event in self._client.events(self.id, after)]

    # Actions

    async def complete(self) -> None:
        """Complete the study: ask for no more. Raises `Conflict` while trials are under way."""
        await self._change("complete")

    async def cancel(self) -> None:
        """Cancel the study for good."""
        await self._change("cancel")

    async def pause(self) -> None:
        """Pause the study: start no stage for it until it is resumed."""
        await self._change("pause")

    async def resume(self) -> None:
        """Resume the study after a pause."""
        await self._change("resume")

    async def add_note(self, text: str, trial: int | None = None) -> Event:
        """Add a note to the study, or to a trial of it."""
        return await self._client.add_note(self.id, text, trial)

    async def tag(self, *tags: str, remove: Iterable[str] = (), attributes: Mapping[str, Any] | None = None) -> None:
        """Add and remove tags, and set attributes: None as a value removes one. `study.tags` has them."""
        self._known.study = dict(await self._client.label(self.id, tags, remove, attributes))

    async def checkpoint(
        self, to: Folder = ".", *, trial: int | None = None, step: int | None = None, holds: Holds = "weights"
    ) -> Path:
        """Write the weights of the best trial, or of another, to a file in a folder: see `AsyncClient.checkpoint`."""
        return await self._client.checkpoint(self.id, to, trial=trial, step=step, holds=holds)

    async def _change(self, verb: str) -> None:
        self._known.study = await self._client.http.post(f"{path_of(self.id)}:{verb}")

    async def eval(self, hp: Hp, step: int) -> Result:
        """Train a configuration to step `step`, and return its result there. Raises `TrialFailed`, `StudyOver`."""
        return await asyncio.shield(self._asker.ask(hp, step).result)

    async def eval_all(self, evaluations: Iterable[tuple[Hp, int]]) -> list[Result]:
        """As `eval`, for many (configuration, step) in one call; the results are in the same order."""
        return await wait_all(self.eval(hp, step) for hp, step in evaluations)


class Study(Blocking, StudyView):
    """`AsyncStudy` without `await`: each call returns when it is done, and `submit` at once."""

    _core: AsyncStudy

    @classmethod
    def create(
        cls,
        spec: StudySpec | Mapping[str, Any] | None = None,
        /,
        *,
        url: str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
        **fields: Any,
    ) -> Study:
        """Submit a study, as a spec or by its fields. Without a tuner, it trains only the trials that you ask for."""
        return cls(lambda: AsyncStudy.create(spec, url=url, timeout=timeout, retries=retries, **fields))

    @classmethod
    def open(cls, study: str, *, url: str | None = None, timeout: float = 30.0, retries: int = 4) -> Study:
        """Open a study by its id, its name (the newest of that name), or as `last`. Raises `NotFound`."""
        return cls(lambda: AsyncStudy.open(study, url=url, timeout=timeout, retries=retries))

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL of its server."""
        return self._core.url

    @property
    def _known(self) -> Known:  # type: ignore[override]
        return self._core._known

    refresh = chained(AsyncStudy.refresh)
    complete = chained(AsyncStudy.complete)
    cancel = chained(AsyncStudy.cancel)
    pause = chained(AsyncStudy.pause)
    resume = chained(AsyncStudy.resume)
    add_note = blocking(AsyncStudy.add_note)
    tag = chained(AsyncStudy.tag)
    results = blocking(AsyncStudy.results)
    dataframe = blocking(AsyncStudy.dataframe)
    curve = blocking(AsyncStudy.curve)
    logged = blocking(AsyncStudy.logged)
    checkpoint = blocking(AsyncStudy.checkpoint)
    events = blocking(AsyncStudy.events)
    eval = blocking(AsyncStudy.eval)
    eval_all = blocking(AsyncStudy.eval_all)
    branch = blocking(AsyncStudy.branch)
    suggest = blocking(AsyncStudy.suggest)
    withdraw = blocking(AsyncStudy.withdraw)
    sampler = blocking(AsyncStudy.sampler)
    soup = blocking(AsyncStudy.soup)

    progress = blocking_iterator(AsyncStudy.progress)

    def wait(self, *, show: bool = True) -> Study:
        """Wait until the study is over, and show its progress, unless `show` is false. Raises `FailedStudy`."""
        with Showing(show) as showing:
            for answer in self.progress():
                showing.show(answer)
        return self

    @property
    def plot(self) -> Plots:
        """Pictures of the study as it stands now."""
        return self.results().plot

    def submit(self, hp: Hp, step: int) -> Future[Result]:
        """As `eval`, but return a future at once; its `result()` waits."""
        return self._portal.start_task_soon(self._core.eval, hp, step)

    def run(self, tuner: Tuner[T]) -> T:
        """Run a tuner, a coroutine over the study, to its end."""

        async def running() -> T:
            return await tuner(self._core)

        return self._run(running())
