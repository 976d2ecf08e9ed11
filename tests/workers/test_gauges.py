"""What a slot measures for its row."""

from __future__ import annotations

from cluster import Cluster
from faulty import ClosedStore
from studies import BRANCHES


def gauges(cluster: Cluster) -> dict[str, float]:
    return dict(cluster.row().gauges)


def test_a_worker_tells_its_memory_and_that_nothing_waits(cluster: Cluster) -> None:
    cluster.beat()
    told = gauges(cluster)
    assert told.pop("memory") > 2**20
    assert told == {"trainer_memory": 0, "outbox": 0, "outbox_seconds": 2.0, "saver": 0, "saver_seconds": 2.0}


def test_while_it_trains_the_age_of_its_last_step_grows_and_begins_anew_with_the_next(cluster: Cluster) -> None:
    seen = list[float]()

    def look() -> None:
        for _ in range(3):
            cluster.beat()
            seen.append(gauges(cluster)["step_age"])

    def look_again() -> None:
        look()
        cluster.at("train", 3, look)

    cluster.submit(BRANCHES)
    cluster.at("train", 2, look_again)
    cluster.round()
    assert seen == [0.0, 2.0, 4.0, 0.0, 2.0, 4.0]
    cluster.beat()
    assert "step_age" not in gauges(cluster)


def test_what_waits_for_the_store_is_told_with_its_time(cluster: Cluster) -> None:
    store = cluster.store.before_write = ClosedStore()
    cluster.submit(BRANCHES)
    cluster.ticker.tick()
    cluster.deliver()
    assert store.reached.wait(60)
    waited = list[float]()
    for _ in range(3):
        cluster.beat()
        waited.append(gauges(cluster)["saver_seconds"])
    assert gauges(cluster)["saver"] >= 1 and waited == [0.0, 2.0, 4.0]
    store.back.set()
    cluster.settle()
    cluster.beat()
    assert gauges(cluster)["saver"] == 0
