"""The client against a small real server: each test sets the answer, and looks at the request."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from inspect import isasyncgenfunction, iscoroutinefunction
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from app.api import examples
from app.api.examples import EXAMPLES
from stagetree import models
from stagetree.client import (
    AsyncClient,
    Client,
    Conflict,
    Invalid,
    NotFound,
    ProblemError,
    StagetreeError,
    Unreachable,
    http,
)
from stagetree.sequences import MultiStep
from stagetree.spec import StudySpec

SPEC = {
    "name": "demo",
    "trainer": "digits",
    "metric": "accuracy",
    "mode": "max",
    "space": {"lr": [0.1, 0.2]},
    "tuner": {"kind": "grid", "max_steps": 4},
}


@dataclass
class Asked:
    """A request, as the server saw it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Answer:
    """What the server says: a status and JSON, or raw text; or nothing, with the connection cut."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


@dataclass
class Server:
    """Gives its answers in turn, the last one again and again."""

    answers: list[Answer] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def will(self, *answers: Answer) -> None:
        """Replace the answers."""
        self.answers[:] = answers

    def answer(self, asked: Asked) -> Answer:
        """The answer to the next request."""
        self.asked.append(asked)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def _do(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = Asked(
                self.command,
                parts.path,
                dict(parse_qsl(parts.query)),
                {name.lower(): value for name, value in self.headers.items()},
                json.loads(body) if body else None,
            )
            self._say(server.answer(asked))

        def _say(self, answer: Answer) -> None:
            self.close_connection = True
            if answer.cut and answer.body is None:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
            content = b"" if answer.body is None else text.encode()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content) + answer.cut))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _do

    return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server([Answer(body={})])
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(made))
    made.url = f"http://127.0.0.1:{http.server_port}"
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def client(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(http, "FIRST_PAUSE", 0.001)
    with Client(server.url, timeout=60, retries=3) as made:
        yield made


def problem(status: int, title: str, **more: Any) -> Answer:
    body = {"type": "about:blank", "title": title, "status": status, **more}
    return Answer(status, body, {"Content-Type": "application/problem+json"})


@pytest.mark.parametrize(
    ("call", "method", "path", "query", "body", "answer"),
    [
        (lambda c: c.submit(SPEC), "POST", "/api/v1/studies", {}, SPEC, examples.STUDY),
        (lambda c: c.preview(SPEC, slots=4), "POST", "/api/v1/studies:preview", {"slots": "4"}, SPEC, examples.PREVIEW),
        (lambda c: c.study("s1"), "GET", "/api/v1/studies/s1", {"trials": "true"}, None, examples.STUDY),
        (lambda c: c.study("a/b c", trials=False), "GET", "/api/v1/studies/a%2Fb%20c", {"trials": "false"}, None,
         examples.STUDY),
        (lambda c: c.pause("s1"), "POST", "/api/v1/studies/s1:pause", {}, None, examples.STUDY),
        (lambda c: c.resume("s1"), "POST", "/api/v1/studies/s1:resume", {}, None, examples.STUDY),
        (lambda c: c.reopen("s1", 9), "POST", "/api/v1/studies/s1:reopen", {"num_trials": "9"}, None, examples.STUDY),
        (lambda c: c.cancel("s1"), "POST", "/api/v1/studies/s1:cancel", {}, None, examples.STUDY),
        (lambda c: c.complete("s1"), "POST", "/api/v1/studies/s1:complete", {}, None, examples.STUDY),
        (lambda c: c.add_note("s1", "too hot", 3), "POST", "/api/v1/studies/s1/notes", {},
         {"text": "too hot", "trial": 3}, examples.EVENT),
        (lambda c: c.extend_trial("s1", 3, 9), "POST", "/api/v1/studies/s1/trials/3:extend", {}, {"steps": 9},
         examples.TRIAL_DETAIL),
        (lambda c: c.retry_trial("s1", 3), "POST", "/api/v1/studies/s1/trials/3:retry", {}, None,
         examples.TRIAL_DETAIL),
        (lambda c: c.replay("s1"), "POST", "/api/v1/studies/s1:replay", {}, None, examples.REPLAY),
        (lambda c: c.replay("s1", 7), "POST", "/api/v1/studies/s1:replay", {"at": "7"}, None, examples.REPLAY),
        (lambda c: c.plan("s1"), "GET", "/api/v1/studies/s1/plan", {}, None, EXAMPLES["Plan"]),
        (lambda c: c.stage_tree("s1"), "GET", "/api/v1/studies/s1/stage-tree", {}, None, EXAMPLES["StageTree"]),
        (lambda c: c.trial("s1", 3), "GET", "/api/v1/studies/s1/trials/3", {}, None, examples.TRIAL_DETAIL),
        (lambda c: c.add_trial("s1", {"lr": MultiStep(1, [2], 0.5), "bs": np.int64(64)}, np.int32(9)), "POST",
         "/api/v1/studies/s1/trials", {},
         {"hp": {"lr": {"family": "multistep", "init": 1, "milestones": [2], "gamma": 0.5}, "bs": 64}, "steps": 9},
         examples.TRIAL_DETAIL),
    ],
)  # fmt: skip
def test_calls_ask_their_routes(
    server: Server,
    client: Client,
    call: Callable[[Client], models.Answer],
    method: str,
    path: str,
    query: Any,
    body: Any,
    answer: Any,
) -> None:
    server.will(Answer(body={**answer, "new": {"of": "a later server"}}))
    found = call(client)
    assert found.to_json() == {**answer, "new": {"of": "a later server"}}
    assert found["new"] == found.new == {"of": "a later server"}  # type: ignore[attr-defined]
    [asked] = server.asked
    assert (asked.method, asked.path, asked.query, asked.body) == (method, path, query, body)
    assert ("idempotency-key" in asked.headers) == (method == "POST")


def test_answers_are_typed_and_read_like_their_json(server: Server, client: Client) -> None:
    server.will(Answer(body=examples.STUDY))
    study = client.study("s1")
    assert study.best is not None and study.best.value == study["best"]["value"] == 0.9889
    assert study.trials[0].hp == examples.HP
    assert {**study}.keys() == examples.STUDY.keys()
    assert ("state" in study, "nothing" in study, study.get("nothing", 3)) == (True, False, 3)
    with pytest.raises(KeyError, match="nothing"):
        study["nothing"]


def test_an_answer_that_is_not_understood(server: Server, client: Client) -> None:
    server.will(Answer(body={"study": "s1"}))
    with pytest.raises(StagetreeError, match=r"^this is not a server that this client understands: StudyAnswer.state"):
        client.study("s1")


TYPED = [
    each
    for each in vars(models).values()
    if isinstance(each, type) and issubclass(each, models.Answer) and each is not models.Answer
]


@pytest.mark.parametrize("model", TYPED, ids=lambda model: model.__name__)
def test_a_client_is_lenient_where_a_server_is_not(model: type[models.Answer]) -> None:
    """What an older server leaves out is empty; what this one always says, its description requires."""
    described = model.model_json_schema(mode="serialization")
    promised = set(described.get("required", ()))
    needed = {name: field.annotation for name, field in model.model_fields.items() if field.is_required()}
    assert needed.keys() <= promised
    found = model.from_json({name: _sample(kind) for name, kind in needed.items()})
    for name in promised - needed.keys():
        assert not found[name] or isinstance(found[name], models.Answer), name
    assert "additionalProperties" not in described


def _sample(kind: Any) -> Any:
    """Something that a field takes."""
    for sample in (1, "x", [], {}):
        with suppress(ValidationError):
            TypeAdapter(kind).validate_python(sample)
            return sample
    raise AssertionError(kind)


def test_a_word_of_a_newer_server_is_taken() -> None:
    slot = models.Slot.from_json({"name": "gpu0", "state": "resting", "stage": None, "humidity": 0.4})
    assert (slot.state, slot.trainers, slot.seen_at, slot["humidity"]) == ("resting", {}, 0.0, 0.4)
    assert slot.to_json() == {"name": "gpu0", "state": "resting", "stage": None, "humidity": 0.4}


def test_a_prediction_is_read_like_its_json() -> None:
    judged = {"class": "poor", "p": None, "step": 3, "since": 2}
    prediction = models.Trial.from_json({"trial": 0, "state": "pruned", "steps": 3, "prediction": judged}).prediction
    assert prediction is not None and prediction == judged and {**prediction} == judged
    assert (prediction["class"], prediction.get("target"), "class" in prediction) == ("poor", None, True)
    assert "category" not in prediction


def test_a_trial_is_cancelled(server: Server, client: Client) -> None:
    server.will(Answer(204))
    client.cancel_trial("s1", 3)
    assert (server.asked[0].method, server.asked[0].path) == ("DELETE", "/api/v1/studies/s1/trials/3")


def test_a_study_spec_is_sent_as_its_json(server: Server, client: Client) -> None:
    spec = StudySpec.from_dict(SPEC)
    server.will(Answer(201, examples.STUDY))
    client.submit(spec, idempotency_key="mine")
    assert server.asked[0].body == spec.to_json()
    assert server.asked[0].headers["idempotency-key"] == "mine"


@pytest.mark.parametrize(
    ("call", "path", "query", "item"),
    [
        (lambda c: c.studies(limit=2), "/api/v1/studies", {"limit": "2"}, examples.LISTED),
        (lambda c: c.studies(state=("running",)), "/api/v1/studies", {"limit": "100", "state": "running"},
         examples.LISTED),
        (lambda c: c.trials("s1", limit=2), "/api/v1/studies/s1/trials", {"limit": "2"}, examples.TRIAL),
        (lambda c: c.events("s1", after=7, limit=2), "/api/v1/studies/s1/events", {"limit": "2", "after": "7"},
         examples.EVENT),
        (lambda c: c.slots(), "/api/v1/slots", {"limit": "1000"}, examples.SLOT),
        (lambda c: c.slots(estimates=True), "/api/v1/slots", {"limit": "1000", "estimates": "true"}, examples.SLOT),
    ],
)  # fmt: skip
def test_lists_are_read_page_by_page(
    server: Server, client: Client, call: Any, path: str, query: Any, item: Any
) -> None:
    items = [{**item, "n": n} for n in range(3)]
    server.will(
        Answer(body={"items": items[:2], "next_cursor": "x y"}), Answer(body={"items": items[2:], "next_cursor": None})
    )
    assert [each.to_json() for each in call(client)] == items
    assert [asked.path for asked in server.asked] == [path, path]
    assert [asked.query for asked in server.asked] == [query, query | {"cursor": "x y"}]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, Invalid), (404, NotFound), (409, Conflict), (412, Conflict), (422, Invalid), (401, ProblemError)],
)
def test_refusals_are_typed_and_not_tried_again(
    server: Server, client: Client, status: int, kind: type[ProblemError]
) -> None:
    errors = [{"field": "tuner.max_steps", "problem": "must be at least 1"}]
    server.will(problem(status, "Not so", detail="Because.", errors=errors))
    with pytest.raises(ProblemError) as caught:
        client.submit(SPEC)
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.title, caught.value.detail) == (status, "Not so", "Because.")
    assert caught.value.errors == errors
    assert str(caught.value) == "Not so: Because.\ntuner.max_steps: must be at least 1"
    assert len(server.asked) == 1


def test_a_deletion_whose_answer_was_lost_is_done(server: Server, client: Client) -> None:
    server.will(Answer(cut=True), problem(404, "Not Found"))
    client.delete("s1")
    server.will(problem(404, "Not Found"))
    with pytest.raises(NotFound):
        client.delete("s1")


@pytest.mark.parametrize(
    "failure", [problem(503, "Busy"), Answer(429, "slow"), Answer(502, "<html>"), Answer(cut=True)]
)
def test_failed_requests_are_retried_under_the_same_key(server: Server, client: Client, failure: Answer) -> None:
    server.will(failure, failure, Answer(201, examples.STUDY))
    assert client.submit(SPEC).study == examples.STUDY["study"]
    assert len({asked.headers["idempotency-key"] for asked in server.asked}) == 1
    assert len(server.asked) == 3
    client.submit(SPEC)
    assert len({asked.headers["idempotency-key"] for asked in server.asked}) == 2


def test_a_page_of_another_server_is_not_printed(server: Server, client: Client) -> None:
    server.will(Answer(404, "<!DOCTYPE HTML>\n<html>", {"Content-Type": "text/html;charset=utf-8"}))
    with pytest.raises(NotFound) as refused:
        client.study("s1")
    assert "is another kind of server" in str(refused.value)
    assert "<" not in str(refused.value)


def test_trying_again_has_an_end(server: Server, client: Client) -> None:
    server.will(Answer(503, "no"))
    with pytest.raises(ProblemError, match="HTTP 503 Service Unavailable: no"):
        client.study("s1")
    assert len(server.asked) == 4
    server.will(Answer(cut=True))
    with pytest.raises(Unreachable, match=f"no stagetree server answers at {server.url}"):
        client.study("s1")
    assert len(server.asked) == 8


def test_an_unreachable_server() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with Client(f"http://127.0.0.1:{unused.getsockname()[1]}", retries=0) as client, pytest.raises(Unreachable):
            client.health()
    with pytest.raises(Unreachable), Client("http://[", retries=0) as client:
        client.health()


def test_the_url_comes_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGETREE_URL", server.url + "/")
    with Client() as client:
        assert client.health() == {}
    monkeypatch.delenv("STAGETREE_URL")
    with Client() as client:
        assert client.url == "http://127.0.0.1:8000"


def test_something_else_than_a_stagetree_server(server: Server, client: Client) -> None:
    server.will(Answer(200, "<html>hello"))
    with pytest.raises(StagetreeError, match="this is not a stagetree server: it answered '<html>hello'"):
        client.study("s1")


def stream(*numbers: int, more: str = "", cut: bool = False) -> Answer:
    events = "".join(
        f'id: {n}\nevent: Evaluated\ndata: {{"position": {n}, "type": "Evaluated", "data": {{}}}}\n\n' for n in numbers
    )
    return Answer(200, ": hello\n\nretry: 2000\n\n" + events + more, {"Content-Type": "text/event-stream"}, cut)


def test_events_are_followed_across_broken_connections(server: Server, client: Client) -> None:
    server.will(
        stream(3, 4, cut=True),
        stream(5, more='id: 6\ndata: {"id"'),
        Answer(503, "restarting"),
        Answer(cut=True),
        stream(6, 7, more="event: end\ndata: {}\n\n"),
    )
    assert [event.position for event in client.follow("s1", after=2)] == [3, 4, 5, 6, 7]
    assert [asked.headers["last-event-id"] for asked in server.asked] == ["2", "4", "5", "5", "5"]
    assert [asked.query["after"] for asked in server.asked] == ["2", "4", "5", "5", "5"]
    assert server.asked[0].headers["accept"] == "text/event-stream"


def test_a_stream_is_over_with_204(server: Server, client: Client) -> None:
    server.will(stream(1), Answer(204))
    assert [event.position for event in client.follow("s1")] == [1]


def test_following_gives_up_in_the_end(server: Server, client: Client) -> None:
    server.will(Answer(cut=True))
    with pytest.raises(Unreachable):
        list(client.follow("s1"))
    assert len(server.asked) == 4
    server.will(problem(404, "No such study"))
    with pytest.raises(NotFound):
        list(client.follow("s2"))
    assert len(server.asked) == 5
    server.will(Answer(200, "<html>", {"Content-Type": "text/html"}))
    with pytest.raises(Unreachable, match="text/event-stream"):
        list(client.follow("s1"))


def test_titles_of_http_are_left_out() -> None:
    errors = [{"field": "name", "problem": "is missing"}]
    assert str(Invalid(422, "Unprocessable Content", "Something is wrong in one field.", errors)) == "name: is missing"
    assert str(NotFound(404, "Not Found", "there is no study x")) == "there is no study x"
    assert str(ProblemError(404, "Not Found")) == "Not Found"


def test_every_async_method_has_a_blocking_one() -> None:
    awaited = {
        name for name, each in vars(AsyncClient).items() if iscoroutinefunction(each) or isasyncgenfunction(each)
    }
    assert {name for name in awaited if not name.startswith("_")} <= set(dir(Client))
