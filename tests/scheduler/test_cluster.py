"""How slots and chains stand, taken in change by change, against reading all rows and asking the clock of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from assignments import FENCE, WORK
from hypothesis import given
from hypothesis import strategies as st
from scenes import LEASE, Scene

from app.events import Fenced, SlotLost, SlotTaken, has_expired
from app.events.rows import ChainNotClaimable, RowsPort
from app.workers.scheduler.cluster import DISPATCH_AGAIN_SECONDS, Cluster, longest_lease

REFUSALS = (ChainNotClaimable, Fenced, SlotLost, SlotTaken)
SLOTS = ("gpu0", "gpu1", "gpu2")
SECONDS = st.sampled_from([0.0, 1.0, 14.0, 16.0, 44.0, LEASE, 2 * LEASE + 1, 400.0, -1.0, -50.0, -400.0])


def changes(slot: str, number: int) -> list[Callable[[RowsPort], Any]]:
    """What may happen to a slot, or to one of its two chains."""
    chain = f"{slot}/{number % 2}"
    return [
        lambda rows: rows.slots.take(slot, "anna", instead_of=None, device="cpu", host="here", pid=1),
        lambda rows: rows.slots.touch(slot, "anna"),
        lambda rows: rows.slots.quarantine(slot, "anna", seconds=10.0 * number, reason="sick"),
        lambda rows: rows.slots.retire(slot, "anna"),
        lambda rows: rows.chains.assign(chain, "plan", slot, WORK, LEASE),
        lambda rows: rows.chains.claim(chain, "anna", LEASE),
        lambda rows: rows.chains.heartbeat(chain, FENCE, LEASE, number),
        lambda rows: rows.chains.mark_dispatched(chain),
        lambda rows: rows.chains.release(chain, FENCE, None),
        lambda rows: rows.chains.end(chain),
    ]


HAPPENS = st.tuples(st.sampled_from(SLOTS), st.integers(0, 4), st.integers(0, 9), SECONDS)


@given(st.lists(HAPPENS, max_size=20))
def test_cached_rows_equal_all_rows(happens: list[tuple[str, int, int, float]]) -> None:
    scene = Scene(slots=0)
    kept = Cluster(scene.ports())
    for slot, number, how, seconds in happens:
        try:
            with scene.records.write() as rows:
                changes(slot, number)[how](rows)
        except REFUSALS:
            pass
        scene.at += seconds
        kept.look()
        assert standing(kept) == naive(scene)


def test_all_rows_are_read_after_an_outage_and_once_in_a_lease() -> None:
    """Another server may have taken over that has not seen the last writes."""
    scene = Scene(slots=2)
    kept = Cluster(scene.ports())
    with scene.records.write() as rows:
        rows.chains.assign("lost", "plan", "gpu0", WORK, LEASE)
    kept.look()
    for hears_of_it in (True, False):
        other = Scene(slots=0)
        other.at, scene.records.inner = scene.at, other.records.inner
        other.register("gpu1", "berta")
        if hears_of_it:
            kept.note_outage()
        else:
            scene.at = other.at = scene.at + LEASE
        kept.look()
        assert standing(kept) == naive(scene)


def standing(cluster: Cluster) -> Any:
    slots = cluster.candidates()
    timely = [list(rows) for rows in (cluster.slots.values(), slots.healthy, slots.free)]
    return timely, cluster.expired, cluster.undelivered, cluster.live, cluster.versions


def naive(scene: Scene) -> Any:
    with scene.records.read() as rows:
        now, live, alive = rows.now(), rows.chains.live(), rows.slots.alive(LEASE)
        well = [slot for slot in alive if not slot.is_quarantined(now)]
        expired = [row for row in live if has_expired(row.lease_until, now, longest_lease(LEASE))]
        unclaimed = [row for row in live if row.state == "ready"]
        undelivered = [row for row in unclaimed if row.dispatched_at + DISPATCH_AGAIN_SECONDS < now]
        slots = [alive, well, [slot for slot in well if slot.is_free]]
        return slots, expired, undelivered, {row.chain: row for row in live}, rows.studies.busy_versions()
