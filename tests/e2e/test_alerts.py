"""Alerts about servers and processes: each fires alone and only while its cause lasts.

The processes of a real cluster are scraped with a token; only the minutes are virtual. Alerts about one slot are in
tests/workers/test_slot_alerts.py.
"""

from __future__ import annotations

import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from uuid import uuid4

import pytest
from stacks import LEASE_SECONDS, Cluster, wait_for
from toys import grid

from app.domain.terms import Scope
from app.events.sql_log import SqlRecords
from app.service.access import KNOWN_SECONDS, create, revoke
from stagetree.client import Client
from tests.promql import NAME, Prometheus

pytestmark = [pytest.mark.usefixtures("whole"), pytest.mark.slow]

SCRAPE_TIMEOUT = 10.0
"""As Prometheus has it by default."""


def token(cluster: Cluster, name: str, scope: Scope) -> str:
    return create(SqlRecords(cluster.database), name, scope, None, 1.0, time.time())


@pytest.fixture(scope="module")
def guarded_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """Its API asks everyone for a token; the cluster's client has one."""
    cluster.restart("api", STAGETREE_ACCESS="always")
    before = cluster.client
    with Client(cluster.url, token=token(cluster, "alerts", Scope.ADMIN)) as cluster.client:
        yield cluster
    cluster.client = before
    cluster.restart("api")


@pytest.fixture
def token_name() -> str:
    return f"prometheus-{uuid4().hex[:8]}"


@pytest.fixture
def prometheus(guarded_cluster: Cluster, token_name: str) -> Iterator[Prometheus]:
    """Scrapes the API with a token of its own."""
    read = token(guarded_cluster, token_name, Scope.READ)

    def ask() -> str | None:
        asked = urllib.request.Request(f"{guarded_cluster.url}/metrics", headers={"Authorization": f"Bearer {read}"})
        try:
            with urllib.request.urlopen(asked, timeout=SCRAPE_TIMEOUT) as answer:
                return str(answer.read().decode())
        except (OSError, urllib.error.HTTPError):
            return None

    made = Prometheus({"api:8000": ask})
    wait_for("a calm cluster", lambda: made.scrape() == {} and is_ready(made))
    yield made


def is_ready(prometheus: Prometheus) -> bool:
    checks = prometheus.samples.instant(prometheus.now, [(NAME, "=", "stagetree_ready")]).values()
    return len(checks) == 6 and all(checks)


@pytest.mark.parametrize(("kind", "minutes"), [("refuse", 30), ("freeze", 8)])
def test_the_database_is_away(cluster: Cluster, prometheus: Prometheus, kind: str, minutes: int) -> None:
    """The API can then neither check the token nor read numbers from the database."""
    with cluster.fault("database", kind, "api"):
        time.sleep(KNOWN_SECONDS)
        assert prometheus.watch(4) == {}
        fired = prometheus.watch(minutes)
    said = [f"stagetree has no {check} for five minutes" for check in ("database", "schema")]
    assert {alert: sorted(texts) for alert, texts in fired.items()} == {"StagetreeNotReady": said}
    wait_for("the end of the alert", lambda: prometheus.scrape() == {} and is_ready(prometheus))


@pytest.mark.parametrize("server", ["broker", "store"])
def test_another_server_is_unavailable(cluster: Cluster, prometheus: Prometheus, server: str) -> None:
    with cluster.fault(server, "refuse", "api"):
        wait_for("it to be missed", lambda: prometheus.scrape() == {} and not is_ready(prometheus))
        fired = prometheus.watch(12)
    assert fired == {"StagetreeNotReady": [f"stagetree has no {server} for five minutes"]}
    wait_for("the end of the alert", lambda: prometheus.scrape() == {})


def test_no_scheduler_looks(cluster: Cluster, prometheus: Prometheus) -> None:
    cluster.kill("scheduler", signal.SIGTERM)
    try:
        wait_for("it to be missed", lambda: prometheus.scrape() == {} and not is_ready(prometheus))
        assert prometheus.watch(2) == {}
        assert prometheus.watch(12).keys() == {"StagetreeSchedulerSilent"}
    finally:
        cluster.start("scheduler")
    wait_for("the end of the alert", lambda: prometheus.scrape() == {})


def test_no_slot_is_at_work(cluster: Cluster, prometheus: Prometheus, token_name: str) -> None:
    """Their workers were killed: their rows stay."""
    slots = ("gpu0", "gpu1")
    for slot in slots:
        cluster.kill(slot)
    study = cluster.submit(grid("no-slot"))
    time.sleep(LEASE_SECONDS)
    try:
        assert prometheus.watch(9) == {}
        assert prometheus.watch(4).keys() == {"StagetreeSlotLost", "StagetreeWithoutSlots"}
    finally:
        cluster.start(*slots)
    assert cluster.wait(study)["state"] == "completed"
    assert prometheus.watch(1) == {}


def test_the_api_is_unavailable(cluster: Cluster, prometheus: Prometheus) -> None:
    cluster.kill("api")
    assert prometheus.watch(4) == {}
    assert prometheus.watch(3).keys() == {"StagetreeUnseen", "StagetreeApiDown"}
    cluster.restart("api", STAGETREE_ACCESS="always")


def test_the_token_was_revoked(cluster: Cluster, prometheus: Prometheus, token_name: str) -> None:
    revoke(SqlRecords(cluster.database), token_name, time.time())
    time.sleep(KNOWN_SECONDS)
    assert prometheus.watch(7).keys() == {"StagetreeUnseen", "StagetreeApiDown"}


def test_in_calm_nothing_fires_while_studies_are_trained(cluster: Cluster, prometheus: Prometheus) -> None:
    study = cluster.submit(grid("calm", seconds=0.1))
    done = lambda: cluster.client.study(study, trials=False)["state"] == "completed"  # noqa: E731
    wait_for("the end of the study", lambda: prometheus.watch(5) == {} and done())
    assert prometheus.watch(60) == {}
    for slot in ("gpu0", "gpu1"):
        assert prometheus.value("stagetree_slot_memory_bytes", slot=slot) > 10 * 2**20
        assert prometheus.value("stagetree_trainer_memory_bytes", slot=slot) > 0
    assert prometheus.value("stagetree_scheduler_memory_bytes") > 10 * 2**20
    assert prometheus.value("stagetree_api_memory_bytes") > 10 * 2**20
