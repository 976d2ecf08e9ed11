"""Requests for trials and their results: one call for all requests of a moment, and one stream of events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from stagetree.client.http import Http, Json, path_of
from stagetree.errors import Conflict, Invalid, NotFound, StagetreeError, StudyOver, TrialFailed
from stagetree.sequences import parse
from stagetree.space.distributions import plain

Hp = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a trial after `step` steps: `metrics` by name, and as `value` the study's metric."""

    trial: int
    step: int
    value: float
    metrics: Mapping[str, float | None]


@dataclass(slots=True, eq=False)
class PendingAsk:
    """A configuration that is requested at a step."""

    key: str
    """The client's name for the configuration."""
    hp: Json
    step: int
    result: asyncio.Future[Result]
    trial: int = -1
    nodes: tuple[str, ...] = ()
    """The last node of each repeat; repeats that end in the same node count once."""


@dataclass(slots=True)
class Known:
    """What the client knows about a study from answers and events."""

    study: Json = field(default_factory=dict)
    trials: dict[int, Json] = field(default_factory=dict)
    longest: dict[str, int] = field(default_factory=dict)  # by configuration: the trial with the most steps
    metrics: dict[tuple[str, int], Mapping[str, float | None]] = field(default_factory=dict)
    position: int = 0
    endings: int = 0

    def take_all(self, trials: Iterable[Json]) -> None:
        """Replace all trials. Others may have been discarded by the server."""
        self.trials, self.longest = {}, {}
        for trial in trials:
            self.take(trial)

    def take_repeated_request(self, event: Json) -> tuple[str, tuple[str, ...]]:
        """Process a trial requested again after a restart. Returns its configuration's key and its last nodes."""
        number, ways = event["trial"], [event.get("path") or (), *event.get("repeats", ())]
        before = self.trials.get(number, {"trial": number, "state": "waiting", "value": None})
        hp: Json = event.get("hp") or before["hp"]
        paths = [[*old, *new] for old, new in zip_longest(paths_of(before), ways, fillvalue=())]
        self.take({**before, "hp": hp, "steps": event["steps"], "path": paths[0], "repeats": paths[1:]})
        return configuration_key(hp), last_nodes(self.trials[number])

    def take(self, trial: Json) -> None:
        """Update one trial."""
        number, key = trial["trial"], configuration_key(trial["hp"])
        self.trials[number] = trial
        if trial["steps"] >= self.trials[self.longest.setdefault(key, number)]["steps"]:
            self.longest[key] = number

    def extendable(self, key: str, step: int) -> int | None:
        """The trial that reaches `step`, now or by being extended."""
        number = self.longest.get(key)
        if number is None or self.trials[number]["state"] not in ("waiting", "running", "completed"):
            return None
        return number if self.trials[number]["steps"] <= step else None


def configuration_key(hp: Hp) -> str:
    """The client's name for a configuration."""
    return json.dumps(hp, sort_keys=True)


def paths_of(trial: Json) -> list[list[str]]:
    """The nodes along the path of each repeat. Trials from a list response have no paths."""
    return [trial.get("path", []), *trial.get("repeats", ())]


def last_nodes(trial: Json) -> tuple[str, ...]:
    """The unique nodes in which the repeats end."""
    return tuple(dict.fromkeys(path[-1] for path in paths_of(trial) if path))


_MOST = 500
"""How many trials one call requests."""

_ENDINGS = {"StageFailed", "CheckpointDropped", "TrialCancelled", "TrialStopped"}
"""Events after which a trial may have ended without a result."""


class Asker:
    """Requests trials of a study. `known` is the client's copy of it."""

    def __init__(self, http: Http, known: Known) -> None:
        self._http, self.known = http, known
        self._wanted: dict[tuple[str, int], PendingAsk] = {}
        self._asks: list[PendingAsk] = []
        self._pending: list[PendingAsk] = []
        self._partly: list[PendingAsk] = []  # of several repeats, not all of which may be measured
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_doubtful = self._is_struck = False

    async def close(self) -> None:
        """Stop waiting. Callers that still wait get `StudyOver`."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._fail(StudyOver("the connection to the study was closed"), self._open())

    async def refresh(self) -> None:
        """Fetch the state of the study and of all its trials."""
        self.known.study = await self._http.get(self._path, trials="false")
        self.known.take_all([trial async for trial in self._all_trials()])

    @property
    def _path(self) -> str:
        return path_of(self.known.study["study"])

    def _all_trials(self) -> AsyncIterator[Json]:
        return self._http.pages(f"{self._path}/trials")

    def ask(self, hp: Hp, step: int) -> PendingAsk:
        """Request a configuration at a step, or return the pending request. Raises `SequenceError`."""
        configuration = {name: parse(plain(value), name).to_json() for name, value in hp.items()}
        step = plain(step)
        place = configuration_key(configuration), step
        if place not in self._wanted:
            self._wanted[place] = PendingAsk(place[0], configuration, step, asyncio.get_running_loop().create_future())
            self._wanted[place].result.add_done_callback(_retrieve_exception)
            self._asks.append(self._wanted[place])
            self._start("ask", self._ask_server)
        return self._wanted[place]

    def _start(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a background task unless it is already running. It starts after the current call returns."""
        if name not in self._tasks or self._tasks[name].done():
            self._tasks[name] = asyncio.create_task(self._report_errors(run))

    async def _report_errors(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Report an error of the background task to all callers that wait for results."""
        try:
            await run()
        except Exception as error:
            self._fail(error, self._open())

    def _open(self) -> list[PendingAsk]:
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

    def _next_batch(self) -> list[PendingAsk]:
        """Each configuration once. A request for more steps waits for the trial that answers the first."""
        self._asks.sort(key=lambda ask: ask.step)
        first: dict[str, PendingAsk] = {}
        for ask in self._asks:
            first.setdefault(ask.key, ask)
        batch = list(first.values())[:_MOST]
        self._asks = [ask for ask in self._asks if ask not in batch]
        return batch

    async def _ask_one_by_one(self, batch: list[PendingAsk]) -> None:
        """Find the request that the server refused. If it refused to extend a trial, a new trial may work."""
        for ask in batch:
            try:
                if self.known.extendable(ask.key, ask.step) is not None:
                    with suppress(Conflict):
                        await self._ask_for([ask])
                        continue
                    del self.known.longest[ask.key]
                await self._ask_for([ask])
            except StagetreeError as error:
                self._fail(error, [ask])

    async def _ask_for(self, batch: list[PendingAsk]) -> None:
        endings = self.known.endings
        bodies = [self._body(ask) for ask in batch]
        answer = await self._http.post(f"{self._path}/trials:batch", {"trials": bodies})
        for ask, trial in zip(batch, answer["items"], strict=True):
            self._link_trial(ask, trial)
        if self._pending:
            self._start("listen", self._listen)
        if endings != self.known.endings:
            self._schedule_check()

    def _body(self, ask: PendingAsk) -> Json:
        number = self.known.extendable(ask.key, ask.step)
        return {"hp": ask.hp, "steps": ask.step} if number is None else {"trial": number, "steps": ask.step}

    def _link_trial(self, ask: PendingAsk, trial: Json) -> None:
        self.known.take(trial)
        if configuration_key(trial["hp"]) != ask.key:  # all was struck meanwhile, and its number is another one's
            self.known.longest.pop(ask.key, None)
            self._asks.append(ask)
            return
        ask.trial, ask.nodes = trial["trial"], last_nodes(trial)
        self._pending.append(ask)
        if not self._answer_by(ask, trial):
            self._handle_measurement(ask)
        self._end(ask, trial)

    def _answer_by(self, ask: PendingAsk, trial: Json) -> bool:
        """Whether the trial, with all its repeats, is measured at the requested step."""
        metrics = next((point["metrics"] for point in trial["curve"] if point["step"] == ask.step), None)
        if metrics is not None:
            self._answer(ask, metrics)
        return metrics is not None

    def _handle_measurement(self, ask: PendingAsk) -> None:
        """A measurement may complete a request. With repeats, only the server knows the mean."""
        if not any((node, ask.step) in self.known.metrics for node in ask.nodes):
            return
        if len(ask.nodes) == 1:
            self._answer(ask, self.known.metrics[ask.nodes[0], ask.step])
        else:
            self._partly.append(ask)
            self._start("means", self._look_at_means)

    async def _look_at_means(self) -> None:
        """Fetch trials whose repeats may all be measured. Results that another study measured earlier send no event."""
        while self._partly:
            ask = self._partly.pop()
            with suppress(NotFound):  # it was struck
                trial = await self._http.get(f"{self._path}/trials/{ask.trial}")
                if (
                    configuration_key(trial["hp"]) == ask.key
                    and ask in self._pending
                    and not self._answer_by(ask, trial)
                ):
                    self._end(ask, trial)  # any of them failed

    # Hearing

    async def _listen(self) -> None:
        """One event stream for all requests, until the study is over."""
        async for event in self._http.follow(f"{self._path}/events", self.known.position):
            self._hear(event)
        await self.refresh()
        self._fail(StudyOver(f"study {self.known.study['study']} is {self.known.study['state']}"), self._pending)

    def _hear(self, event: Json) -> None:
        self.known.position = event["position"]
        data = event["data"]
        if event["type"] == "Evaluated":
            place = data["node"], data["step"]
            self.known.metrics[place] = data["metrics"]
            for ask in [ask for ask in self._pending if ask.step == data["step"] and data["node"] in ask.nodes]:
                self._handle_measurement(ask)
        elif event["type"] == "StudyIsolated" and data["study"] == self.known.study["study"]:
            # The server discarded all trials and requests them again under other numbers. Earlier results are void: a
            # caller that asks again waits for the new ones.
            self._is_struck = True
            self.known.take_all([])
            self._wanted = {place: ask for place, ask in self._wanted.items() if not ask.result.done()}
            self._schedule_check()
        elif self._is_struck and data.get("reason", {}).get("by") == "user" and "path" in data:
            key, nodes = self.known.take_repeated_request(data)
            for ask in [ask for ask in self._pending if (ask.key, ask.step) == (key, data["steps"])]:
                ask.trial, ask.nodes = data["trial"], nodes
                self._handle_measurement(ask)
        elif event["type"] in _ENDINGS:
            self.known.endings += 1
            self._schedule_check()

    def _answer(self, ask: PendingAsk, metrics: Mapping[str, float | None]) -> None:
        value = metrics.get(self.known.study["metric"])
        if value is None:
            return self._schedule_check()
        if (trial := self.known.trials.get(ask.trial)) is not None:
            done = {"state": "completed"} if trial["steps"] == ask.step else {}
            self.known.trials[ask.trial] = {**trial, **done, "value": value}
        self._pending.remove(ask)
        if not ask.result.done():
            ask.result.set_result(Result(ask.trial, ask.step, value, metrics))
        return None

    def _schedule_check(self) -> None:
        """A trial has ended; check whether a request waits for it."""
        self._is_doubtful = True
        if self._pending:
            self._start("look", self._look)

    async def _look(self) -> None:
        while self._is_doubtful and self._pending:
            self._is_doubtful = False
            trials = {trial["trial"]: trial async for trial in self._all_trials()}
            for ask in list(self._pending):
                trial = trials.get(ask.trial)
                if trial is not None and configuration_key(trial["hp"]) == ask.key:  # else it was struck
                    self.known.take(trial)
                    self._end(ask, trial)

    def _end(self, ask: PendingAsk, trial: Json) -> None:
        if trial["state"] in ("failed", "cancelled", "pruned") and not ask.result.done():
            self._pending.remove(ask)
            ask.result.set_exception(TrialFailed(ask.trial, trial["state"], trial.get("error", "")))

    def _fail(self, error: Exception, asks: list[PendingAsk]) -> None:
        """Fail requests for a reason unrelated to their trials. Asking again retries them."""
        for ask in list(asks):
            self._wanted.pop((ask.key, ask.step), None)
            if ask in self._pending:
                self._pending.remove(ask)
            if not ask.result.done():
                ask.result.set_exception(error)


def _retrieve_exception(result: asyncio.Future[Result]) -> None:
    """Retrieve the exception, so that asyncio does not warn if the caller no longer waits."""
    if not result.cancelled():
        result.exception()
