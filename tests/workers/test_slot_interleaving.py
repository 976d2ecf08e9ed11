"""A heartbeat or an accident between any two lines leaves the results of an undisturbed run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interleaving import Line, trace_lines
from toys import switch

from app.domain import events as e
from app.domain.search_plan import Study
from app.events.database import Database
from app.registry import TrainerSource
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm

LANES = str(Path(__file__).parents[1] / "packing" / "lanes.py")
TRIALS = [(0.2, 3), (0.2, 5), (0.01, 4)]
TIMES = 2
"""A line is disturbed when it is come to for the first time, and the second: later ones are like that."""


class Killed(BaseException):
    """As `kill -9` of the slot's process."""


@dataclass
class Bench:
    """A cluster on which each study begins anew: with another version of its trainer, and another slot's process."""

    cluster: Cluster
    trainers: list[TrainerProcess]
    version: int = 0

    def submit(self, packing: int) -> Any:
        self.version += 1
        self.cluster.sources["tiny"] = TrainerSource(LANES, str(self.version))
        trials = [{"hp": {"lr": switch(0.1, rate, 2), "bs": 4}, "steps": steps} for rate, steps in TRIALS]
        named = {"name": "study", "trainer": "tiny", "metric": "val_loss", "mode": "min", "packing": packing}
        return self.cluster.submit({**named, "eval_every": 1, "tuner": {"kind": "trials", "trials": trials}})

    def restart(self) -> None:
        """The slot's process is a new one; the states on their way are on record."""
        self.kill_trainer()
        self.cluster.settle()
        self.cluster.messages.clear()
        self.cluster.slots["gpu0"] = self.cluster.make_slot("gpu0")

    def kill_trainer(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.trainers[-1].pid, signal.SIGKILL)

    def values(self, study: Study) -> list[Any]:
        return self.cluster.values(study.id)

    def lines(self, packing: int) -> tuple[list[Any], list[Line]]:
        """What comes of a study that nothing disturbs, and the lines that are executed for it."""
        lines = dict[Line, None]()
        with trace_lines(self.cluster, lambda line, number: lines.update({line: None})):
            done = self.cluster.run(self.submit(packing))
        return self.values(done), list(lines)


@pytest.fixture
def bench(sqlite_url: str, tmp_path: Path, warm: Warm) -> Iterator[Bench]:
    trainers, database = list[TrainerProcess](), Database(sqlite_url)

    def start() -> TrainerProcess:
        trainers.append(TrainerProcess.start(warm))
        return trainers[-1]

    made = Cluster(database, tmp_path, start=start, silence=60.0, heartbeat=0.01)  # a line takes no seconds
    yield Bench(made, trainers)
    made.close()
    database.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("packing", [4, 0])
def test_a_heartbeat_at_any_line_changes_nothing(bench: Bench, packing: int, caplog: pytest.LogCaptureFixture) -> None:
    expected, _ = bench.lines(packing)
    beats = list[Line]()

    def beat(line: Line, number: int) -> None:
        if number <= TIMES:
            beats.append(line)
            bench.cluster.beat()

    with trace_lines(bench.cluster, beat):
        done = bench.cluster.run(bench.submit(packing))
    assert bench.values(done) == expected and done.executed == done.unique
    assert {event.outcome for event in bench.cluster.events(e.ChainEnded)} == {"done"}
    assert "waited in vain" not in caplog.text
    assert len(set(beats)) > 200


@pytest.mark.slow
@pytest.mark.parametrize("packing", [4, 0])
def test_a_kill_at_any_line_changes_no_result(bench: Bench, packing: int) -> None:
    expected, lines = bench.lines(packing)
    places = st.tuples(st.sampled_from(lines), st.integers(1, TIMES))

    @settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
    @given(place=places, beats=st.sets(st.sampled_from(lines), max_size=5), is_trainer=st.booleans())
    def check(place: tuple[Line, int], beats: set[Line], is_trainer: bool) -> None:
        def disturb(line: Line, number: int) -> None:
            if line in beats and number <= TIMES:
                bench.cluster.beat()
            if (line, number) == place:
                bench.kill_trainer()
                if not is_trainer:
                    raise Killed

        bench.restart()
        study = bench.submit(packing)
        with trace_lines(bench.cluster, disturb):
            try:
                done = bench.cluster.run(study)
            except Killed:
                bench.restart()
                done = bench.cluster.run(study)
        said = f"killed at {place}, {is_trainer=}, with beats at {beats}"
        assert bench.values(done) == expected, said

    check()
