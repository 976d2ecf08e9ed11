"""Faults while steps are trained again cost time, and never a trial; states without a comparison have a mark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import LEASE, Cluster
from in_process import InProcess
from studies import ALONE, BRANCHES
from test_slot_storage import ill_for, missing, refuse

from app.domain import events as e
from app.domain.search_plan import Study
from app.events.database import Database
from stagetree.runtime.failures import TrainerFailed


class Killed(BaseException):
    """The worker is no more."""


@pytest.fixture
def proving(sqlite_url: str, tmp_path: Path) -> Iterator[Cluster]:
    """One slot that makes proofs, and keeps no states in memory."""
    database = Database(sqlite_url)
    made = Cluster(database, tmp_path, proofs=True, memory_bytes=0)
    yield made
    made.close()
    database.dispose()


def act_during(cluster: Cluster, proof: str, what: str, do: Callable[[InProcess], object]) -> None:
    """Once, when a process is about to do that while such a proof is made."""

    def script(name: str, process: InProcess, does: str, step: int) -> None:
        if does == what and is_made(cluster, proof):
            cluster.script = lambda *_: None
            do(process)

    cluster.script = script


def is_made(cluster: Cluster, proof: str) -> bool:
    return any(chain.proof == proof for chain in cluster.plan.chains.values())


def comparisons(cluster: Cluster, proof: str) -> list[e.ExactnessTested]:
    tested = cluster.events(e.ExactnessTested)
    return [each for each in tested if each.proof == proof and not each.goes_on]


def ends(cluster: Cluster, proof: str) -> list[str]:
    """How the chains of such proofs ended."""
    chains = {each.chain for each in cluster.events(e.ChainAssigned) if each.proof == proof}
    return [str(each.outcome) for each in cluster.events(e.ChainEnded) if each.chain in chains]


def says_the_same(cluster: Cluster, study: Study) -> None:
    """As it would be without any fault."""
    assert (study.state, study.isolated, study.executed) == ("completed", "", study.unique)
    [check], [handover] = comparisons(cluster, "check"), comparisons(cluster, "handover")
    assert (check.step, check.difference, check.stray, check.unproven) == (2, "", {}, "")
    assert max(handover.begin, handover.since) == 4 and handover.step >= 6
    assert (handover.difference, handover.stray, handover.unproven) == ("", {}, "")


@pytest.mark.slow
def test_without_a_fault(proving: Cluster) -> None:
    done = proving.run(proving.submit(BRANCHES))
    says_the_same(proving, done)
    assert ends(proving, "check") == ends(proving, "handover") == ["done"]
    [handover] = comparisons(proving, "handover")
    assert done.proof_steps == 3 + handover.step - handover.begin
    values = proving.values(done.id)
    assert values == proving.values(proving.run(proving.submit(ALONE)).id)


@pytest.mark.slow
@pytest.mark.parametrize("proof", ["check", "handover"])
@pytest.mark.parametrize("what", ["start", "build", "train", "evaluate", "save", "load", "look"])
def test_a_worker_that_is_to_end_stops_in_the_middle(proving: Cluster, proof: str, what: str) -> None:
    study = proving.submit(BRANCHES)
    act_during(proving, proof, what, lambda process: proving.retiring.add("gpu0"))
    for _ in range(20):
        proving.ticker.tick()
        while proving.messages and not proving.retiring:
            proving.deliver()
        if proving.retiring:
            break
        proving.settle()
    proving.slots["gpu0"].close()
    proving.messages.clear()
    assert proving.row() is None and not proving.live()
    proving.retiring.clear()
    proving.slots["gpu0"] = proving.make_slot("gpu0")
    says_the_same(proving, proving.run(study))
    assert ends(proving, proof) in (["stopped", "done"], ["done"])


@pytest.mark.slow
@pytest.mark.parametrize("proof", ["check", "handover"])
@pytest.mark.parametrize("what", ["train", "save", "load"])
def test_a_worker_that_is_killed_costs_a_lease(proving: Cluster, proof: str, what: str) -> None:
    study = proving.submit(BRANCHES)

    def die(process: InProcess) -> None:
        raise Killed

    act_during(proving, proof, what, die)
    with pytest.raises(Killed):
        proving.run(study)
    proving.slots["gpu0"] = proving.make_slot("gpu0")
    proving.clock.wait(LEASE + 1)
    says_the_same(proving, proving.run(study))
    assert ends(proving, proof) == ["lost", "done"]


@pytest.mark.slow
@pytest.mark.parametrize(("illness", "seconds"), [(refuse, 0.3), (refuse, 60.0), (missing, 0.3), (missing, 20.0)])
def test_a_slot_waits_for_an_unavailable_store(
    proving: Cluster, illness: Callable[[str], None], seconds: float
) -> None:
    study = proving.submit(BRANCHES)
    ill = ill_for(proving, seconds, illness)
    proving.store.before_read = lambda key: ill(key) if is_made(proving, "handover") else None
    says_the_same(proving, proving.run(study))


def test_a_state_that_is_gone_leaves_it_unproven(proving: Cluster) -> None:
    study = proving.submit(BRANCHES)
    proving.store.before_read = lambda key: missing(key) if is_made(proving, "handover") else None
    done = proving.run(study)
    handovers = comparisons(proving, "handover")  # where another state is there, it is tried next
    assert (done.state, done.isolated) == ("completed", "")
    assert handovers[0].unproven.endswith("is not there") and not any(each.difference for each in handovers)
    assert not proving.events(e.CheckpointDropped) and not proving.events(e.StageFailed)
    assert ends(proving, "handover") == ["done"] * len(handovers)


def elsewhere(process: InProcess) -> None:
    process.machine = {"torch": "2.13.0"}


def test_a_state_of_another_machine_with_the_same_bits_is_equal(proving: Cluster) -> None:
    study = proving.submit(BRANCHES)
    act_during(proving, "handover", "start", elsewhere)
    says_the_same(proving, proving.run(study))


@pytest.mark.slow
def test_other_bits_on_another_machine_are_no_verdict(proving: Cluster) -> None:
    study = proving.submit(BRANCHES)

    def move(process: InProcess) -> None:
        process.machine = {"torch": "2.13.0"}
        process.model.trainer.velocity += 1  # type: ignore[union-attr, attr-defined]

    act_during(proving, "handover", "train", move)
    done = proving.run(study)
    handover = comparisons(proving, "handover")[0]  # it is tried again
    assert handover.unproven == "the state was made under another torch (2.12.0, and 2.13.0 here)"
    assert (done.state, done.isolated, handover.difference) == ("completed", "", "")


def test_an_error_that_comes_once_is_no_verdict(proving: Cluster) -> None:
    study = proving.submit(BRANCHES)

    def fail(process: InProcess) -> None:
        raise TrainerFailed("exception", "OSError: stale file handle", signature="OSError")

    act_during(proving, "handover", "train", fail)
    says_the_same(proving, proving.run(study))


def test_a_lost_verification_gives_no_verdict(proving: Cluster) -> None:
    study = proving.submit(BRANCHES)

    def lose(process: InProcess) -> None:
        [row] = [each for each in proving.live() if each.assignment.proof]
        with proving.records.write() as rows:
            rows.chains.end(row.chain)
        proving.clock.wait(5.0)
        proving.slots["gpu0"].heartbeat.round()

    act_during(proving, "handover", "train", lose)
    is_set = proving.script
    while proving.script is is_set:
        proving.round()
    assert comparisons(proving, "handover") == ends(proving, "handover") == []
    assert [each.stream for each in proving.live()] == []
    assert proving.study(study).is_running
