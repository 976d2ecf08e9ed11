"""How long a plan takes to fold from its events: `python benchmarks/rebuild.py`.

The events are those of a grid that was run to its end in a simulation: from a list, and from a log in a SQLite file,
first all of it and then from the last snapshot on. The budget is 100,000 events in 5 s.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from app.domain import commands as c
from app.domain import events as e
from app.domain.evolve import fold
from app.domain.ids import StudyId
from app.domain.search_plan import Node, SearchPlan
from app.events.database import Database
from app.events.log import SqlLog
from app.events.transact import Plans
from app.scheduling.simulator import Simulator
from stagetree.spec import StudySpec

STREAM, BATCH = "plan", 10_000


def history(trials: int) -> list[e.Event]:
    """Everything that happens to a grid of so many trials on eight slots."""
    lrs = [
        {"family": "multistep", "init": 0.1 * rate, "milestones": [20 + first, 60], "gamma": 0.1}
        for rate in range(1, 11)
        for first in range(10)
    ]
    sizes = [{"family": "values", "values": [64, 128], "milestones": [24 + size]} for size in range(trials // len(lrs))]
    study = {"name": "grid", "trainer": "digits", "metric": "accuracy", "mode": "max", "eval_every": 25}
    tuner = {"kind": "grid", "max_steps": 100}
    spec = StudySpec.from_dict({**study, "space": {"lr": lrs, "bs": sizes}, "tuner": tuner})
    simulator = Simulator(SearchPlan(), slots=8, measure=measure)
    opened = e.PlanOpened(trainer="digits", trainer_version="", trainer_args={}, seed=0)
    simulator.give(c.SubmitStudy(plan=opened, study=StudyId("grid"), spec=spec.to_json(), at=0.0))
    simulator.run()
    return simulator.events


def measure(node: Node, step: int) -> e.Metrics:
    return {"accuracy": 0.5, "loss": 1.5}


def report(what: str, events: int, run: Callable[[], Any]) -> None:
    before = time.perf_counter()
    run()
    took = time.perf_counter() - before
    print(f"{what:<40} {took:6.2f} s {events / took:10,.0f} events/s   100,000 in {1e5 / events * took:5.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=12_000)
    events = history(parser.parse_args().trials)
    kinds = Counter(type(event).__name__ for event in events)
    print(f"{len(events):,} events: " + ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(6)))
    report("fold a list", len(events), lambda: fold(events))
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/log.db")
        database.create()
        log = SqlLog(database)
        for start in range(0, len(events), BATCH):
            log.append(STREAM, events[start : start + BATCH], expected=None, at=0.0)
        report("read and fold a log in SQLite", len(events), lambda: Plans(log).get(STREAM))
        Plans(log, database).get(STREAM)
        report("the same from its snapshot", len(events), lambda: Plans(log, database).get(STREAM))
        database.dispose()


if __name__ == "__main__":
    main()
