"""An outage that tests/world, which has the others at any moment, does not have."""

from __future__ import annotations

from typing import Any

from cluster import Cluster


class Stale(dict[str, Any]):
    """Trainers on a disk that is away."""

    def items(self) -> Any:
        raise OSError(116, "Stale file handle")


def test_a_lease_is_renewed_while_the_disk_of_the_trainers_is_away(cluster: Cluster) -> None:
    """After a lease, the chains of all slots with that disk were ended."""
    beat, sources = cluster.slots["gpu0"].heartbeat, cluster.sources
    beat.round()
    before = cluster.row()
    cluster.sources = Stale(sources)
    cluster.beat()
    after = cluster.row()
    assert after.seen_at > before.seen_at and after.trainers == before.trainers != {}
    cluster.sources = sources
