"""Alerts about slots, in virtual time: each fires where its cause is real, and none does in calm.

The scheduler, the slots, the database and the API are the real ones. Those about servers are in
tests/e2e/test_alerts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from cluster import TOY, Cluster
from fastapi.testclient import TestClient
from faulty import ClosedStore
from stacks import Json
from studies import BRANCHES, spec

from app.events.database import Database
from app.main import create_app
from app.search.tuners.driver import TunerDriver
from app.service.health import Checks, check_writable
from app.settings import Settings
from app.workers.slot.claim import NoTrainerProcess
from tests.promql import INTERVAL, Prometheus

HOUR = 60.0
LONGEST = 1.25 * HOUR
"""Longer than any alert looks back and waits."""

BEATS = 3


@dataclass
class Monitoring:
    """A cluster, and what scrapes it after every third heartbeat."""

    cluster: Cluster
    prometheus: Prometheus

    def tick(self) -> None:
        """Ticks with a report, and heartbeats of each slot; messages are not delivered."""
        for _ in range(BEATS):
            self.cluster.ticker.tick()
            self.cluster.beat()
        with self.cluster.records.write() as rows:
            rows.schedulers.record_tick("me", "here", 1, held_up=self.cluster.ticker.held_up_reasons())

    def round(self) -> None:
        self.tick()
        while self.cluster.messages:
            self.cluster.deliver()
        self.cluster.settle()

    def watch(self, minutes: float, meanwhile: Callable[[], object] | None = None) -> dict[str, list[str]]:
        return self.prometheus.watch(minutes, meanwhile or self.round)


@pytest.fixture
def monitoring(sqlite_url: str, tmp_path: Path) -> Iterator[Monitoring]:
    cluster = Cluster(Database(sqlite_url), tmp_path, slots=2, heartbeat=INTERVAL / BEATS)
    app = create_app(Settings(database_url=sqlite_url, trainers=TOY, broker_url="memory://", hosts="test"))
    checks = Checks({"database": partial(check_writable, cluster.records)})
    app.state.services = replace(app.state.services, records=cluster.records, checks=checks)
    http = TestClient(app, base_url="http://test")
    yield Monitoring(cluster, Prometheus({"api": lambda: http.get("/metrics").text}))
    cluster.close()


def long(steps: int) -> Json:
    return spec(({"lr": 0.1}, steps))


def test_in_calm_nothing_fires_at_work_or_without_any(monitoring: Monitoring) -> None:
    monitoring.cluster.submit(BRANCHES)
    assert monitoring.watch(0.5 * HOUR) == {}
    monitoring.cluster.submit(long(20))
    assert monitoring.watch(LONGEST) == {}
    assert monitoring.prometheus.value("stagetree_studies", state="completed") == 2
    assert monitoring.prometheus.value("stagetree_slots", state="idle") == 2


def test_a_slot_stands_still(monitoring: Monitoring) -> None:
    seen = list[dict[str, list[str]]]()

    def hang() -> None:
        for minutes in (60, 10):
            seen.append(monitoring.watch(minutes, monitoring.tick))

    monitoring.cluster.submit(long(8))
    monitoring.cluster.at("train", 3, hang)
    monitoring.round()
    assert seen[0] == {}
    assert seen[1].keys() == {"StagetreeStandsStill"} and "slot gpu" in seen[1]["StagetreeStandsStill"][0]
    assert monitoring.watch(1) == {}


def test_a_slot_that_is_given_work_after_hours_without_any_does_not_stand_still(monitoring: Monitoring) -> None:
    assert monitoring.watch(LONGEST) == {}
    monitoring.cluster.submit(long(8))
    monitoring.cluster.at("train", 3, lambda: monitoring.watch(1, monitoring.tick))
    assert monitoring.watch(6) == {}


def test_a_store_that_takes_nothing_from_one_slot(monitoring: Monitoring) -> None:
    store = monitoring.cluster.store.before_write = ClosedStore()
    monitoring.cluster.submit(long(8))
    monitoring.tick()
    monitoring.cluster.deliver()
    assert store.reached.wait(60)
    assert monitoring.watch(10, monitoring.tick) == {}
    fired = monitoring.watch(10, monitoring.tick)
    assert fired.keys() == {"StagetreeBacklog"} and "the saver of slot gpu" in fired["StagetreeBacklog"][0]
    store.back.set()
    monitoring.round()
    assert monitoring.watch(1) == {}


def test_messages_that_do_not_arrive(monitoring: Monitoring) -> None:
    monitoring.cluster.submit(long(8))
    assert monitoring.watch(4, monitoring.tick) == {}
    assert monitoring.watch(6, monitoring.tick).keys() == {"StagetreeUndelivered"}
    monitoring.round()
    assert monitoring.watch(3)
    assert monitoring.watch(1) == {}


def test_a_slot_where_nothing_can_be_trained(monitoring: Monitoring) -> None:
    """It is tested again and again between two quarantines."""

    def fail(slot: str, process: object, what: str, step: int) -> None:
        if slot == "gpu0":
            raise NoTrainerProcess("no CUDA device")

    monitoring.cluster.script = fail
    for number in range(40):
        monitoring.cluster.submit(spec(({"lr": 0.1 + number}, 2), ({"lr": 0.2 + number}, 2), name=f"study-{number}"))
    fired = monitoring.watch(20)
    assert fired.keys() == {"StagetreeSlotInQuarantine"}


def test_an_error_in_the_scheduler_holds_up_a_study(monitoring: Monitoring) -> None:
    class Lame(TunerDriver):
        def suggest(self, *given: object, **named: object) -> object:  # type: ignore[override]
            raise KeyError("x")

    ports = monitoring.cluster.ports()
    monitoring.cluster.ticker = type(monitoring.cluster.ticker)(
        replace(ports, make_driver=lambda study, spec: Lame(spec))
    )
    monitoring.cluster.submit(BRANCHES)
    fired = monitoring.watch(4)
    assert fired == {"StagetreeHeldUp": ["an error holds up 1 studies or plans; all others are trained"]}


def test_a_slot_that_is_not_heard_of_any_more_and_then_all_of_them(monitoring: Monitoring) -> None:
    slots = monitoring.cluster.slots
    monitoring.cluster.slots = {"gpu1": slots["gpu1"]}
    assert monitoring.watch(13) == {"StagetreeSlotLost": ["1 slots were not heard of for ten minutes"]}
    monitoring.cluster.slots = {}
    assert monitoring.watch(13).keys() == {"StagetreeSlotLost"}, "nothing waits for them"
    monitoring.cluster.submit(long(8))
    assert monitoring.watch(13).keys() == {"StagetreeSlotLost", "StagetreeWithoutSlots"}
    monitoring.cluster.slots = slots
