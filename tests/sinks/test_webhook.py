"""A webhook on a real server: the content and time of each post, posted once, also after an outage of the server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from stacks import Json

from stagetree.sinks import SinkError, follow, open_sink
from stagetree.sinks.addresses import Configured, check_of_study, progress_folder, redact_address
from stagetree.sinks.webhook import STILL_SECONDS, WAITING_SECONDS, Webhook

STUDY = "still-123456"
BEST = {"trial": 3, "value": 0.125, "steps": 40}
RUNNING: Json = {
    "study": STUDY,
    "name": "still",
    "state": "running",
    "metric": "val_loss",
    "best": None,
    "failures": [],
}
RUNNING |= {"progress": {"steps": {"done": 1}, "seconds_left": 9.0}, "waits_for": [], "finished_at": None}
FAILURE = {"text": "2 trials failed: ValueError in train.py:3"}
OVER = RUNNING | {"state": "completed", "best": BEST, "finished_at": 99.0, "ending": "by its target"}


class Looks:
    """A study at each poll; the clock advances by `seconds` between polls."""

    def __init__(self, *looks: Json, seconds: float = 5.0) -> None:
        self._looks, self._seconds, self.now = iter(looks), seconds, 1000.0

    def study(self, study: str, *, trials: bool = True) -> Json:
        assert not trials
        return next(self._looks)

    def sleep(self, seconds: float) -> None:
        self.now += self._seconds


class Server(ThreadingHTTPServer):
    """Keeps the posted bodies; answers with `status`."""

    posted: list[Json]
    status: int


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.status == 200:
            self.server.posted.append(body)
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.posted, server.status = [], 200
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def tell(server: Server, folder: Path, looks: Looks) -> list[tuple[str, str]]:
    """The posts about a study."""
    hook = Webhook(f"http://127.0.0.1:{server.server_port}/secret", folder, looks.sleep, lambda: looks.now)
    before = len(server.posted)
    follow(looks, STUDY, [hook])  # type: ignore[arg-type]  # the sink uses nothing else
    return [(each["event"], each["text"]) for each in server.posted[before:]]


def test_the_first_failure_and_the_end_are_posted_once(server: Server, tmp_path: Path) -> None:
    failing = RUNNING | {"failures": [FAILURE]}
    over = f"{STUDY} is completed; best val_loss 0.125 (trial 3, step 40); by its target"
    assert tell(server, tmp_path, Looks(RUNNING, failing, failing, OVER)) == [
        ("failed", f"{STUDY}: {FAILURE['text']}"),
        ("over", over),
    ]
    assert server.posted[1] | {"best": BEST, "state": "completed", "id": f"{STUDY}/over/99.0"} == server.posted[1]
    assert tell(server, tmp_path, Looks(OVER)) == []
    assert tell(server, tmp_path, Looks(failing, OVER | {"finished_at": 120.0})) == [("over", over)]  # it was reopened


def test_the_mark_of_the_best_trial_is_posted(server: Server, tmp_path: Path) -> None:
    mark = "unchecked: it resumed from the state of step 8, which was not compared"
    marked = OVER | {"best": BEST | {"exactness": mark}, "ending": None}
    assert tell(server, tmp_path, Looks(marked)) == [
        ("over", f"{STUDY} is completed; best val_loss 0.125 (trial 3, step 40), {mark}")
    ]


@pytest.mark.parametrize(("waits", "seconds"), [([], STILL_SECONDS), (["no slot has it"], WAITING_SECONDS)])
def test_each_standstill_is_posted_once(server: Server, tmp_path: Path, waits: list[str], seconds: float) -> None:
    still, more = RUNNING | {"waits_for": waits}, RUNNING | {"waits_for": waits, "progress": {"seconds_left": 1.0}}
    looks = Looks(still, still, still, more, more, OVER, seconds=seconds)
    why = waits[0] if waits else "nothing new for 10 min"
    assert tell(server, tmp_path, looks)[:-1] == [("standstill", f"{STUDY} stands still: {why}")] * 2


def test_a_paused_or_resumed_study_is_no_standstill(server: Server, tmp_path: Path) -> None:
    paused = RUNNING | {"state": "paused"}
    going = [RUNNING | {"progress": {"steps": {"done": done}, "seconds_left": 1.0}} for done in range(3)]
    looks = Looks(*going, paused, paused, OVER, seconds=STILL_SECONDS)
    assert [kind for kind, _ in tell(server, tmp_path, looks)] == ["over"]


def test_a_refusing_server_is_retried_and_its_secret_is_masked(server: Server, tmp_path: Path) -> None:
    server.status = 503
    with pytest.raises(SinkError, match=r"the webhook at 127.0.0.1 answers 503") as refused:
        tell(server, tmp_path, Looks(OVER))
    assert "secret" not in str(refused.value)
    server.status = 200
    assert [kind for kind, _ in tell(server, tmp_path, Looks(OVER))] == ["over"]


def test_an_unavailable_server_is_reported_in_a_sentence(tmp_path: Path) -> None:
    hook = Webhook("http://127.0.0.1:9/secret", tmp_path)
    with pytest.raises(SinkError, match=r"^the webhook at 127.0.0.1 does not answer: ConnectError$"):
        follow(Looks(OVER), STUDY, [hook])  # type: ignore[arg-type]


def test_study_files_name_configured_webhooks_and_no_address() -> None:
    address = "webhook:https://hooks.example.com/T0/secret"
    with pytest.raises(SinkError, match="must be the name of a webhook in STAGETREE_SINKS"):
        check_of_study(address)
    configured = Configured.parse(f"alerts={address}, *")
    assert configured.address("alerts") == address
    with pytest.raises(SinkError, match="must be one of alerts"):
        configured.address(address)
    assert redact_address(address) == "webhook:https://hooks.example.com" and "secret" not in str(
        progress_folder(address)
    )
    with pytest.raises(SinkError, match="must name a webhook by http:// or https://"):
        open_sink("webhook:secret")
