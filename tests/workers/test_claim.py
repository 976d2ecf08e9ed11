"""A worker without an answer to its claim asks again, and takes only its own chains."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster import LEASE, Cluster, SlotOwner
from faulty import Faults, FaultyRecords
from studies import spec

from app.events.rows import ChainNotClaimable, Lease, RowsPort
from app.workers.slot.claim import Claimer
from app.workers.slot.retry import RetryPolicy


def me(slot: str = "gpu0") -> SlotOwner:
    """A process of a slot, whose token is "me"."""
    owner = SlotOwner(slot, {})
    owner.owner = "me"
    return owner


def claimed_in_doubt(cluster: Cluster, meanwhile: Callable[[RowsPort, str], object], chain: str | None = None) -> Lease:
    """What the second try of "me" gets, when the first had no answer, and then this happened."""
    cluster.submit(spec(({}, 2)))
    cluster.ticker.tick()
    chain = chain or cluster.messages[0][0]
    faults = Faults(cluster.clock)
    faults.away_for(0.01)

    def happen(waits: int) -> None:
        cluster.clock.on_wait = lambda waits: None
        with cluster.records.write() as rows:
            meanwhile(rows, chain)

    cluster.clock.on_wait = happen
    records = FaultyRecords(cluster.records, faults)
    claiming = Claimer(records, me(), LEASE, RetryPolicy(cluster.clock.wait))  # type: ignore[arg-type]
    return claiming.claim(chain, lambda: False)


def test_a_claim_without_an_answer_is_recognised_as_ours(cluster: Cluster) -> None:
    lease = claimed_in_doubt(cluster, lambda rows, chain: rows.chains.claim(chain, "me", LEASE))
    with cluster.records.write() as rows:
        rows.chains.report(lease.chain, lease.fence)


def test_an_uncommitted_claim_is_repeated(cluster: Cluster) -> None:
    assert claimed_in_doubt(cluster, lambda rows, chain: None).fence.number == 1


def test_a_claim_of_another_worker_is_not_ours(cluster: Cluster) -> None:
    with pytest.raises(ChainNotClaimable):
        claimed_in_doubt(cluster, lambda rows, chain: rows.chains.claim(chain, "another", LEASE))


def test_an_ended_chain_is_not_ours_any_more(cluster: Cluster) -> None:
    def claim_and_end(rows: RowsPort, chain: str) -> None:
        rows.chains.end(chain, rows.chains.claim(chain, "me", LEASE).fence)

    with pytest.raises(ChainNotClaimable):
        claimed_in_doubt(cluster, claim_and_end)


def test_an_unknown_chain_cannot_be_claimed(cluster: Cluster) -> None:
    with pytest.raises(ChainNotClaimable):
        claimed_in_doubt(cluster, lambda rows, chain: None, chain="unknown")


def test_a_worker_that_is_to_end_does_not_ask_on(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults(cluster.clock)
    faults.away_for(1e9)
    records = FaultyRecords(cluster.records, faults)
    claiming = Claimer(records, me(), LEASE, RetryPolicy(cluster.clock.wait))  # type: ignore[arg-type]
    answers = iter([False, True])
    with pytest.raises(ChainNotClaimable, match="this worker is to end"):
        claiming.claim("chain", lambda: next(answers))
    assert faults.refusals == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # that it waits, once


def test_a_message_that_comes_again_claims_nothing_whatever_the_database_does_meanwhile(cluster: Cluster) -> None:
    cluster.submit(spec(({}, 2)))
    cluster.ticker.tick()
    chain, faults = cluster.messages[0][0], Faults(cluster.clock)
    records = FaultyRecords(cluster.records, faults)
    claiming = Claimer(records, me(), LEASE, RetryPolicy(cluster.clock.wait))  # type: ignore[arg-type]
    claiming.claim(chain, lambda: False)
    faults.away_for(0.01)  # so that it asks again, in doubt
    with pytest.raises(ChainNotClaimable, match="before"):
        claiming.claim(chain, lambda: False)


def test_a_chain_that_was_given_to_another_slot_is_not_ours(cluster: Cluster) -> None:
    """Its message was forged. The two may have other devices, and then other results."""
    cluster.submit(spec(({}, 2)))
    cluster.ticker.tick()
    chain, retry = cluster.messages[0][0], RetryPolicy(cluster.clock.wait)
    with pytest.raises(ChainNotClaimable, match="was given to slot gpu0"):
        Claimer(cluster.records, me("gpu1"), LEASE, retry).claim(chain, lambda: False)
    assert Claimer(cluster.records, me(), LEASE, retry).claim(chain, lambda: False).fence.number == 1
