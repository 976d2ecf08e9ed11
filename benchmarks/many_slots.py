"""Whether the scheduler keeps up with 500 slots, each a thread that trains nothing, against PostgreSQL.

    python benchmarks/many_slots.py [--slots 500] [--results 10 20 40] [--seconds 20]

Slots are threads of two processes. Each claims chains, states its facts with the proof of its right, and renews its
lease, as a worker does and by the workers' own state machine, on the wall clock; only that a stage takes its time
asleep. The scheduler is a third process with the real parts: it looks as soon as anything is on record, and all that
came during one look is taken in by the next. The study is ASHA's; `--results` are how many results a second all slots
together would report if none ever waited for work. For each, from when all slots have their first chain, which takes
the seconds of the last column: how many results they did report; how long a slot waits from its result being on record
until it has the next chain, in the middle and at p99, in the first and the last half of the time: a scheduler that does
not keep up lets them wait longer and longer; how long a look takes, for how many results, and how busy its process is.
PostgreSQL is as in `append.py`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf
from queue import Empty, Queue
from random import Random
from threading import Thread
from typing import Any
from uuid import uuid4

from append import postgres

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.terms import StudyId
from app.events.database import Database
from app.events.plans import Plans
from app.events.sql_log import SqlRecords
from app.process.garbage_collection import collect_young, freeze_survivors
from app.scheduling.fair_share import POLICIES
from app.simulation.slots import VirtualSlot
from app.simulation.virtual_chain import World
from app.workers.scheduler.ports import Ports
from app.workers.scheduler.tick import Scheduler
from stagetree.limits import Limits
from stagetree.spec import StudySpec

PLAN, TRAINER, PROCESSES = "plan", {"digits": ""}, 2
OPENED = e.PlanOpened(trainer="digits", trainer_version="", trainer_args={}, seed=0)
TUNER = {"kind": "asha", "min_steps": 1, "max_steps": 256, "reduction_factor": 4, "num_trials": 1_000_000}
SPACE = {"lr": {"loguniform": [1e-4, 1.0]}, "momentum": {"uniform": [0.8, 0.99]}}
LEASE_SECONDS, HEARTBEAT_SECONDS, TURN_SECONDS, LOOK_SECONDS = 60.0, 10.0, 30.0, 1.0


@dataclass(frozen=True)
class Measured:
    """waited: seconds that a slot was without a chain, and when that was over. looks: seconds, and results of each.

    busy: the share of a core that the scheduler took. first: seconds of the first look.
    """

    waited: list[tuple[float, float]]
    looks: list[tuple[float, int]]
    busy: float
    first: float


class SlotThread:
    """One slot: it does its due work, and the work of messages."""

    def __init__(self, name: str, records: SqlRecords, seconds: float, news: Any) -> None:
        self.name, self.inbox, self.waited = name, Queue[str | None](), list[tuple[float, float]]()
        self._due, self._order, self._news = list[tuple[float, int, Callable[[], bool]]](), count(), news
        self._records, self._random, self._freed_at, self._seconds = records, Random(name), 0.0, seconds
        world = World(
            records=records,
            stream=PLAN,
            clock=time.time,
            later=lambda at, do: heappush(self._due, (at, next(self._order), do)),
            pace=lambda stage, slot: (self._stage_seconds(), None),
            measure=lambda node, step: {"loss": self._random.random() + 1 / step},
        )
        self._slot = VirtualSlot(name, world)
        self._slot.register(dict(TRAINER))
        self.thread = Thread(target=self._run, name=name)

    def _stage_seconds(self) -> float:
        """Of the first one, a part only, as if the slot had been at it for a while."""
        return self._seconds * (self._random.uniform(0.5, 1.5) if self._freed_at else self._random.random())

    def _run(self) -> None:
        beat_at = time.time() + HEARTBEAT_SECONDS * self._random.random()
        while True:
            until = min(beat_at, self._due[0][0] if self._due else inf)
            try:
                chain = self.inbox.get(timeout=max(0.0, until - time.time()))
            except Empty:
                beat_at = self._do_what_is_due(beat_at)
                continue
            if chain is None:
                return
            self._slot.begin(chain)
            if self._freed_at:
                self.waited.append((time.time() - self._freed_at, time.time()))

    def _do_what_is_due(self, beat_at: float) -> float:
        """When the next heartbeat is due."""
        while self._due and self._due[0][0] <= time.time():
            if heappop(self._due)[2]():
                self._freed_at = time.time()
                self._news.release()
        if beat_at > time.time():
            return beat_at
        with self._records.write() as rows:
            rows.slots.touch(self.name, f"{self.name}/1")
        self._slot.beat()
        return time.time() + HEARTBEAT_SECONDS


def train(url: str, names: list[str], seconds: float, inbox: Any, news: Any, outbox: Any) -> None:
    """The process of some slots."""
    records = SqlRecords(Database(url))
    slots = {name: SlotThread(name, records, seconds, news) for name in names}
    for slot in slots.values():
        slot.thread.start()
    outbox.put("ready")
    for name, chain in iter(inbox.get, None):
        slots[name].inbox.put(chain)
    for slot in slots.values():
        slot.inbox.put(None)
    for slot in slots.values():
        slot.thread.join()
    outbox.put([each for slot in slots.values() for each in slot.waited])
    records.close()


def look(url: str, slots: int, seconds: float, inboxes: list[Any], news: Any, outbox: Any) -> None:
    """The scheduler's process, for this many seconds."""
    freeze_survivors()
    records, limits = SqlRecords(Database(url)), Limits(trials=10**9, nodes=10**9)
    process = {f"gpu{number}": inboxes[number % len(inboxes)] for number in range(slots)}
    plans, looks = Plans(records.log), list[tuple[float, int]]()
    ports = Ports(
        records=records,
        plans=plans,
        policy=POLICIES["fair_share"],
        publish=lambda chain, stages, slot: process[slot].put((slot, chain)) if stages else None,
        new_id=lambda: uuid4().hex,
        lease_seconds=LEASE_SECONDS,
        intermediate_bytes=0,
        limits=limits,
        turn_seconds=TURN_SECONDS,
        packs=False,
    )
    scheduler = Scheduler(ports)
    first = time.time()
    scheduler.tick()
    begun_at, cpu = time.time(), time.process_time()
    while time.time() < begun_at + seconds:
        results = int(news.acquire(timeout=LOOK_SECONDS))
        while news.acquire(block=False):
            results += 1
        begun = time.perf_counter()
        scheduler.tick()
        collect_young()
        looks.append((time.perf_counter() - begun, results))
    outbox.put((looks, (time.process_time() - cpu) / seconds, first, begun_at))
    records.close()


def measure(url: str, slots: int, rate: float, seconds: float) -> Measured:
    records, spawn = SqlRecords(Database(url)), multiprocessing.get_context("spawn")
    records.database.create()
    study = {"name": "many", "trainer": "digits", "metric": "loss", "mode": "min", "space": SPACE, "tuner": TUNER}
    command = c.SubmitStudy(
        plan=OPENED, study=StudyId("many"), spec=StudySpec.from_dict(study, limits=None).to_json(), at=time.time()
    )
    records.log.append(PLAN, decide(Plans(records.log).get(PLAN), command), expected=0, at=time.time())
    records.close()
    news, outbox = spawn.Semaphore(0), spawn.Queue()
    inboxes = [spawn.Queue() for _ in range(PROCESSES)]
    workers = list[Any]()
    for number, inbox in enumerate(inboxes):
        names = [f"gpu{slot}" for slot in range(number, slots, PROCESSES)]
        workers.append(spawn.Process(target=train, args=(url, names, slots / rate, inbox, news, outbox)))
        workers[-1].start()
    assert [outbox.get() for _ in workers] == ["ready"] * PROCESSES
    scheduler = spawn.Process(target=look, args=(url, slots, seconds, inboxes, news, outbox))
    scheduler.start()
    looks, busy, first, begun_at = outbox.get()
    for inbox in inboxes:
        inbox.put(None)
    waited = [each for _ in workers for each in outbox.get()]
    for process in (*workers, scheduler):
        process.join()
    return Measured([each for each in waited if each[1] > begun_at], looks, busy, begun_at - first)


def line(rate: float, seconds: float, measured: Measured) -> str:
    waited = sorted(measured.waited, key=lambda each: each[1])
    half = len(waited) // 2
    numbers = [rate, sum(results for _, results in measured.looks) / seconds]
    for part in (waited[:half], waited[half:]):
        ordered = sorted(1e3 * each for each, _ in part)
        numbers += [statistics.median(ordered), ordered[len(ordered) * 99 // 100]]
    looks = [1e3 * each for each, _ in measured.looks]
    results = statistics.fmean(results for _, results in measured.looks)
    numbers += [statistics.median(looks), results, measured.busy, measured.first]
    return " ".join(f"{number:10.2f}" for number in numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, default=500)
    parser.add_argument("--results", type=float, nargs="+", default=[10.0, 20.0, 40.0])
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    print(f"{arguments.slots} slots; results a second, and milliseconds")
    columns = ("asked for", "reported", "waits", "p99", "later", "p99", "a look", "results", "busy", "first look")
    print(" ".join(f"{column:>10}" for column in columns))
    for rate in arguments.results:
        with postgres() as url:
            measured = measure(url, arguments.slots, rate, arguments.seconds)
        print(line(rate, arguments.seconds, measured), flush=True)


if __name__ == "__main__":
    main()
