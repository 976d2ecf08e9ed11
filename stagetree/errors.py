"""What can go wrong between a program and a server.

StagetreeError
├── Unreachable           no server answered
├── ProblemError          the server refused (RFC 9457): status, title, detail, errors
│   ├── NotFound          404
│   ├── Conflict          409, 412
│   └── Invalid           400, 422
├── TrialFailed           a trial failed, or was stopped or cancelled
├── StudyOver             nothing more comes: the study is over
└── FailedStudy           a study that was waited for has failed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

__all__ = [
    "Conflict",
    "FailedStudy",
    "Invalid",
    "NotFound",
    "ProblemError",
    "StagetreeError",
    "StudyOver",
    "TrialFailed",
    "Unreachable",
]


class StagetreeError(Exception):
    """The base class of all that the client raises."""

    retry_after = 0.0
    """How many seconds the server asked to be left alone for."""


class Unreachable(StagetreeError):
    """No server answered at the URL, or the connection broke."""

    def __init__(self, url: str, reason: object) -> None:
        super().__init__(f"no stagetree server answers at {url}: {reason}")
        self.url = url


class ProblemError(StagetreeError):
    """The server's refusal. `errors` lists what is wrong with each field, as `{"field": ..., "problem": ...}`."""

    def __init__(self, status: int, title: str, detail: str = "", errors: Iterable[Mapping[str, Any]] = ()) -> None:
        self.status, self.title, self.detail, self.errors = status, title, detail, list(errors)
        fields = [f"{error.get('field')}: {error.get('problem')}" for error in self.errors]
        is_known = title in _titles(status)
        sentence = detail or title if is_known else ": ".join(filter(None, (title, detail)))
        super().__init__("\n".join(fields if fields and is_known else [sentence, *fields]))


def _titles(status: int) -> set[str]:
    """What HTTP calls a status, by its old and its new name: it says nothing that the detail does not."""
    if status == HTTPStatus.UNPROCESSABLE_ENTITY:
        return {"Unprocessable Entity", "Unprocessable Content"}
    return {HTTPStatus(status).phrase} if status in set(HTTPStatus) else set()


class NotFound(ProblemError):
    """There is no such study, trial or route."""


class Conflict(ProblemError):
    """The present state of the study or trial does not allow the call."""


class Invalid(ProblemError):
    """The request itself is wrong; `errors` says in which fields."""


class TrialFailed(StagetreeError):
    """There will be no result: the trial failed, or was stopped or cancelled."""

    def __init__(self, trial: int, state: str, error: str) -> None:
        ended = "has failed" if state == "failed" else f"is {state}"
        super().__init__(f"trial {trial} {ended}" + (f": {error}" if error else ""))
        self.trial, self.state, self.error = trial, state, error


class StudyOver(StagetreeError):
    """There will be no result: the study is over."""


class FailedStudy(StagetreeError):
    """A study that was waited for has failed. study: its id. reason: why, as in `study.answer.error`."""

    def __init__(self, study: str, reason: str) -> None:
        super().__init__(f"study {study} has failed: {reason}")
        self.study, self.reason = study, reason
