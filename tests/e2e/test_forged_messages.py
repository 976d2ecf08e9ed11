"""Who can write to Redis can forge any message. None changes a result or ends a worker."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

import pytest
from faults import begin, check
from stacks import Cluster, Json, wait_for

from app.events.sql_log import SqlRecords

pytestmark = pytest.mark.usefixtures("whole")

QUEUES = ("gpu0", "gpu1", "scheduler")
OURS = ("stagetree.stage", "stagetree.rank", "stagetree.tick")
TASKS = (*OURS, "celery.map", "celery.backend_cleanup", "os.system", None)
NO_CALLBACKS: Json = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
HEADERS: tuple[Json, ...] = (
    {},
    {"timelimit": [0.001, 0.001]},
    {"eta": "2026-01-01T00:00:00"},
    {"eta": "9999-12-31T23:59:59"},
    {"eta": 7},
    {"expires": "yesterday"},
    {"id": None},
    {"id": {"$": 1}},
    {"id": "\ud800"},
    {"id": "x" * 100_000},
    {"group": "g", "group_index": 0, "retries": -1},
    {"stamped_headers": ["a"], "stamps": 7},
)


def arguments(chain: str) -> list[Any]:
    """Right ones of each task, and such as no sender writes."""
    indexes = (0, 1, 2, -1, 10**30, True, 0.0, "0", None)
    staged = [[each, index] for each, index in product((chain, "unknown", "a\0b", "\ud800", "", 7, None), indexes)]
    return [[], [chain], ["unknown"], *staged, [chain, 0, 0], chain, {"chain": chain}, None]


def forge(task: Any, given: Any, headers: Json, embedded: Json | None = None) -> bytes:
    body = json.dumps([given, {}, NO_CALLBACKS | (embedded or {})])
    about = {"delivery_tag": "x", "body_encoding": "base64", "delivery_info": {"exchange": "", "routing_key": "gpu0"}}
    about |= {"correlation_id": "x", "reply_to": ""}
    message = {"body": base64.b64encode(body.encode()).decode(), "content-type": "application/json"}
    message |= {"content-encoding": "utf-8", "properties": about}
    return json.dumps(message | {"headers": {"lang": "py", "task": task, "id": "x:0", **headers}}).encode()


def callbacks(chain: str) -> Iterator[bytes]:
    """Messages that would send others when they are done."""
    link: Json = {"task": "stagetree.stage", "args": [chain, 0], "kwargs": {}, "options": {"queue": "gpu1"}}
    strange = {"task": "celery.chord_unlock", "subtask_type": "chord", "args": [], "kwargs": {}, "options": {}}
    for name, each in product(("callbacks", "errbacks", "chain", "chord"), (link, strange)):
        for task, given in zip(OURS, ([chain, 0], [chain], []), strict=True):
            yield forge(task, given, {}, {name: each if name == "chord" else [each]})


def nonsense(chain: str) -> list[bytes]:
    """Every task with any arguments, and bytes that are no message."""
    made = [forge(task, given, {}) for task, given in product(TASKS, arguments(chain))]
    return [*made, b"[" * 100_000, b"not json", b"7"]


def likely(chain: str) -> list[bytes]:
    """Every task of ours with its own arguments, and headers and callbacks that ours do not have."""
    ours = zip(OURS, ([chain, 0], [chain], []), strict=True)
    made = [forge(task, given, headers) for (task, given), headers in product(ours, HEADERS)]
    return [*made, *callbacks(chain)]


def live_chains(cluster: Cluster) -> list[str]:
    with SqlRecords(cluster.database).read() as rows:
        return [row.chain for row in rows.chains.live()]


def dropped_messages(cluster: Cluster) -> int:
    with cluster.broker() as redis:
        return int(redis.get("stagetree:dropped_messages") or 0)


@pytest.mark.slow
def test_forged_messages_change_nothing(cluster: Cluster, expected_curves: list[Json]) -> None:
    """As soon as a chain is on record, every queue gets forgeries about it, among its own messages."""
    before, workers = dropped_messages(cluster), {slot: cluster.child(slot) for slot in ("gpu0", "gpu1")}
    study, _ = begin(cluster, "forged", seconds=0.1)
    chance, met = Random(0), set[str]()
    with cluster.broker() as redis:
        while cluster.client.study(study, trials=False)["state"] == "running":
            for chain in set(live_chains(cluster)) - met:
                made = likely(chain) if met else [*likely(chain), *nonsense(chain)]
                met.add(chain)
                for queue in QUEUES:
                    chance.shuffle(made)
                    redis.lpush(f"stagetree:{queue}", *made)
        wait_for("empty queues", lambda: not any(redis.llen(f"stagetree:{queue}") for queue in QUEUES))
    assert met and dropped_messages(cluster) > before + 100
    check(cluster, study, expected_curves)
    assert {slot: cluster.child(slot) for slot in workers} == workers, "none was started again"
    assert all(process.poll() is None for process in cluster.processes.values())
