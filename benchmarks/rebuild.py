"""How long a plan takes to fold from its events: `python benchmarks/rebuild.py`.

The events are from a grid that was run to its end in a simulation: from a list, and from a log in a SQLite file.
Then a log of nothing but trials: a grid whose sequences change often, and draws of which no two begin alike. The budget
is 100,000 events in 5 s.
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
from app.domain.decide import decide
from app.domain.evolve import fold
from app.domain.search_plan import Node, SearchPlan
from app.domain.terms import StudyId
from app.events.database import Database
from app.events.records import Plans
from app.events.sql_log import SqlLog
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec

STREAM, BATCH = "plan", 10_000


def history(trials: int) -> list[e.Event]:
    """All events of a grid of this many trials on eight slots."""
    lrs = [
        {"family": "multistep", "init": 0.1 * rate, "milestones": [20 + first, 60], "gamma": 0.1}
        for rate in range(1, 11)
        for first in range(10)
    ]
    sizes = [{"family": "values", "values": [64, 128], "milestones": [24 + size]} for size in range(trials // len(lrs))]
    study = {"name": "grid", "trainer": "digits", "metric": "accuracy", "mode": "max", "eval_every": 25}
    tuner = {"kind": "grid", "max_steps": 100}
    spec = StudySpec.from_dict({**study, "space": {"lr": lrs, "bs": sizes}, "tuner": tuner})
    simulator = Simulator(slots=8, measure=measure)
    simulator.submit(StudyId("grid"), spec.to_json())
    simulator.run()
    return simulator.events


def trials(number: int, kind: str) -> list[e.Event]:
    """This many requested trials, and nothing else."""
    opened = e.PlanOpened(trainer="digits", trainer_version="", trainer_args={}, seed=0)
    study, plan = StudyId(kind), SearchPlan()
    spec = {"name": kind, "metric": "accuracy", "mode": "max", "tuner": {"kind": kind}}
    events = list(decide(plan, c.SubmitStudy(plan=opened, study=study, spec=spec, at=0.0)))
    fold(events, plan)
    starts = tuple(c.Start(hp=configuration(n, kind), steps=100) for n in range(number))
    return [*events, *decide(plan, c.ApplyTunerActions(study=study, actions=starts))]


def configuration(number: int, kind: str) -> dict[str, Any]:
    if kind == "drawn":
        return {"lr": {"family": "cosine", "init": 1 / (number + 2), "min": 0.0, "period": 100}, "bs": 64}
    milestones = [10 + number % 10, 30 + number // 10 % 10, 50 + number // 100 % 10, 70 + number // 1000 % 10]
    lr = {"family": "multistep", "init": 0.1 * (1 + number // 10_000), "milestones": milestones, "gamma": 0.1}
    return {"lr": lr, "bs": {"family": "values", "values": [64, 128], "milestones": [24]}}


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
    report_log("grid", events)
    for kind in ("branchy", "drawn"):
        report_log(f"trials, {kind}", trials(parser.parse_args().trials, kind))


def report_log(kind: str, events: list[e.Event]) -> None:
    report(f"{kind}: fold a list", len(events), lambda: fold(events))
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/log.db")
        database.create()
        log = SqlLog(database)
        for start in range(0, len(events), BATCH):
            log.append(STREAM, events[start : start + BATCH], expected=None, at=0.0)
        report(f"{kind}: read and fold from SQLite", len(events), lambda: Plans(log).get(STREAM))
        database.dispose()


if __name__ == "__main__":
    main()
