"""What one thread of a slot publishes and others read is a value that is put in place at once: none is lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event as Flag
from threading import Thread

import pytest
from cluster import Cluster
from stacks import wait_for
from studies import spec

CHAINS = 15


@pytest.fixture(autouse=True)
def threads_that_alternate_all_the_time() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@contextmanager
def beating(cluster: Cluster) -> Iterator[None]:
    """The slot's heartbeat looks without a pause, on a thread of its own, while others begin and end chains."""
    ended = Flag()

    def beat() -> None:
        while not ended.is_set():
            cluster.slots["gpu0"].heartbeat.round()

    thread = Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
def test_no_chain_that_begins_while_the_heartbeat_looks_is_without_one(cluster: Cluster) -> None:
    renewed = set[str]()

    def wait_for_a_heartbeat(slot: str, process: object, what: str, step: int) -> None:
        if (what, step) != ("train", 1):
            return
        (row,) = [row for row in cluster.live() if row.state == "running"]

        def is_renewed() -> bool:
            cluster.clock.wait(cluster.limits.heartbeat)
            return any(now.lease_until > row.lease_until for now in cluster.live())

        wait_for("a heartbeat", is_renewed)
        renewed.add(row.chain)

    cluster.script = wait_for_a_heartbeat
    study = cluster.submit(spec(*(({"lr": lr / 100}, 2) for lr in range(1, CHAINS + 1))))
    with beating(cluster):
        done = cluster.run(study)
    assert done.executed == done.unique
    assert len(renewed) == CHAINS
