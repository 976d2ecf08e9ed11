"""Outages of any server, in any way and of any length: they are waited for, and every trial ends as without them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from faults import begin, check, check_cost, check_log
from stacks import PATIENCE, Cluster, Json, wait_for
from toys import curves, switch, trials

pytestmark = pytest.mark.usefixtures("whole")

PROCESSES = ("api", "gpu0", "gpu1", "scheduler")
LONG = 9.0
"""More than two of the cluster's leases."""

MISSING = 2.0
"""A state that is missing for longer than the cluster's five seconds of patience is rightly struck."""


@pytest.mark.slow
@pytest.mark.parametrize("server", ["database", "broker", "store"])
def test_connections_that_a_firewall_forgot(cluster: Cluster, expected_curves: list[Json], server: str) -> None:
    """Of every process at once, and again when new ones were made."""
    study, _ = begin(cluster, f"forgotten-{server}")
    for _ in range(2):
        for proxy in cluster.proxies(server):
            proxy.forget()
        time.sleep(0.5)
    check(cluster, study, expected_curves)


@pytest.mark.parametrize("kind", [pytest.param("refuse", marks=pytest.mark.slow), "freeze"])
def test_a_broker_outage(cluster: Cluster, expected_curves: list[Json], kind: str) -> None:
    study, _ = begin(cluster, f"broker-{kind}")
    with cluster.fault("broker", kind):
        assert cluster.client.study(study)  # no request waits for the broker
        cluster.client.pause(study)
        cluster.client.resume(study)
        time.sleep(LONG)
    check(cluster, study, expected_curves)


@contextmanager
def bad_store(cluster: Cluster, how: str) -> Iterator[None]:
    answers = {
        "503": b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        "404": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    }
    for proxy in cluster.proxies("store"):
        if how in answers:
            proxy.answer(answers[how])
        elif how == "truncated":
            proxy.truncate(300)
        else:
            getattr(proxy, how)()
    try:
        yield
    finally:
        for proxy in cluster.proxies("store"):
            proxy.heal()


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("refuse", marks=pytest.mark.slow),
        pytest.param("freeze", marks=pytest.mark.slow),
        pytest.param("503", marks=pytest.mark.slow),
        pytest.param("404", marks=pytest.mark.slow),
        "truncated",
    ],
)
def test_a_store_outage(cluster: Cluster, expected_curves: list[Json], how: str) -> None:
    study, _ = begin(cluster, f"store-{how}")
    with bad_store(cluster, how):
        time.sleep(MISSING if how == "404" else 6)
    check(cluster, study, expected_curves)
    assert not cluster.facts(study, "CheckpointDropped")


@pytest.mark.slow
def test_a_training_process_that_dies_while_the_database_is_away(cluster: Cluster, expected_curves: list[Json]) -> None:
    study, slot = begin(cluster, "orphan")
    with cluster.fault("database", "refuse"):
        before = cluster.signal_child(slot, signal.SIGKILL)
        wait_for("a new process", lambda: cluster.child(slot) not in (None, before))
        time.sleep(1)
    wait_for("the slot", lambda: cluster.is_ready(slot))
    check(cluster, study, expected_curves)


@pytest.mark.slow
@pytest.mark.parametrize(
    "server",
    ["database", "broker", "store"],
)
def test_processes_end_at_sigterm(cluster: Cluster, server: str) -> None:
    study, slot = begin(cluster, f"end-{server}")
    names = (slot, "api", "scheduler")
    with cluster.fault(server, "freeze"):
        for name in names:
            os.kill(cluster.processes[name].pid, signal.SIGTERM)
        for name in names:
            cluster.processes[name].wait(PATIENCE)
    cluster.start(*names)
    wait_for("the end of the study", lambda: is_completed(cluster, study))


def is_completed(cluster: Cluster, study: str) -> bool:
    from stagetree.client import Unreachable

    try:
        return bool(cluster.client.study(study)["state"] == "completed")
    except Unreachable:
        return False


@pytest.mark.slow
def test_branches_begin_on_the_host_before_the_trunk_is_in_the_store(cluster: Cluster, tmp_path: Path) -> None:
    """The store is frozen until all branches are trained: their state came from a disk that both slots share."""
    slots, lr = ("gpu0", "gpu1"), [switch(0.1, 0.1 + number, 4) for number in range(1, 5)]
    spec = trials("early", *(({"lr": each}, 8) for each in lr), seconds=0.05)
    spec["trainer_args"] |= {"ballast": 3 * 2**20}
    cluster.restart(*slots, STAGETREE_CACHE=f"{tmp_path},1GiB", STAGETREE_PROOFS="0")
    try:
        with cluster.fault("store", "freeze", *slots):
            study = cluster.submit(spec)
            cluster.wait_for_event(study, "CheckpointCached", step=4)
            wait_for("the ends of all branches", lambda: len(cluster.facts(study, "StageCompleted")) >= 5)
            assert not cluster.facts(study, "CheckpointKept")
        assert cluster.wait(study)["state"] == "completed"
        check_log(cluster, study)
        check_cost(cluster, study)
        assert {fact["slot"] for fact in cluster.facts(study, "ChainAssigned")} == {*slots}
    finally:
        cluster.restart(*slots)
    alone = cluster.run(spec | {"merge": False, "trainer_args": spec["trainer_args"] | {"tag": "early, alone"}})
    assert curves(cluster, study) == curves(cluster, alone["study"])
