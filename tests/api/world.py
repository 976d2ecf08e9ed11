"""The study the tests submit, and who plays the scheduler and the workers: they write what those would report."""

from __future__ import annotations

import copy
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from assignments import work
from fastapi import FastAPI

from app.api.server import OPTIONS
from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.search_plan import SearchPlan, Trial
from app.domain.terms import ChainId, StudyId
from app.events.records import Write, record, transact
from app.events.rows import LeaseFence
from app.events.sql_rows import Rows
from app.search.tuners import TunerDriver
from app.service.services import Services

MakeApp = Callable[[str], FastAPI]

API = "/api/v1"

STUDY: dict[str, Any] = {
    "name": "Digits, again!",
    "trainer": "digits",
    "trainer_args": {"width": 32},
    "metric": "accuracy",
    "mode": "max",
    "space": {"lr": [{"family": "multistep", "init": 0.1, "milestones": [20], "gamma": 0.1}, 0.1], "bs": 64},
    "tuner": {"kind": "grid", "max_steps": 40},
}
"""Two trials that part at step 20: 80 steps asked for, 60 different ones."""


def study_file(**fields: Any) -> dict[str, Any]:
    """The study file with other fields."""
    return copy.deepcopy(STUDY) | fields


class Workers:
    """Plays the scheduler and the workers: the same facts, without training anything."""

    def __init__(self, use: Services) -> None:
        self.use, self.chains = use, 0

    def plan(self, study: str) -> SearchPlan:
        return self.use.plans.get(self.stream(study))

    def stream(self, study: str) -> str:
        return self.use.find(study).stream

    def tune(self, study: str) -> None:
        """The tuner asks for its trials."""
        found = self.plan(study).studies[StudyId(study)]
        driver = TunerDriver(found.spec.json)
        driver.observe(found)
        self.decide(study, c.ApplyTunerActions(study=found.id, actions=driver.suggest(1)))

    def decide(self, study: str, command: c.Command, alongside: Any = None) -> None:
        stream = self.stream(study)
        write = Write(stream=stream, decide=lambda plan: decide(plan, command), at=1.0, alongside=alongside)
        transact(self.use.log, self.use.plans, write)

    def record(self, study: str, *events: e.Event, alongside: Any = lambda rows: None) -> None:
        record(self.use.log, self.stream(study), events, at=1.0, alongside=alongside)

    def assign(self, study: str, trial: int, slot: str = "gpu0", members: tuple[str, ...] = ()) -> ChainId:
        """Give a slot the rest of a trial. members: the slots that the events lend to it."""
        self.chains += 1
        chain, plan = ChainId(f"c{self.chains}"), self.plan(study)
        stages = tuple(self._stages(plan, plan.studies[StudyId(study)].trials[trial]))

        def take(rows: Rows) -> None:
            if rows.slots.get(slot) is None:
                rows.slots.take(slot, "worker", instead_of=None, device="cpu", host="here", pid=1)
            rows.chains.assign(chain, self.stream(study), slot, work(*stages), 600)
            rows.chains.claim(chain, "worker", 600)

        self.decide(study, c.AssignChain(chain=chain, slot=slot, stages=stages, at=1.0, members=members), take)
        return chain

    def look(self) -> None:
        """The scheduler looks, and finds nothing to do; a slot is alive."""
        with self.use.records.write() as rows:
            rows.schedulers.record_tick("me", "here", 1, {"busy": 0, "more": 0, "idle": ["gpu0"]})
            before = rows.slots.get("gpu0")
            rows.slots.take("gpu0", "worker", instead_of=before and before.owner, device="cuda:0", host="here", pid=1)

    def beat(self, chain: str, index: int, step: int) -> None:
        with self.use.records.write() as rows:
            rows.chains.heartbeat(chain, LeaseFence(1, "worker"), 600, step)
            rows.chains.advance(chain, LeaseFence(1, "worker"), index)

    def finish(self, study: str, chain: str, metrics: dict[str, float | None], *stored: e.CheckpointKept) -> None:
        """Train all stages of the chain, report the same metrics at the end of each, and keep the given states."""
        events: list[e.Event] = []
        for index, stage in enumerate(self.plan(study).chains[ChainId(chain)].stages):
            kept = {"key": f"{stage.node}/{stage.end}", "sha256": "0" * 64, "size": 1}
            events += [
                e.StageCompleted(chain=ChainId(chain), index=index, seconds=1.5),
                e.Evaluated(node=stage.node, step=stage.end, metrics=metrics),
                e.CheckpointKept(node=stage.node, step=stage.end, **kept),
            ]
        events += [*stored, e.ChainEnded(chain=ChainId(chain), outcome="done")]
        self.record(study, *events, alongside=lambda rows: rows.chains.finish(chain, LeaseFence(1, "worker")))

    def fail(self, study: str, chain: str, error: str) -> None:
        event = e.StageFailed(chain=ChainId(chain), index=0, step=3, kind="exception", error=error, seconds=0.5)
        self.record(study, event, alongside=lambda rows: rows.chains.end(chain))

    def close(self, study: str) -> None:
        """The study is completed, or failed."""
        self.decide(study, c.CloseStudy(study=StudyId(study), at=time.time()))

    def _stages(self, plan: SearchPlan, trial: Trial) -> Iterator[e.Stage]:
        for number, name in enumerate(trial.path):
            node, last = plan.nodes[name], number + 1 == len(trial.path)
            end = trial.steps if last else plan.nodes[trial.path[number + 1]].start
            start = max((step for step in node.checkpoints if step <= end), default=node.start)
            if start < end:
                yield e.Stage(node=name, start=start, end=end, study=trial.study, evaluate=(end,))


@contextmanager
def serving(app: FastAPI, listening: socket.socket | None = None) -> Iterator[str]:
    """The URL of a real server, in a thread. It listens on this socket, or on a free port."""
    listening = listening or socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", **OPTIONS))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield url
    finally:  # or a test that fails would keep pytest from its end
        app.state.services.stopping.set()
        server.should_exit = True
        thread.join()
