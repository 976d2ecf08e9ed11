"""Client calls for branches and averages of trials, suggestions, notes and tags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stagetree.client.http import API, Http, Json, path_of
from stagetree.client.trial_requests import Hp
from stagetree.models import Branch, Event, Note, SamplerState, StudyAnswer, Suggestion


class MakesTrials:
    """The calls of a client for branches, averages and suggestions."""

    http: Http

    async def branch_trial(self, study: str, branch: Json, *, preview: bool = False) -> Branch:
        """Branch off a trial: `trial`, `at`, `hp`, `steps`. With `preview`, only return the cost."""
        path = f"{path_of(study)}/trials:branch"
        return Branch.from_json(await self.http.post(path, branch, preview=preview or None))

    async def average_trials(self, study: str, average: Json, *, preview: bool = False) -> Branch:
        """Average trials: `trials` or `best`, and optionally `last`, `weights`, `steps`, `hp`. As `branch_trial`."""
        path = f"{path_of(study)}/trials:average"
        return Branch.from_json(await self.http.post(path, average, preview=preview or None))

    async def price_trial(self, study: str, hp: Hp, steps: int) -> Branch:
        """The price of a trial of your own, in steps. Runs nothing."""
        return Branch.from_json(await self.http.post(f"{path_of(study)}/trials:price", {"hp": hp, "steps": steps}))

    async def price_suggestions(self, study: str, suggestions: Iterable[Json]) -> Branch:
        """The price of suggestions, in steps, if each were trained to the end of the study. Runs nothing."""
        request = {"suggestions": [dict(each) for each in suggestions]}
        return Branch.from_json(await self.http.post(f"{path_of(study)}/suggestions:price", request))

    async def suggest(self, study: str, suggestions: Iterable[Json]) -> list[Suggestion]:
        """Suggest configurations, whole or in part, which take the next places of the study's tuner: all or nothing."""
        request = {"suggestions": [dict(each) for each in suggestions]}
        answer = await self.http.post(f"{path_of(study)}/suggestions", request)
        return [Suggestion.from_json(item) for item in answer["items"]]

    async def suggestions(self, study: str) -> list[Suggestion]:
        """All suggestions to a study, each with its trial, once that has begun."""
        answer = await self.http.get(f"{path_of(study)}/suggestions")
        return [Suggestion.from_json(item) for item in answer["items"]]

    async def sampler(self, study: str, at: int | None = None) -> SamplerState:
        """The observations of a study's sampler and its next proposal; with `at`, as of that event."""
        moment: Json = {} if at is None else {"at": at}
        return SamplerState.from_json(await self.http.get(f"{path_of(study)}/sampler", **moment))

    async def withdraw(self, study: str, suggestion: int) -> None:
        """Withdraw a suggestion by its number. Raises `Conflict` if a trial has already begun with it."""
        await self.http.send("DELETE", f"{API}{path_of(study)}/suggestions/{suggestion}")


class TakesRemarks:
    """The calls of a client for notes and tags."""

    http: Http

    async def add_note(self, study: str, text: str, trial: int | None = None) -> Event:
        """Add a note to a study, or to a trial of it."""
        return Event.from_json(await self.http.post(f"{path_of(study)}/notes", {"text": text, "trial": trial}))

    async def correct_note(self, study: str, event: int, text: str) -> Note:
        """Replace the text of the note that `event` added; the log keeps both."""
        return Note.from_json(await self.http.post(f"{path_of(study)}/notes/{event}:correct", {"text": text}))

    async def label(
        self,
        study: str,
        add: Iterable[str] = (),
        remove: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
    ) -> StudyAnswer:
        """Add and remove tags of a study, and set attributes; None as a value removes one."""
        request = {"add": list(add), "remove": list(remove), "attributes": dict(attributes or {})}
        return StudyAnswer.from_json(await self.http.post(f"{path_of(study)}:label", request))


class MadeOfTrials:
    """The methods of a study for branches, averages and suggestions. A subclass has `_client` and `id`."""

    _client: MakesTrials

    @property
    def id(self) -> str:
        """The study's id."""
        raise NotImplementedError

    async def branch(
        self, trial: int, /, *, at: int, steps: int, hp: Hp | None = None, preview: bool = False, **values: Any
    ) -> Branch:
        """Branch off a trial after step `at`, to `steps` steps in all, with other values from there on.

        lr=...: a sequence whose own t is 0 there, or a value; `hp` takes names that cannot be keyword arguments. With
        `preview`, only the cost is returned. A study that is over is reopened for it.

        Raises `Conflict`, `Invalid`, `NotFound`.
        """
        request = {"trial": trial, "at": at, "steps": steps, "hp": {**(hp or {}), **values}}
        return await self._client.branch_trial(self.id, request, preview=preview)

    async def suggest(self, hp: Hp | None = None, /, **values: Any) -> Suggestion:
        """Suggest a configuration to the study's tuner, which tries it next. The sampler chooses missing values.

        lr=...: a sequence or a value; `hp` takes names that cannot be keyword arguments, and places inside the space
        such as `lr.init`. Raises `Invalid` for values outside of it, and `Conflict` if the study takes no more trials.
        """
        (suggestion,) = await self._client.suggest(self.id, [{**(hp or {}), **values}])
        return suggestion

    async def sampler(self, at: int | None = None) -> SamplerState:
        """How much the study's sampler knows, and its next proposal; with `at`, as of that event."""
        return await self._client.sampler(self.id, at)

    async def withdraw(self, suggestion: int) -> None:
        """Withdraw a suggestion by its number. Raises `Conflict` if its trial has begun."""
        await self._client.withdraw(self.id, suggestion)

    async def soup(
        self,
        trials: Iterable[int] = (),
        /,
        *,
        best: int | None = None,
        last: int | None = None,
        weights: Iterable[float] = (),
        steps: int | None = None,
        hp: Hp | None = None,
        preview: bool = False,
    ) -> Branch:
        """Average the weights of `trials`, or of the `best` ones, into a new trial, which is evaluated.

        best: how many of the best trials. last: how many of the last states that are kept of one trial. weights: one
        for each state; by default equal. With `steps`, the average is trained to that many steps in all, from there on
        with the values in `hp`. With `preview`, only the cost is returned. A study that is over is reopened for it.
        Raises as `branch` does.
        """
        request: Json = {
            "trials": list(trials),
            "best": best,
            "last": last,
            "weights": [float(each) for each in weights],
        }
        request |= {"steps": steps, "hp": dict(hp or {})}
        return await self._client.average_trials(self.id, request, preview=preview)
