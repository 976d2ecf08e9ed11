"""A small synchronous client of the REST interface under `/api/v1`.

    with Client() as client:
        study = client.submit(StudySpec.from_file("study.yaml"))
        for event in client.follow(study["id"]):
            ...

Errors:

    StagetreeError
    ├── Unreachable           no server answered
    └── ProblemError          the server refused (RFC 9457): status, title, detail, errors
        ├── NotFound          404
        ├── Conflict          409, 412
        └── Invalid           400, 422

What failed on the way, or was refused with 429 or 5xx, is tried again with growing pauses. That is safe for POST too:
each logical call carries one `Idempotency-Key`, so the server does it once.
"""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import httpx2

    from stagetree.spec import StudySpec

__all__ = ["Client", "Conflict", "Invalid", "NotFound", "ProblemError", "StagetreeError", "Unreachable"]

Json = dict[str, Any]

DEFAULT_URL = "http://127.0.0.1:8000"
_TRY_AGAIN = {408, 429, 500, 502, 503, 504}
API = "/api/v1"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
SILENCE = 60.0
"""A stream of events that says nothing for so long, not even that it is there, is taken for dead. In seconds."""


class StagetreeError(Exception):
    """What the client raises."""

    retry_after = 0.0
    """How many seconds the server asked to be left alone for."""


class Unreachable(StagetreeError):
    """No server answered at the URL, or the connection broke."""

    def __init__(self, url: str, reason: object) -> None:
        super().__init__(f"no stagetree server answers at {url}: {reason}")
        self.url = url


class ProblemError(StagetreeError):
    """The server's refusal. `errors` lists what is wrong with each field, as `{"field": ..., "problem": ...}`."""

    def __init__(self, status: int, title: str, detail: str = "", errors: Iterable[Json] = ()) -> None:
        self.status, self.title, self.detail, self.errors = status, title, detail, list(errors)
        fields = [f"{error.get('field')}: {error.get('problem')}" for error in self.errors]
        super().__init__("\n".join([": ".join(filter(None, (title, detail))), *fields]))


class NotFound(ProblemError):
    """There is no such study, trial or route."""


class Conflict(ProblemError):
    """The present state does not allow it."""


class Invalid(ProblemError):
    """The request is wrong in itself."""


_PROBLEMS: dict[int, type[ProblemError]] = {400: Invalid, 404: NotFound, 409: Conflict, 412: Conflict, 422: Invalid}


class Client:
    """Talks to the server at `url`, or else at `$STAGETREE_URL`, or else on this machine.

    `timeout` is in seconds, for each try; `retries` is how often a call is tried again.
    """

    def __init__(self, url: str | None = None, timeout: float = 30.0, *, retries: int = 4) -> None:
        import httpx2

        self.url = server_url(url)
        self._timeout, self._retries = timeout, retries
        try:
            self._http = httpx2.Client(base_url=self.url, timeout=timeout, headers={"Accept": "application/json"})
        except httpx2.InvalidURL as error:
            raise Unreachable(self.url, error) from None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # Studies

    def submit(self, spec: StudySpec | Mapping[str, Any], idempotency_key: str | None = None) -> Json:
        """Submit a study. The same `idempotency_key` twice is one study."""
        return self._post("/studies", body_of(spec), idempotency_key)

    def preview(self, spec: StudySpec | Mapping[str, Any], *, slots: int = 1) -> Json:
        """What a study would cost on so many slots; runs nothing."""
        return self._post(f"/studies:preview?slots={slots}", body_of(spec))

    def studies(self, *, limit: int = 100) -> Iterator[Json]:
        """All studies, `limit` to a request."""
        return self._pages("/studies", limit)

    def study(self, study: str, *, trials: bool = True) -> Json:
        """One study with its results so far; without its trials for less to carry."""
        return self._get(path_of(study), trials=str(trials).lower())

    def pause(self, study: str) -> Json:
        """Start nothing new for the study until it is resumed."""
        return self._post(f"{path_of(study)}:pause")

    def resume(self, study: str) -> Json:
        """Go on with a paused study."""
        return self._post(f"{path_of(study)}:resume")

    def reopen(self, study: str, num_trials: int) -> Json:
        """Go on with a completed study, with so many trials in all."""
        return self._post(f"{path_of(study)}:reopen?num_trials={num_trials}")

    def cancel(self, study: str) -> Json:
        """End the study for good."""
        return self._post(f"{path_of(study)}:cancel")

    def complete(self, study: str) -> Json:
        """End a study of the kind `external`, which has got all it was asked for."""
        return self._post(f"{path_of(study)}:complete")

    def replay(self, study: str, at: int | None = None) -> Json:
        """Decide again from the study's events, up to one of them, and compare with what was decided."""
        return self._post(f"{path_of(study)}:replay" + (f"?at={at}" if at is not None else ""))

    def log(self, study: str) -> str:
        """The whole log of the study's plan, one event a line."""
        return self._send("GET", f"{API}{path_of(study)}/log").text

    def plan(self, study: str) -> Json:
        """The search plan the study is part of."""
        return self._get(f"{path_of(study)}/plan")

    def stage_tree(self, study: str) -> Json:
        """The stages that are outstanding."""
        return self._get(f"{path_of(study)}/stage-tree")

    # Trials

    def trials(self, study: str, *, limit: int = 1000) -> Iterator[Json]:
        """All trials of a study, `limit` to a request."""
        return self._pages(f"{path_of(study)}/trials", limit)

    def trial(self, study: str, number: int) -> Json:
        """One trial."""
        return self._get(f"{path_of(study)}/trials/{number}")

    def trial_log(self, study: str, number: int) -> str:
        """What a trial printed while it was trained."""
        return self._send("GET", f"{API}{path_of(study)}/trials/{number}/log").text

    def add_trial(self, study: str, hp: Mapping[str, Any], steps: int) -> Json:
        """Ask for one more trial: `hp` maps names to sequences, or to their JSON."""
        from stagetree.space import plain

        return self._post(f"{path_of(study)}/trials", {"hp": plain(hp), "steps": steps})

    def extend_trial(self, study: str, number: int, steps: int) -> Json:
        """Ask for a trial of your own to be trained longer, to so many steps in all."""
        return self._post(f"{path_of(study)}/trials/{number}:extend", {"steps": steps})

    def ask_trials(self, study: str, trials: Iterable[Mapping[str, Any]]) -> list[Json]:
        """Ask for many at once, all or nothing: `{hp, steps}` is a new trial, `{trial, steps}` more of one there is."""
        from stagetree.space import plain

        answer = self._post(f"{path_of(study)}/trials:batch", {"trials": [plain(trial) for trial in trials]})
        return list(answer["items"])

    def cancel_trial(self, study: str, number: int) -> None:
        """Want no more of a trial."""
        self._send("DELETE", f"{API}{path_of(study)}/trials/{number}")

    # Events

    def events(self, study: str, after: int = 0, *, limit: int = 1000) -> Iterator[Json]:
        """What has happened to the study so far, after the event with number `after`."""
        return self._pages(f"{path_of(study)}/events", limit, after=after)

    def follow(self, study: str, after: int = 0) -> Iterator[Json]:
        """What has happened after event number `after`, then what happens from now on, as in `events`.

        A broken connection is made again after the last event received; when that fails too often in a row, the error
        is raised. The stream is over when the server sends the event "end", or answers 204.
        """
        connections = failures = 0  # since the last event
        while True:
            connections += 1
            try:
                for event in self._stream(study, after):
                    connections = failures = 0
                    if event.event == "end":
                        return
                    after = int(event.id or after)
                    if event.data:
                        yield _json(event.data)
            except (Unreachable, ProblemError) as error:
                failures += 1
                if failures > self._retries or not is_passing(error):
                    raise
            except StreamOver:
                return
            time.sleep(pause_after(connections))

    def _stream(self, study: str, after: int) -> Iterator[httpx2.ServerSentEvent]:
        """One connection's events. It may end, or break, at any time."""
        import httpx2

        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        timeout = httpx2.Timeout(self._timeout, read=SILENCE)
        url = f"{API}{path_of(study)}/events"
        try:
            with self._http.stream("GET", url, params={"after": after}, headers=headers, timeout=timeout) as response:
                if response.status_code == 204:
                    raise StreamOver
                if response.is_error:
                    response.read()
                    raise problem_of(response)
                yield from httpx2.EventSource(response)
        except httpx2.TransportError as error:
            raise Unreachable(self.url, error) from None

    # Service

    def slots(self) -> list[Json]:
        """The slots, and what they do."""
        return list(self._pages("/slots", 1000))

    def trainers(self) -> list[Json]:
        """The trainers that studies may name, each with its version."""
        return list(self._pages("/trainers", 1000))

    def health(self) -> Json:
        """Whether the server is there."""
        return self._get("/healthz", root="")

    # How it is done

    def _get(self, path: str, root: str = API, **params: Any) -> Json:
        return object_of(self._send("GET", root + path, params=params))

    def _post(self, path: str, body: Json | None = None, idempotency_key: str | None = None) -> Json:
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return object_of(self._send("POST", API + path, json=body, headers=headers))

    def _pages(self, path: str, limit: int, **params: Any) -> Iterator[Json]:
        cursor: Json = {}
        while True:
            page = self._get(path, limit=limit, **params, **cursor)
            yield from page["items"]
            if page.get("next_cursor") is None:
                return
            cursor = {"cursor": page["next_cursor"]}

    def _send(self, method: str, url: str, **options: Any) -> httpx2.Response:
        """One logical call, tried until it succeeds, is refused for good, or has failed too often."""
        for attempt in count(1):
            try:
                return self._try(method, url, **options)
            except (Unreachable, ProblemError) as error:
                if attempt > self._retries or not is_passing(error):
                    raise
                time.sleep(max(pause_after(attempt), error.retry_after))
        raise AssertionError

    def _try(self, method: str, url: str, **options: Any) -> httpx2.Response:
        import httpx2

        try:
            response = self._http.request(method, url, **options)
        except httpx2.TransportError as error:
            raise Unreachable(self.url, error) from None
        if not response.is_success:
            raise problem_of(response)
        return response


class StreamOver(Exception):
    """The server has no more events, now or later."""


# By these rules `stagetree._async_client` goes, too.


def server_url(url: str | None) -> str:
    """The server that is meant: the one named, or the environment's, or the one on this machine."""
    return (url or os.environ.get("STAGETREE_URL") or DEFAULT_URL).rstrip("/")


def path_of(study: str) -> str:
    """Where a study is."""
    return f"/studies/{quote(study, safe='')}"


def body_of(spec: StudySpec | Mapping[str, Any]) -> Json:
    """The JSON of a study."""
    from stagetree.space import plain

    body: Json = plain(spec) if isinstance(spec, Mapping) else spec.to_json()
    return body


def object_of(response: httpx2.Response) -> Json:
    """The JSON object that the server answered."""
    if not response.content:
        return {}
    return _json(response.text)


def _json(text: str) -> Json:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise StagetreeError(f"this is not a stagetree server: it answered {text[:200]!r}")
    return value


def problem_of(response: httpx2.Response) -> ProblemError:
    """The error that a response stands for, problem+json or not."""
    try:
        body = _json(response.text)
    except StagetreeError:
        body = {"detail": _outline(response)}
    title = str(body.get("title") or f"HTTP {response.status_code} {response.reason_phrase}")
    errors = [error for error in body.get("errors") or () if isinstance(error, dict)]
    cls = _PROBLEMS.get(response.status_code, ProblemError)
    problem = cls(response.status_code, title, str(body.get("detail") or ""), errors)
    problem.retry_after = _seconds(response.headers.get("Retry-After", ""))
    return problem


def _outline(response: httpx2.Response) -> str:
    """What a server that is not stagetree's says, as far as it is for people to read."""
    if "html" in response.headers.get("Content-Type", ""):
        return f"what answers at {response.url} is another kind of server, or one in front of stagetree's"
    return " ".join(response.text[:200].split())


def _seconds(text: str) -> float:
    return min(float(text), _LONGEST_PAUSE) if text.isdecimal() else 0.0


def is_passing(error: Unreachable | ProblemError) -> bool:
    """Whether the same call may succeed in a while."""
    return isinstance(error, Unreachable) or error.status in _TRY_AGAIN


def pause_after(failures: int) -> float:
    """How long to wait after so many failures in a row: twice as long each time, and never all clients together."""
    longest = min(_FIRST_PAUSE * 2.0**failures, _LONGEST_PAUSE)
    return longest * random.uniform(0.5, 1)
