"""What one thing that happens costs the scheduler, by the number of trials: `python benchmarks/tick.py`.

A stage ends on a virtual slot, and the scheduler ticks: it reads new events, folds them, asks the tuner, finds the
longest path, gives it to the slot and writes that down. All parts are the real ones, over a database in a SQLite file,
PostgreSQL (`--database postgresql`, as in `append.py`, or the URL of an empty one for one line), or in memory
(`--database memory`), which leaves out what the disk takes. Measured in studies of different shapes, in milliseconds on
the clock, and of this process's CPU, which is what a tick costs where other work is on the machine; the garbage
collector is set as in the scheduler's process. The budget is 20 ms, flat to 100,000 trials, and 50 ms for 99 of 100.
`turns` are eight studies of different weights, whose chains make room for each other: a look every five seconds. In
`gangs`, each path has two slots, or more where slots are idle. `slots` is a look where all slots (`--slots 500`) have
work, and nothing happened. After that: a look at a thousand plans with five thousand studies where nothing happened,
which should take 50 ms.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

from append import postgres
from policies import COMPARED

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.terms import ChainOutcome, StudyId
from app.events.database import Database
from app.events.memory import MemoryRecords
from app.events.plans import Plans
from app.events.records import Records
from app.events.sql_log import SqlRecords
from app.process.garbage_collection import collect_young, freeze_survivors
from app.scheduling.preemption import LEAST_SECONDS
from app.simulation.slots import VirtualSlot
from app.simulation.virtual_chain import World
from app.workers.scheduler.ports import Ports
from app.workers.scheduler.tick import Scheduler
from stagetree.limits import Limits
from stagetree.spec import StudySpec

PLAN = "plan"
BATCH = 1000

STUDY = StudyId("study")
Trial = tuple[dict[str, Any], int]
Took = tuple[float, float]
"""Milliseconds on the clock, and of CPU."""


def values(values: list[Any], milestones: list[int]) -> dict[str, Any]:
    return {"family": "values", "values": values, "milestones": milestones}


def one_trunk(trials: int) -> Iterator[Trial]:
    """All branch at one place."""
    return (({"lr": values([0.1, 1 + number], [100])}, 110) for number in range(trials))


def many_branch_points(trials: int) -> Iterator[Trial]:
    """One node has a thousand branch points."""
    return (
        ({"lr": values([0.1, 1 + number // 1000], [1 + number % 1000])}, 10 + number % 1000) for number in range(trials)
    )


def many_roots(trials: int) -> Iterator[Trial]:
    """Nothing is shared."""
    return (({"lr": 1 + number}, 10) for number in range(trials))


def deep_chains(trials: int) -> Iterator[Trial]:
    """Every trial has forty nodes, of which it shares the first twenty with nine others."""
    for number in range(trials):
        family, member = divmod(number, 10)
        parts = [family * 100 + part + (part >= 20) * (member + 1) / 100 for part in range(40)]
        yield {"lr": values(parts, list(range(5, 200, 5)))}, 200


def grid(trials: int) -> Iterator[Trial]:
    """A multistep with ten rates, milestones and factors, crossed with batch sizes that double somewhere."""
    for number in range(trials):
        rate, first, gamma, doubles = number % 10, number // 10 % 10, number // 100 % 10, number // 1000
        lr = {"family": "multistep", "init": 0.01 * (rate + 1), "milestones": [20 + first], "gamma": 0.1 * (gamma + 1)}
        yield {"lr": lr, "bs": values([64, 128], [10 + doubles])}, 100


SHAPES: list[Callable[[int], Iterator[Trial]]] = [one_trunk, many_branch_points, many_roots, deep_chains, grid]

OPENED = e.PlanOpened(trainer="digits", trainer_version="", trainer_args={}, seed=0)


TURN_SECONDS = 10.0
STUDIES = 8
LONG = 100_000
"""Steps, of a second each, of trials that last until they must make room."""


class Bench:
    """A scheduler over records, and virtual slots that end a stage, which takes `seconds`, on command.

    turn_seconds: as in `Ports`.
    """

    def __init__(
        self,
        records: Records,
        slots: int,
        policy: str = "fair_share",
        *,
        seconds: float = 1.0,
        turn_seconds: float | None = None,
    ) -> None:
        self.plans, self._chains = Plans(records.log), count()
        self._now, self._calls = 0.0, list[tuple[float, int, Callable[[], bool]]]()
        self.ports = Ports(
            records=records,
            plans=self.plans,
            policy=COMPARED[policy],
            publish=self._begin,
            new_id=lambda: f"{time.time_ns()}-{next(self._chains)}",
            lease_seconds=inf,
            intermediate_bytes=0,
            limits=Limits(trials=10**9, nodes=10**9),
            clock=lambda: self._now,
            elapsed=lambda: self._now,
            notify=lambda chain, slot: self._slots[slot].look(),
            turn_seconds=turn_seconds,
        )
        self.scheduler = Scheduler(self.ports)
        world = World(
            records=records,
            stream=PLAN,
            clock=lambda: self._now,
            later=self._later,
            pace=lambda stage, slot: (seconds, None),
            measure=measured,
        )
        self._slots = {f"gpu{n}": VirtualSlot(f"gpu{n}", world) for n in range(slots)}
        for slot in self._slots.values():
            slot.register({OPENED.trainer: OPENED.trainer_version})

    def give(self, command: c.Command, plan: str = PLAN) -> None:
        self.ports.transact(plan, lambda found: decide(found, command, self.ports.limits))

    def submit(self, tuner: dict[str, Any], study: StudyId = STUDY, plan: str = PLAN, **fields: Any) -> None:
        space = {} if tuner["kind"] == "external" else {"space": {"lr": {"loguniform": [1e-4, 1.0]}}}
        named = {"name": "study", "trainer": "digits", "metric": "accuracy", "mode": "max", "eval_every": 50}
        spec = StudySpec.from_dict({**named, **space, "tuner": tuner, **fields}, limits=None).to_json()
        self.give(c.SubmitStudy(plan=OPENED, study=study, spec=spec, at=0.0), plan)

    def stage_ends(self) -> None:
        """On the slot whose turn it is."""
        while self._calls:
            self._now, _, call = heappop(self._calls)
            if call():
                return

    def wait(self, seconds: float) -> None:
        """Other events on slots meanwhile."""
        end = self._now + seconds
        while self._calls and self._calls[0][0] <= end:
            self._now, _, call = heappop(self._calls)
            call()
        self._now = end

    def stopped(self) -> int:
        """How many chains ended before they were done."""
        events = (each.event for each in self.ports.records.log.read(PLAN))
        return sum(isinstance(each, e.ChainEnded) and each.outcome == ChainOutcome.STOPPED for each in events)

    def _later(self, at: float, call: Callable[[], bool]) -> None:
        heappush(self._calls, (at, next(self._chains), call))

    def tick(self) -> Took:
        before, cpu_before = time.perf_counter(), time.process_time()
        self.scheduler.tick()
        collect_young()
        return (time.perf_counter() - before) * 1e3, (time.process_time() - cpu_before) * 1e3

    def _begin(self, chain: str, stages: int, slot: str) -> None:
        if stages:
            self._slots[slot].begin(chain)


def measured(node: str, step: int) -> e.Metrics:
    return {"accuracy": (hash(node) % 1000) / 1000 + step / 1e6}


def asked(bench: Bench, trials: Iterator[Trial], study: StudyId = STUDY, **fields: Any) -> None:
    """A study whose trials come from outside."""
    bench.submit({"kind": "external"}, study, **fields)
    while batch := [c.Start(hp=hp, steps=steps) for (hp, steps), _ in zip(trials, range(BATCH), strict=False)]:
        bench.give(c.AskForTrials(study=study, actions=tuple(batch)))


def measure(bench: Bench, stages: int) -> list[Took]:
    bench.tick()
    took: list[Took] = []
    for _ in range(stages):
        bench.stage_ends()
        took.append(bench.tick())
    return took


def measure_turns(bench: Bench, trials: int, looks: int) -> list[Took]:
    """Looks at studies that take turns, of different weights, in which nothing is shared."""
    each = trials // STUDIES
    for number in range(STUDIES):
        mine: Iterator[Trial] = (({"lr": 1 + trial}, LONG) for trial in range(number * each, (number + 1) * each))
        asked(bench, mine, StudyId(f"study{number}"), weight=1 + number, eval_every=None)
    bench.tick()
    took: list[Took] = []
    for _ in range(looks):
        bench.wait(LEAST_SECONDS)
        took.append(bench.tick())
    print(f"  chains that made room for another study: {bench.stopped()}")
    return took


def show(what: str, trials: int, took: list[Took]) -> None:
    row: list[float] = []
    for column in map(sorted, zip(*took, strict=True)):
        row += (statistics.median(column), column[int(len(column) * 0.99)], column[-1])
    print(f"{what:<31} {trials:>7}" + " ".join(f"{one:8.2f}" for one in row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--stages", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--policy", choices=COMPARED, default="fair_share")
    parser.add_argument("--database", help="memory, postgresql, or the URL of an empty one for one line")
    others = ["asha", "turns", "gangs", "slots", "plans"]
    parser.add_argument("--shapes", nargs="+", default=[*(shape.__name__ for shape in SHAPES), *others])
    arguments = parser.parse_args()
    freeze_survivors()
    print(f"{'ms for one thing that happened':<32} trials   median      p99      max      CPU      p99      max")
    for shape in arguments.shapes:
        for trials in arguments.trials if shape != "plans" else [5_000]:
            with tempfile.TemporaryDirectory() as folder, records(arguments.database, folder) as opened:
                line(shape, trials, opened, arguments)


@contextmanager
def records(database: str | None, folder: str) -> Iterator[Records]:
    if database == "memory":
        yield MemoryRecords()
        return
    url = nullcontext(database or f"sqlite:///{folder}/log.db")
    with postgres() if database == "postgresql" else url as place:
        opened = Database(place)
        opened.create()
        yield SqlRecords(opened)
        opened.dispose()


def line(shape: str, trials: int, opened: Records, arguments: argparse.Namespace) -> None:
    turns = {"seconds": float(LONG), "turn_seconds": TURN_SECONDS} if shape == "turns" else {}
    bench = Bench(opened, arguments.slots, arguments.policy, **turns)
    if shape == "plans":
        for number in range(trials):
            bench.submit({"kind": "external"}, StudyId(f"study{number}"), f"plan{number // 5}")
        bench.tick()
        show("a look at a thousand plans", trials, [bench.tick() for _ in range(100)])
    elif shape == "asha":
        tuner = {"kind": "asha", "num_trials": trials, "min_steps": 1, "max_steps": 256}
        bench.submit(tuner)
        show("asha", trials, measure(bench, arguments.stages))
    elif shape == "turns":
        show("eight studies that take turns", trials, measure_turns(bench, trials, arguments.stages))
    elif shape == "gangs":
        asked(bench, many_roots(trials), shards=8, ranks={"least": 2, "most": 8})
        show("gangs of two to eight slots", trials, measure(bench, arguments.stages))
    elif shape == "slots":
        asked(bench, many_roots(trials))
        bench.tick()
        show(f"a look at {arguments.slots} busy slots", trials, [bench.tick() for _ in range(100)])
    else:
        asked(bench, next(each for each in SHAPES if each.__name__ == shape)(trials))
        show(shape.replace("_", " "), trials, measure(bench, arguments.stages))


if __name__ == "__main__":
    main()
