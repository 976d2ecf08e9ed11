"""A webhook: a JSON POST when a study is over, when its first trial has failed, and when it stalls.

It polls the study instead of reading events, because a stall causes none. Its address is a credential, so study files
cannot contain one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from stagetree.sinks.base import Json, Key, SinkError, errors_of
from stagetree.sinks.follower import Ledger, StudySource, document_of, ledger_path
from stagetree.text import FINAL, rough_duration

LOOK_SECONDS = 5.0
POST_SECONDS = 10.0

STILL_SECONDS = 600.0
"""A running study without changes for this long is stalled. A step may take as long."""

WAITING_SECONDS = 60.0
"""The same if the study reports a cause."""


@dataclass(frozen=True)
class News:
    """A message about a study. kind: `over`, `failed` or `standstill`. mark: its name among messages of its kind."""

    study: Json
    kind: str
    text: str
    mark: str

    @property
    def key(self) -> Key:
        return ("news", self.kind, self.mark)

    @property
    def body(self) -> Json:
        """The JSON that is posted. A repeated message has the same `id`."""
        about = {name: self.study.get(name) for name in ("study", "name", "state", "metric", "best", "counts", "steps")}
        return {"text": self.text, "event": self.kind, "id": f"{about['study']}/{self.kind}/{self.mark}", **about}


@dataclass
class _Standstill:
    """Detects that a study has not changed for some time."""

    clock: Callable[[], float]
    _before: Any = None
    _since: float = 0.0

    def news(self, study: Json) -> Iterator[News]:
        """One message per stall, with its cause."""
        waits = "; ".join(study.get("waits_for", ()))
        now, looks = self.clock(), (study["progress"] | {"seconds_left": None}, study["state"], waits)
        if looks != self._before:
            self._before, self._since = looks, now
        elif study["state"] == "running" and now - self._since >= (WAITING_SECONDS if waits else STILL_SECONDS):
            why = waits or f"nothing new for {rough_duration(now - self._since)}"
            yield News(study, "standstill", f"{study['study']} stands still: {why}", f"{self._since:.0f}")


@dataclass
class Webhook:
    """Posts to `url`. `folder` holds the list of posted messages; `sleep` and `clock` are replaced in tests."""

    url: str
    folder: Path
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = field(default=time.monotonic)

    def watch(self, source: StudySource, study: str) -> None:
        """Report on a study until it is over. Raises `SinkError` and the source's errors; the next call resumes."""
        with errors_of(str(self.folder), OSError):
            ledger = Ledger(ledger_path(self.folder, study))
        standstill = _Standstill(self.clock)
        with closing(ledger):
            while True:
                answer = source.study(study, trials=False)
                document = document_of(answer)
                for news in (*_news(document), *standstill.news(document)):
                    if news.key not in ledger.keys:
                        self._post(news.body)
                        ledger.note_at_end(news, None)
                if document["state"] in FINAL:
                    ledger.note_end(document["finished_at"])
                    return
                self.sleep(LOOK_SECONDS)

    def _post(self, body: Json) -> None:
        """Errors must not contain the address, which may be a secret."""
        host = urlsplit(self.url).hostname
        try:
            answer = httpx2.post(self.url, json=body, timeout=POST_SECONDS)
        except httpx2.HTTPError as error:
            raise SinkError(f"the webhook at {host} does not answer: {type(error).__name__}") from None
        if not answer.is_success:
            raise SinkError(f"the webhook at {host} answers {answer.status_code} {answer.reason_phrase}")


def _news(study: Json) -> Iterator[News]:
    """Messages about a failed trial and about the end of the study."""
    name, failures = study["study"], study.get("failures", ())
    if study["state"] not in FINAL:
        if failures:
            yield News(study, "failed", f"{name}: {failures[0]['text']}", "first")
        return
    best = study["best"]
    parts = [f"{name} is {study['state']}"]
    if best:
        mark = f", {best['exactness']}" if best.get("exactness") else ""
        parts.append(f"best {study['metric']} {best['value']:.6g} (trial {best['trial']}, step {best['steps']}){mark}")
    parts += filter(None, (study.get("ending"), study.get("error"), *(each["text"] for each in failures)))
    yield News(study, "over", "; ".join(parts), repr(study["finished_at"]))
