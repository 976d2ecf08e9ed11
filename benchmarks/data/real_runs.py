"""Studies on real slots, and what their logs say of how long things took: for benchmarks beside the simulator."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from app.domain import events as e
from app.embedded.stack import Embedded
from app.events.database import Database
from app.events.log import StoredEvent
from app.events.sql_log import SqlRecords
from app.simulation.pace import Overheads
from stagetree.client import Client

PATIENCE = 300.0

Place = tuple[str, int]
Span = tuple[str, int, int]


class Real:
    """An embedded stack with the trainers of a file, and what its log says."""

    def __init__(self, folder: Path, slots: int, trainers: Path) -> None:
        self._stack = Embedded(folder, slots, [str(trainers)])
        self._stack.start(await_slots=True)
        self._records = SqlRecords(Database(self._stack.environment()["STAGETREE_DATABASE_URL"]))
        self._client = Client(self._stack.url)

    def run(self, study: dict[str, Any]) -> list[StoredEvent]:
        """All events on the plan of the study, which no other study uses."""
        name = self.submit(study)
        self.wait(name)
        return self.log(name)

    def submit(self, study: dict[str, Any]) -> str:
        """The study's name."""
        return str(self._client.submit(study)["study"])

    def wait(self, name: str) -> None:
        """Until a study is over."""
        deadline = time.monotonic() + PATIENCE
        while self._client.study(name, trials=False)["state"] not in ("completed", "failed", "cancelled"):
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} did not end within {PATIENCE:.0f} s")
            time.sleep(0.1)

    def log(self, name: str) -> list[StoredEvent]:
        """All that happened on the plan of a study."""
        with self._records.read() as rows:
            found = rows.studies.find(name)
        assert found is not None
        return self._records.log.read(found.stream)

    def close(self) -> None:
        self._client.close()
        self._stack.stop()


def makespan(log: Sequence[StoredEvent]) -> float:
    """From the first chain that was assigned to the last stage that was completed."""
    begun = next(each.at for each in log if isinstance(each.event, e.ChainAssigned))
    return max(each.at for each in log if isinstance(each.event, e.StageCompleted)) - begun


def reaction(log: Sequence[StoredEvent]) -> float:
    """How long it takes, in the mean, from a result until a chain is given out that could follow from it."""
    gaps: list[float] = []
    last: float | None = None
    for each in log:
        match each.event:
            case e.StageCompleted():
                last = each.at
            case e.ChainAssigned() if last is not None:
                gaps.append(each.at - last)
                last = None
    return fmean(gaps or [0.0])


def spacing(log: Sequence[StoredEvent]) -> float:
    """How long after a chain the next one is given out, in the mean, where no result came in between."""
    gaps: list[float] = []
    last: float | None = None
    for each in log:
        match each.event:
            case e.ChainAssigned():
                gaps += [] if last is None else [each.at - last]
                last = each.at
            case e.StageCompleted() | e.Evaluated():
                last = None
    return fmean(gaps or [0.0])


def spans(log: Sequence[StoredEvent]) -> list[Span]:
    """The stages that were completed, in their order."""
    chains = {each.event.chain: each.event for each in log if isinstance(each.event, e.ChainAssigned)}
    return [span_of(chains[each.chain].stages[each.index]) for each in completed(log)]


def overheads(log: Sequence[StoredEvent]) -> Overheads:
    """What lies between a chain that is given out and its first stage, from stage to stage, and before each look."""
    claims, hand_overs, begun = list[float](), list[float](), dict[str, float]()
    for each in log:
        match each.event:
            case e.ChainAssigned(chain=name):
                begun[name] = each.at
            case e.StageCompleted(chain=name, index=index, seconds=seconds):
                (hand_overs if index else claims).append(each.at - begun[name] - seconds)
                begun[name] = each.at
    return Overheads(
        claim=max(0.0, fmean(claims)),
        hand_over=max(0.0, fmean(hand_overs or [0.0])),
        upload=upload(log),
        look=reaction(log),
        give=spacing(log),
    )


def completed(log: Sequence[StoredEvent]) -> list[e.StageCompleted]:
    """The ends of stages, in their order."""
    return [each.event for each in log if isinstance(each.event, e.StageCompleted)]


def span_of(stage: e.Stage) -> Span:
    return stage.node, stage.start, stage.end


def upload(log: Sequence[StoredEvent]) -> float:
    """How long after the end of a stage its checkpoint is on record, usually."""
    return median(_uploads(log))


def _uploads(log: Sequence[StoredEvent]) -> Iterator[float]:
    """How long after the end of a stage its checkpoint is on record."""
    ended: dict[Place, float] = {}
    chains = {each.event.chain: each.event for each in log if isinstance(each.event, e.ChainAssigned)}
    for each in log:
        match each.event:
            case e.StageCompleted(chain=name, index=index):
                stage = chains[name].stages[index]
                ended[stage.node, stage.end] = each.at
            case e.CheckpointKept(node=node, step=at) if (node, at) in ended:
                yield each.at - ended[node, at]
