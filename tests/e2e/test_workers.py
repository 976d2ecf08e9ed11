"""Workers that are started wrongly, twice, or again; a beat that is dead; messages that are none."""

from __future__ import annotations

import os
import signal
import subprocess

import psutil
import pytest
from faults import begin, check, stop_at_work
from stacks import Cluster, Json, wait_for
from toys import trials

pytestmark = pytest.mark.usefixtures("whole")


def another(cluster: Cluster, like: str, *queues: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A worker as `like` is, but on these queues and with these settings, which ends by itself."""
    command = list(cluster.commands[like])
    command[command.index("-Q") + 1] = ",".join(queues)
    environment = {**os.environ, **cluster.settings, **cluster.addresses(like), **settings}
    return subprocess.run(
        command, env=environment, cwd=cluster.folder, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.slow
def test_a_worker_that_can_be_no_slot_ends_with_a_sentence(cluster: Cluster) -> None:
    """`tests/processes/test_worker_roles.py` and `test_ownership.py` have all reasons."""
    ended = another(cluster, "gpu0", "gpu0")
    assert ended.returncode == 1
    assert f"slot gpu0 is taken by process {cluster.processes['gpu0'].pid} on this machine" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert cluster.is_ready("gpu0")


@pytest.mark.slow
def test_a_worker_that_was_killed_is_started_again_at_once(cluster: Cluster) -> None:
    """Its lease is far from its end, and its child may not be gone yet."""
    for _ in range(3):
        cluster.restart("gpu0")


@pytest.mark.slow
def test_a_beat_that_is_dead_is_not_missed(cluster: Cluster, expected_curves: list[Json]) -> None:
    """No worker wakes the scheduler for a lost one: only a periodic tick sees it."""
    main = psutil.Process(cluster.processes["scheduler"].pid)
    [beat] = [child for child in main.children() if "beat" in child.name() or "beat" in " ".join(child.cmdline())] or [
        main.children()[-1]
    ]
    beat.kill()
    study, _ = begin(cluster, "beat")
    _, stopped = stop_at_work(cluster, study)
    try:
        cluster.wait_for_event(study, "ChainEnded", outcome="lost")
    finally:
        os.kill(stopped, signal.SIGCONT)
    check(cluster, study, expected_curves)
    cluster.restart("scheduler")


NONSENSE = [b"not json", b"7", b"null", b"{}", b"[]", b'{"body": "%%%", "properties": {}}', b"\xff\xfe"]


def test_messages_that_are_none_are_dropped(cluster: Cluster) -> None:
    with cluster.broker() as redis:
        for queue in ("gpu0", "gpu1", "scheduler"):
            redis.lpush(f"stagetree:{queue}", *NONSENSE)
        wait_for("empty queues", lambda: not any(redis.llen(f"stagetree:{queue}") for queue in ("gpu0", "scheduler")))
        assert not redis.pubsub_channels("*pidbox*"), "no worker listens for a broadcast such as shutdown"
    study = cluster.run(trials("nonsense", ({}, 6)))
    assert study["state"] == "completed"
    assert not [name for name in cluster.commands if cluster.processes[name].poll() is not None]


@pytest.mark.slow
def test_messages_for_a_stopped_scheduler_are_merged(cluster: Cluster) -> None:
    cluster.kill("scheduler")
    try:
        study = cluster.submit(trials("pile", ({}, 6)))
        for _ in range(30):
            cluster.client.pause(study)
            cluster.client.resume(study)
        with cluster.broker() as redis:
            assert redis.llen("stagetree:scheduler") <= 4
    finally:
        cluster.start("scheduler")
    assert cluster.wait(study)["state"] == "completed"
