"""A client of the REST interface under `/api/v1`, with and without `await`.

    with Client() as client:
        study = client.submit(StudySpec.from_file("study.yaml"))
        print([event.type for event in client.follow(study.study)])

Answers are of `stagetree.models`, errors of `stagetree.errors`. A call that fails is retried, and takes effect once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stagetree import models
from stagetree.client.blocking import Blocking, blocking, blocking_iterator
from stagetree.client.http import API, Http, Json, path_of
from stagetree.client.study_json import Folder, body_of
from stagetree.client.trial_composition import MakesTrials, TakesRemarks

if TYPE_CHECKING:
    from stagetree.spec import StudySpec

Holds = Literal["weights", "state"]
"""The content of a file: a model's weights by name, or a whole checkpoint."""


class AsyncClient(MakesTrials, TakesRemarks):
    """A client of the server at `url`, or else at `$STAGETREE_URL`, or else on this machine.

    timeout: seconds for each try. retries: how often a call is tried again. token: by default that of
    `$STAGETREE_TOKEN`, or of the file `~/.config/stagetree/token`. is_agent: the log names an agent as the caller."""

    def __init__(
        self,
        url: str | None = None,
        timeout: float = 30.0,
        *,
        retries: int = 4,
        token: str | None = None,
        transport: Any = None,
        is_agent: bool = False,
    ) -> None:
        self.http = Http(url, timeout, retries, token, transport, is_agent=is_agent)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self.http.url

    async def close(self) -> None:
        """Close the connections."""
        await self.http.close()

    # Studies

    async def submit(
        self, spec: StudySpec | Mapping[str, Any], idempotency_key: str | None = None, project: str | None = None
    ) -> models.StudyAnswer:
        """Submit a study, to a `project` if not that of your token. Calls with one `idempotency_key` make one study."""
        answer = await self.http.post("/studies", body_of(spec), idempotency_key, project=project)
        return models.StudyAnswer.from_json(answer)

    async def preview(self, spec: StudySpec | Mapping[str, Any], *, slots: int = 1) -> models.Preview:
        """What a study would cost and save on `slots` slots. Runs nothing."""
        return models.Preview.from_json(await self.http.post("/studies:preview", body_of(spec), slots=slots))

    async def studies(self, *, limit: int = 100, state: Iterable[str] = ()) -> AsyncIterator[models.StudyListed]:
        """All studies, or only the ones in the given states, newest first; `limit` of them per request."""
        async for item in self.http.pages("/studies", limit, state=list(state) or None):
            yield models.StudyListed.from_json(item)

    async def study(self, study: str, *, trials: bool = True) -> models.StudyAnswer:
        """One study with its results so far; with `trials=False` the answer is smaller, without its trials."""
        return models.StudyAnswer.from_json(await self.http.get(path_of(study), trials=str(trials).lower()))

    async def pause(self, study: str) -> models.StudyAnswer:
        """Pause a study: start no stage for it until it is resumed."""
        return await self._change(study, "pause")

    async def resume(self, study: str) -> models.StudyAnswer:
        """Resume a paused study."""
        return await self._change(study, "resume")

    async def reopen(self, study: str, num_trials: int) -> models.StudyAnswer:
        """Reopen a completed study, with `num_trials` trials in all."""
        return await self._change(study, "reopen", num_trials=num_trials)

    async def audit(self, study: str) -> models.StudyAnswer:
        """Train each trial that shares steps again, alone, and compare; `exactness` of the study has the verdict."""
        return await self._change(study, "audit")

    async def cancel(self, study: str) -> models.StudyAnswer:
        """Cancel a study for good."""
        return await self._change(study, "cancel")

    async def delete(self, study: str) -> None:
        """Delete a study that is over, and all that is kept for it alone. It is not listed any more."""
        await self.http.send("DELETE", API + path_of(study))

    async def checkpoint(
        self,
        study: str,
        to: Folder = ".",
        *,
        trial: int | None = None,
        step: int | None = None,
        holds: Holds = "weights",
    ) -> Path:
        """Write the weights of a trial to a safetensors file in the folder `to`, and return its path.

        By default of the best trial, at its best step. `load_state` reads a whole state. Raises `NotFound`.
        """
        query = {"trial": trial, "step": step, "holds": holds}
        return await self.http.download(f"{path_of(study)}/checkpoint", Path(to), query)

    async def complete(self, study: str) -> models.StudyAnswer:
        """Complete a study of the kind `external`. Raises `Conflict` while trials are under way."""
        return await self._change(study, "complete")

    async def _change(self, study: str, verb: str, **params: Any) -> models.StudyAnswer:
        return models.StudyAnswer.from_json(await self.http.post(f"{path_of(study)}:{verb}", **params))

    async def replay(self, study: str, at: int | None = None) -> models.Replay:
        """Derive the decisions again from the study's events, up to event `at`, and compare with the recorded ones."""
        return models.Replay.from_json(await self.http.post(f"{path_of(study)}:replay", at=at))

    async def log(self, study: str) -> str:
        """The whole log of the study's plan, one event per line."""
        return (await self.http.send("GET", f"{API}{path_of(study)}/log")).text

    async def report(self, study: str, *, public: bool = False, url: str = "") -> str:
        """The study as one HTML file.

        public: leave out paths, hosts, addresses and names. url: the URL at which the file will be.
        """
        query = {"public": public, "url": url}
        return (await self.http.send("GET", f"{API}{path_of(study)}/report", params=query)).text

    async def film(self, study: str, kind: str = "svg", *, public: bool = False) -> bytes:
        """A film of ten seconds of how the study went, as an svg or a gif; its end as a png."""
        return (await self.http.send("GET", f"{API}{path_of(study)}/film?format={kind}&public={public}")).content

    async def plan(self, study: str) -> models.Plan:
        """The search plan that the study is part of."""
        return models.Plan.from_json(await self.http.get(f"{path_of(study)}/plan"))

    async def environment(self, study: str) -> Json:
        """What the study is trained with, by kind of device: packages, driver, commit of the trainer."""
        return await self.http.get(f"{path_of(study)}/environment")

    async def stage_tree(self, study: str) -> models.StageTree:
        """The stage tree: the stages that are outstanding now."""
        return models.StageTree.from_json(await self.http.get(f"{path_of(study)}/stage-tree"))

    # Trials

    async def trials(self, study: str, *, limit: int = 1000) -> AsyncIterator[models.Trial]:
        """All trials of a study; `limit` of them per request."""
        async for item in self.http.pages(f"{path_of(study)}/trials", limit):
            yield models.Trial.from_json(item)

    async def trial(self, study: str, number: int) -> models.TrialDetail:
        """One trial, with its curve."""
        return models.TrialDetail.from_json(await self.http.get(f"{path_of(study)}/trials/{number}"))

    async def trial_log(self, study: str, number: int) -> str:
        """The output of a trial's training."""
        return (await self.http.send("GET", f"{API}{path_of(study)}/trials/{number}/log")).text

    async def logged(self, study: str, number: int) -> list[models.LoggedPoint]:
        """The values that a trial's trainer logged, in order of steps."""
        answer = await self.http.get(f"{path_of(study)}/trials/{number}/metrics")
        return [models.LoggedPoint.from_json(item) for item in answer["items"]]

    async def add_trial(self, study: str, hp: Mapping[str, Any], steps: int) -> models.TrialDetail:
        """Ask for one more trial: `hp` maps names to sequences, or to their JSON."""
        answer = await self.http.post(f"{path_of(study)}/trials", {"hp": hp, "steps": steps})
        return models.TrialDetail.from_json(answer)

    async def extend_trial(self, study: str, number: int, steps: int) -> models.TrialDetail:
        """Ask for a trial of your own to be trained longer, to `steps` steps in all."""
        answer = await self.http.post(f"{path_of(study)}/trials/{number}:extend", {"steps": steps})
        return models.TrialDetail.from_json(answer)

    async def ask_trials(self, study: str, trials: Iterable[Mapping[str, Any]]) -> list[models.TrialDetail]:
        """Ask for many at once, all or none: `{hp, steps}` is a new trial, `{trial, steps}` extends an existing one."""
        answer = await self.http.post(f"{path_of(study)}/trials:batch", {"trials": list(trials)})
        return [models.TrialDetail.from_json(item) for item in answer["items"]]

    async def retry_trial(self, study: str, number: int) -> models.TrialDetail:
        """Retry a failed trial; a study that is over is reopened for it. Raises `Conflict` if it has not failed."""
        return models.TrialDetail.from_json(await self.http.post(f"{path_of(study)}/trials/{number}:retry"))

    async def cancel_trial(self, study: str, number: int) -> None:
        """Cancel a trial."""
        await self.http.send("DELETE", f"{API}{path_of(study)}/trials/{number}")

    async def events(self, study: str, after: int = 0, *, limit: int = 1000) -> AsyncIterator[models.Event]:
        """The recorded events of the study after event number `after`."""
        async for item in self.http.pages(f"{path_of(study)}/events", limit, after=after):
            yield models.Event.from_json(item)

    async def follow(self, study: str, after: int = 0) -> AsyncIterator[models.Event]:
        """The events after event number `after`, and then each new one as it happens, until the study is over.

        After a broken connection it resumes behind the last event. Raises the last error after many failures in a row.
        """
        async with aclosing(self.http.follow(f"{path_of(study)}/events", after)) as items:
            async for item in items:
                yield models.Event.from_json(item)

    async def slots(self, *, estimates: bool = False) -> list[models.Slot]:
        """The slots, and the work of each; with `estimates`, also the error of the estimates of its stages."""
        return [models.Slot.from_json(item) async for item in self.http.pages("/slots", estimates=estimates or None)]

    async def release_slot(self, slot: str) -> None:
        """End the quarantine of a slot. Raises `NotFound`."""
        await self.http.send("POST", f"{API}/slots/{slot}:release")

    async def trainers(self) -> list[models.TrainerListed]:
        """The trainers that studies may name, each with its version."""
        return [models.TrainerListed.from_json(item) async for item in self.http.pages("/trainers")]

    async def health(self) -> Json:
        """The health of the server. Raises `Unreachable` if it does not answer."""
        return await self.http.get("/healthz", root="")

    async def ready(self) -> None:
        """Return if the service can work. Raises `ProblemError`, which says why not. Asks once, without retries."""
        await self.http.once("GET", "/readyz")


class Client(Blocking):
    """`AsyncClient` without `await`: each call returns when it is done."""

    _core: AsyncClient

    def __init__(
        self, url: str | None = None, timeout: float = 30.0, *, retries: int = 4, token: str | None = None
    ) -> None:
        async def make() -> AsyncClient:
            return AsyncClient(url, timeout, retries=retries, token=token)

        super().__init__(make)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._core.url

    submit = blocking(AsyncClient.submit)
    preview = blocking(AsyncClient.preview)
    studies = blocking_iterator(AsyncClient.studies)
    study = blocking(AsyncClient.study)
    audit = blocking(AsyncClient.audit)
    pause = blocking(AsyncClient.pause)
    resume = blocking(AsyncClient.resume)
    reopen = blocking(AsyncClient.reopen)
    cancel = blocking(AsyncClient.cancel)
    complete = blocking(AsyncClient.complete)
    delete = blocking(AsyncClient.delete)
    checkpoint = blocking(AsyncClient.checkpoint)
    replay = blocking(AsyncClient.replay)
    log = blocking(AsyncClient.log)
    report = blocking(AsyncClient.report)
    film = blocking(AsyncClient.film)
    plan = blocking(AsyncClient.plan)
    environment = blocking(AsyncClient.environment)
    stage_tree = blocking(AsyncClient.stage_tree)
    add_note = blocking(AsyncClient.add_note)
    correct_note = blocking(AsyncClient.correct_note)
    label = blocking(AsyncClient.label)
    trials = blocking_iterator(AsyncClient.trials)
    trial = blocking(AsyncClient.trial)
    trial_log = blocking(AsyncClient.trial_log)
    logged = blocking(AsyncClient.logged)
    add_trial = blocking(AsyncClient.add_trial)
    extend_trial = blocking(AsyncClient.extend_trial)
    ask_trials = blocking(AsyncClient.ask_trials)
    branch_trial = blocking(AsyncClient.branch_trial)
    average_trials = blocking(AsyncClient.average_trials)
    price_trial = blocking(AsyncClient.price_trial)
    price_suggestions = blocking(AsyncClient.price_suggestions)
    suggest = blocking(AsyncClient.suggest)
    suggestions = blocking(AsyncClient.suggestions)
    withdraw = blocking(AsyncClient.withdraw)
    sampler = blocking(AsyncClient.sampler)
    retry_trial = blocking(AsyncClient.retry_trial)
    cancel_trial = blocking(AsyncClient.cancel_trial)
    events = blocking_iterator(AsyncClient.events)
    follow = blocking_iterator(AsyncClient.follow)
    slots = blocking(AsyncClient.slots)
    release_slot = blocking(AsyncClient.release_slot)
    trainers = blocking(AsyncClient.trainers)
    health = blocking(AsyncClient.health)
    ready = blocking(AsyncClient.ready)
