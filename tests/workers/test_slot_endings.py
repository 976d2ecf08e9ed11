"""A worker that gets a signal ends within its grace, in any state and during any outage."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import LEASE, Cluster
from in_process import InProcess
from studies import ALONE, BRANCHES, spec

from app.domain import events as e
from app.domain.terms import StudyState
from app.events.database import Database


def end_before_claim(cluster: Cluster) -> None:
    cluster.retiring.add("gpu0")


def end_in_training(cluster: Cluster) -> None:
    cluster.at("train", 2, lambda: cluster.retiring.add("gpu0"))


def end_at_evaluation(cluster: Cluster) -> None:
    cluster.at("evaluate", 4, lambda: cluster.retiring.add("gpu0"))


def end_while_loading(cluster: Cluster) -> None:
    cluster.at("build", 0, lambda: cluster.retiring.add("gpu0"))


def end_while_saving(cluster: Cluster) -> None:
    cluster.store.before_write = lambda key: cluster.retiring.add("gpu0")


def end_before_recording(cluster: Cluster) -> None:
    cluster.faults["gpu0"].before[e.StageCompleted] = lambda: cluster.retiring.add("gpu0")


STATES = [
    end_before_claim,
    end_in_training,
    end_at_evaluation,
    end_while_loading,
    end_while_saving,
    end_before_recording,
]


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
def test_steps_of_an_ending_worker_are_not_repeated(cluster: Cluster, state: Callable[[Cluster], None]) -> None:
    expected = cluster.values(cluster.run(cluster.submit(ALONE)).id)
    study = cluster.submit({**BRANCHES, "eval_every": 4})
    state(cluster)
    cluster.ticker.tick()
    while cluster.messages:
        cluster.deliver()
    cluster.slots["gpu0"].close()
    assert cluster.row() is None
    cluster.retiring.clear()
    cluster.store.before_write = lambda key: None
    cluster.slots["gpu0"] = cluster.make_slot("gpu0")
    done = cluster.run(study)
    assert done.executed == done.unique == 12
    assert cluster.values(study) == expected
    assert {event.outcome for event in cluster.events(e.ChainEnded)} <= {"done", "stopped", "undelivered"}


def test_a_worker_that_is_to_end_begins_nothing(cluster: Cluster) -> None:
    cluster.submit(spec(({}, 4)))
    cluster.ticker.tick()
    end_before_claim(cluster)
    assert not cluster.deliver()
    assert not cluster.processes["gpu0"]
    assert [row.state for row in cluster.live()] == ["ready"]


def test_a_chain_between_two_stages_is_given_back(cluster: Cluster) -> None:
    study = cluster.submit(spec(({}, 2), ({}, 4)))
    cluster.ticker.tick()
    cluster.deliver()
    cluster.slots["gpu0"].close()
    assert [event.outcome for event in cluster.events(e.ChainEnded)] == ["stopped"]
    assert cluster.row() is None
    cluster.messages.clear()
    cluster.slots["gpu0"] = cluster.make_slot("gpu0")
    assert cluster.run(study).executed == 4


def test_outages_do_not_delay_the_end_of_a_worker(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its work is done again: from the last step on record."""
    cluster = Cluster(database, tmp_path, grace=0.2)
    expected = cluster.values(cluster.run(cluster.submit(ALONE)).id)
    study = cluster.submit(BRANCHES)

    def away(key: str) -> None:
        raise OSError("the network is down")

    cluster.clock.wait = lambda seconds: time.sleep(0.001)  # type: ignore[method-assign]  # only the grace ends it
    cluster.store.before_write = away
    cluster.at("train", 3, lambda: cluster.faults["gpu0"].away_for(1000))
    cluster.ticker.tick()
    cluster.deliver()
    cluster.slots["gpu0"].close()
    assert "slot gpu0 ends before all was saved" in caplog.text
    assert not cluster.events(e.StageCompleted)  # no time has passed in which the database came back
    del cluster.clock.__dict__["wait"]
    cluster.store.before_write = lambda key: None
    cluster.clock.wait(LEASE + 1)
    cluster.messages.clear()
    cluster.slots["gpu0"] = cluster.make_slot("gpu0")
    assert cluster.run(study).state == StudyState.COMPLETED
    assert cluster.values(study) == expected
    cluster.close()


def test_a_hanging_trainer_is_ended(cluster: Cluster) -> None:
    """SIGTERM while a step hangs: the process is killed, and its chain is given back."""
    study = cluster.submit(spec(({}, 4)))
    processes: list[InProcess] = []

    def script(slot: str, process: InProcess, what: str, step: int) -> None:
        if (what, step) == ("train", 2):
            processes.append(process)
            cluster.retiring.add("gpu0")
            for _ in range(3):
                cluster.beat()
                cluster.clock.wait(3.0)
            process.do("train")  # as a call does whose process was killed meanwhile

    cluster.script = script
    cluster.ticker.tick()
    cluster.deliver()
    assert processes[0].is_broken
    cluster.slots["gpu0"].close()
    assert [event.outcome for event in cluster.events(e.ChainEnded)] == ["stopped"]
    assert not cluster.events(e.StageFailed)
    cluster.retiring.clear()
    cluster.script = lambda *_: None
    cluster.slots["gpu0"] = cluster.make_slot("gpu0")
    assert cluster.run(study).state == StudyState.COMPLETED


def while_a_step_hangs(cluster: Cluster, do: Callable[[], object]) -> bool:
    """Do this in the third step of a chain, and let twenty heartbeats pass; whether the process was killed."""
    killed = list[bool]()

    def script(slot: str, process: InProcess, what: str, step: int) -> None:
        if (what, step) == ("train", 2):
            cluster.script = lambda *_: None
            do()
            for _ in range(20):
                cluster.beat()
            killed.append(process.is_broken)

    cluster.script = script
    cluster.ticker.tick()
    cluster.deliver()
    return killed == [True]


def test_a_hung_step_of_an_unneeded_trial_frees_the_slot(cluster: Cluster) -> None:
    study = cluster.submit(spec(({}, 40)))

    def cancel() -> None:
        cluster.cancel(study)
        cluster.ticker.tick()

    assert while_a_step_hangs(cluster, cancel)
    cluster.settle()
    assert cluster.idle()


def test_a_hung_step_of_a_chain_that_was_ended_meanwhile_frees_the_slot(cluster: Cluster) -> None:
    """Its lease ran out, and another slot has its work."""
    study = cluster.submit(spec(({}, 4)))

    def lose() -> None:
        while not cluster.events(e.ChainEnded):
            cluster.clock.wait(LEASE / 2)
            cluster.ticker.tick()

    assert while_a_step_hangs(cluster, lose)
    assert cluster.run(study).state == StudyState.COMPLETED


def test_an_unneeded_trial_stops_at_the_next_step_and_keeps_its_state(cluster: Cluster) -> None:
    study = cluster.submit(spec(({}, 40)))

    def cancel() -> None:
        cluster.cancel(study)
        cluster.ticker.tick()
        cluster.beat()

    cluster.at("train", 2, cancel)
    cluster.work()
    assert [event.step for event in cluster.events(e.CheckpointKept)] == [3]
    assert [(event.outcome, event.steps) for event in cluster.events(e.ChainEnded)] == [("stopped", 3)]


def preempt(cluster: Cluster) -> None:
    """The scheduler wants the slot for another study."""
    with cluster.records.write() as rows:
        for row in rows.chains.live():
            rows.chains.ask_preempt(row.chain)
    cluster.beat()


def test_a_preempted_chain_resumes_at_its_step(cluster: Cluster) -> None:
    study = cluster.submit(spec(({}, 8)))
    cluster.at("train", 2, lambda: preempt(cluster))
    cluster.work()
    assert [event.step for event in cluster.events(e.CheckpointKept)] == [3]
    assert [(event.outcome, event.steps) for event in cluster.events(e.ChainEnded)] == [("stopped", 3)]
    done = cluster.run(study)
    assert (done.state, done.executed, done.unique) == (StudyState.COMPLETED, 8, 8)


def test_a_long_step_is_waited_for_before_the_slot_is_another_studys(cluster: Cluster) -> None:
    study = cluster.submit(spec(({}, 8)))
    assert not while_a_step_hangs(cluster, lambda: preempt(cluster))
    cluster.settle()
    assert [event.steps for event in cluster.events(e.ChainEnded)] == [3]
    assert cluster.run(study).executed == 8


def test_a_slot_that_another_worker_has_taken_is_nothing_any_more(cluster: Cluster) -> None:
    old = cluster.slots["gpu0"]
    cluster.slots["gpu0"] = cluster.make_slot("gpu0")
    cluster.clock.wait(3.0)
    old.heartbeat.round()
    assert old.heartbeat.is_taken
    cluster.submit(spec(({}, 2)))
    cluster.ticker.tick()
    assert not old.run_stage(cluster.messages[0][0], 0)
    old.close()
