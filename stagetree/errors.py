"""The exceptions of the client.

StagetreeError
├── Unreachable           no server answered
├── ProblemError          the server refused (RFC 9457): status, title, detail, errors
│   ├── NotFound          404
│   ├── Conflict          409, 412
│   └── Invalid           400, 422
├── TrialFailed           a trial failed, or was stopped or cancelled
├── StudyOver             the study is over, so there will be no result
└── FailedStudy           a study that a caller waited for has failed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any


class StagetreeError(Exception):
    """The base class of all exceptions of the client."""

    retry_after = 0.0
    """Seconds after which the server asked for a retry."""


class Unreachable(StagetreeError):
    """No server answered at the URL, or the connection broke."""

    def __init__(self, url: str, reason: object) -> None:
        super().__init__(f"no stagetree server answers at {url}: {reason}")
        self.url = url


class ProblemError(StagetreeError):
    """The server refused the request. `errors` lists the wrong fields as `{"field": ..., "problem": ...}`."""

    def __init__(self, status: int, title: str, detail: str = "", errors: Iterable[Mapping[str, Any]] = ()) -> None:
        self.status, self.title, self.detail, self.errors = status, title, detail, list(errors)
        fields = [f"{error.get('field')}: {error.get('problem')}" for error in self.errors]
        is_known = title in _titles(status)
        sentence = detail or title if is_known else ": ".join(filter(None, (title, detail)))
        super().__init__("\n".join(fields if fields and is_known else [sentence, *fields]))


def _titles(status: int) -> set[str]:
    """The old and new standard title of an HTTP status, which add nothing to the detail."""
    if status == HTTPStatus.UNPROCESSABLE_ENTITY:
        return {"Unprocessable Entity", "Unprocessable Content"}
    return {HTTPStatus(status).phrase} if status in set(HTTPStatus) else set()


class NotFound(ProblemError):
    """There is no such study, trial or route."""


class Conflict(ProblemError):
    """The present state of the study or trial does not allow the call."""


class Invalid(ProblemError):
    """The request is invalid; `errors` lists the fields."""


class TrialFailed(StagetreeError):
    """There will be no result: the trial failed, or was stopped or cancelled."""

    def __init__(self, trial: int, state: str, error: str) -> None:
        ended = "has failed" if state == "failed" else f"is {state}"
        super().__init__(f"trial {trial} {ended}" + (f": {error}" if error else ""))
        self.trial, self.state, self.error = trial, state, error


class StudyOver(StagetreeError):
    """There will be no result: the study is over."""


class FailedStudy(StagetreeError):
    """A study that a caller waited for has failed. study: its id. reason: why, as in `study.answer.error`."""

    def __init__(self, study: str, reason: str) -> None:
        super().__init__(f"study {study} has failed: {reason}")
        self.study, self.reason = study, reason
