"""The API stays small and quick under any request: each route, with each scope, beside a large preview."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
import pytest
from stacks import wait_for

from app.api.access import needed_scope
from app.domain.terms import Scope
from app.events.database import Database
from app.events.sql_log import SqlRecords
from app.service.access import create

pytestmark = pytest.mark.slow

API = "/api/v1"
TRAINER = 'from stagetree import Trainer\n\nclass Digits(Trainer):\n    name = "digits"\n    version = "1"\n'
MOST_MEGABYTES = 300
MOST_SECONDS = 2.0
"""Of a processor, since other tests may keep the machine busy: what an answer may cost the process of the API."""

Json = dict[str, Any]
TENTH: Json = {"uniform": [0, 0.1]}
STUDY: Json = {"name": "x", "trainer": "digits", "metric": "accuracy", "mode": "max", "space": {"lr": [0.1, 0.2]}}
STUDY["tuner"] = {"kind": "grid", "max_steps": 40}
RANDOM: Json = {"kind": "random", "num_trials": 2, "max_steps": 10}
LARGEST: Json = {**STUDY, "tuner": {**RANDOM, "num_trials": 100_000}, "space": {f"n{i}": TENTH for i in range(900)}}
"""A preview of the largest allowed size."""


def nested_list(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


HOSTILE: dict[str, Any] = {
    "nothing": {},
    "a study": STUDY,
    "names": {**STUDY, "space": {f"n{i}": 1 for i in range(22_000)}},
    "allowed names": {**STUDY, "tuner": RANDOM, "space": {f"n{i}": TENTH for i in range(1000)}},
    "a where that rejects all": {
        **STUDY, "tuner": RANDOM, "space": {f"n{i}": 1 for i in range(900)}, "where": "n1 == 2",
    },
    "lengths": {
        **STUDY, "tuner": {"kind": "grid"}, "space": {"max_steps": list(range(1, 3000)), "lr": list(range(3000))},
    },
    "conditions": {
        **STUDY, "space": {"a": list(range(9999)), "b": {"value": 1, "when": {"a": list(map(float, range(9999)))}}},
    },
    "trials": {**STUDY, "space": None, "tuner": {"kind": "trials", "trials": [{"hp": {"lr": 1}, "steps": 1}] * 20_000}},
    "wrong trials": {"trials": [{"hp": 1}] * 40_000},
    "unknown fields": {f"zz{i}": 1 for i in range(40_000)},
    "a long name": {"a" * 300_000: [0] * 200_000},
    "many numbers": {"suggestions": [1] * 400_000},
    "nesting": nested_list(45),
    "digits": {**STUDY, "space": {"lr": "1" * 900_000}},
    "a long sequence": {
        "hp": {"lr": {"family": "multistep", "init": 1, "milestones": list(range(100_000)), "gamma": 1}}, "steps": 9,
    },
    "changes": {"changes": {f"tuner.{i}": 1 for i in range(40_000)}},
}  # fmt: skip


@dataclass
class Server:
    """`stagetree api` with a token for each scope."""

    url: str
    process: psutil.Process
    tokens: dict[Scope, str]
    clients: list[httpx.Client] = field(default_factory=list)

    def client(self, scope: Scope) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.tokens[scope]}"}
        client = httpx.Client(base_url=self.url, headers=headers, timeout=300)
        self.clients.append(client)
        return client

    @property
    def megabytes(self) -> float:
        return float(self.process.memory_info().rss) / 2**20

    @property
    def seconds(self) -> float:
        """The processor time of the API's process, without its child processes."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("quick")
    (folder / "trainer.py").write_text(TRAINER)
    url = f"sqlite:///{folder / 'stagetree.db'}"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tokens = _make_tokens(url)
    settings = {"DATABASE_URL": url, "TRAINERS": str(folder / "trainer.py"), "BROKER_URL": "memory://"}
    environment = {f"STAGETREE_{name}": value for name, value in {**settings, "ACCESS": "always"}.items()}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "stagetree", "api", "--port", str(port)],
            env={**os.environ, **environment}, cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
    found = Server(f"http://127.0.0.1:{port}", psutil.Process(process.pid), tokens)
    try:
        wait_for("the start of the API", lambda: _answers(found.url))
        yield found
    finally:
        for client in found.clients:
            client.close()
        process.terminate()
        process.wait(60)
    assert "Traceback" not in (folder / "log").read_text()


def _make_tokens(url: str) -> dict[Scope, str]:
    database = Database(url)
    database.create()
    records = SqlRecords(database)
    tokens = {scope: create(records, f"a-{scope}", scope, "", 1, time.time()) for scope in Scope}
    records.close()
    return tokens


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def previewing(server: Server) -> Iterator[None]:
    """A reader has the largest preview computed, again and again."""
    reader, is_over = server.client(Scope.READ), threading.Event()

    def preview() -> None:
        while not is_over.is_set():
            reader.post(f"{API}/studies:preview", json=LARGEST)

    thread = threading.Thread(target=preview)
    thread.start()
    wait_for("the beginning of the preview", lambda: len(server.process.children(recursive=True)) > 2)
    yield
    is_over.set()
    thread.join()


def requests(document: Json, study: str) -> Iterator[tuple[Scope, str, str, Any]]:
    """Scope, method, path and body for every operation with every scope; all bodies with the least that is let in."""
    for path, methods in document["paths"].items():
        at = re.sub(r"{\w+}", "0", path.replace("{study}", study).replace("{name}", "gpu0"))
        for method, operation in methods.items():
            least, has_body = needed_scope(operation["operationId"], method.upper()), "requestBody" in operation
            for scope in Scope:
                bodies = list(HOSTILE.values()) if scope is least else [STUDY]
                for body in bodies if has_body else (None,):
                    yield scope, method.upper(), at, body


def test_every_answer_is_quick_and_leaves_little_behind(server: Server, previewing: None) -> None:
    clients = {scope: server.client(scope) for scope in Scope}
    study = clients[Scope.OPERATE].post(f"{API}/studies", json=STUDY).json()["study"]
    late: list[tuple[Any, ...]] = []
    for scope, method, path, body in requests(httpx.get(f"{server.url}/openapi.json").json(), study):
        before = server.seconds
        answer = clients[scope].request(method, path, json=body)
        cost = server.seconds - before
        is_known = answer.status_code < 500 or answer.status_code == 501 or path in ("/readyz", f"{API}/demand")
        if cost > MOST_SECONDS or not is_known:
            late.append((scope, method, path, str(body)[:40], answer.status_code, round(cost, 2)))
    assert late == []
    assert server.megabytes < MOST_MEGABYTES


def test_a_reader_has_one_computation_and_delays_no_other(server: Server, previewing: None) -> None:
    busy = server.client(Scope.READ).post(f"{API}/studies:preview", json=STUDY)
    assert (busy.status_code, busy.headers["Retry-After"]) == (429, "1")
    assert "try again later" in busy.json()["detail"]
    assert server.client(Scope.SUBMIT).post(f"{API}/studies:preview", json=STUDY).status_code == 200
    assert server.client(Scope.READ).get(f"{API}/studies").status_code == 200
