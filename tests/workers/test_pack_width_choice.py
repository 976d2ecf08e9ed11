"""A slot measures packs before anything is trained, and chooses the width by that, through any error."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import Cluster
from stacks import Json

from app.domain import events as e
from app.domain.evolve import fold
from app.domain.search_plan import Study
from app.domain.terms import StudyId
from app.search.replay import replay
from app.workers.trainer_connection import TrainerKilled
from app.workers.trainer_process import TrainerProcess
from stagetree.runtime.failures import TrainerFailed


class Killed(BaseException):
    """As `kill -9` of the slot: nothing of it runs any more."""


@pytest.fixture
def cluster(packing_cluster: Cluster) -> Cluster:
    return packing_cluster


def spec(trainer: str = "tiny", count: int = 4, **fields: Any) -> Json:
    trials = [{"hp": {"lr": 0.1 / (1 + number), "bs": 4}, "steps": 3} for number in range(count)]
    named = {"name": "study", "trainer": trainer, "metric": "val_loss", "mode": "min", "packing": "auto"}
    return {**named, "tuner": {"kind": "trials", "trials": trials}, **fields}


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The results of measurements, in turn: seconds by width, or errors. Then a trainer's process takes over."""
    outcomes: list[object] = []
    real = TrainerProcess.ask

    def ask(process: TrainerProcess, do: str, *args: Any, **how: Any) -> Any:
        outcome = outcomes.pop(0) if outcomes and do == "measure" else real(process, do, *args, **how)
        if isinstance(outcome, BaseException):
            raise outcome
        if do == "measure" and isinstance(outcome, dict):
            return {"batch_seconds": outcome, "peak_bytes": {}, "exact": False, "batch": {"bs": 4}}, ""
        return outcome

    monkeypatch.setattr(TrainerProcess, "ask", ask)
    return outcomes


FASTER = {"0": 1.0, "2": 1.0, "4": 1.0}
SLOWER = {"0": 1.0, "2": 2.0, "4": 4.0}


def pack_choice(cluster: Cluster) -> tuple[int, str]:
    (event,) = cluster.events(e.PackingChosen)
    return event.width, event.reason


def events_before_choice(cluster: Cluster) -> list[e.Event]:
    events = [stored.event for stored in cluster.log.read(cluster.stream)]
    return events[: next(at for at, event in enumerate(events) if isinstance(event, e.PackingChosen))]


def assert_sound(cluster: Cluster, done: Study) -> None:
    """Everything was trained once, after the choice; and the log says all of it."""
    assert done.state == "completed" and done.executed == done.unique
    assert not any(isinstance(event, e.StageCompleted) for event in events_before_choice(cluster))
    log = [(stored.version, stored.event) for stored in cluster.log.read(cluster.stream)]
    assert replay(log, done.id).identical
    assert fold(event for _, event in log).packing == cluster.plan.packing == pack_choice(cluster)[0]
    assert cluster.idle()


def assert_as_said(cluster: Cluster, auto: Study, width: int) -> None:
    """It has the numbers of a study that said the width that was chosen for it."""
    found = values(cluster, auto.id)
    said = cluster.run(cluster.submit(spec(packing=width)))
    assert values(cluster, said.id) == found


def values(cluster: Cluster, study: StudyId) -> list[Any]:
    return [metrics for _, metrics in cluster.values(study)]


@pytest.mark.slow
def test_what_a_slot_has_measured_is_chosen_by(cluster: Cluster) -> None:
    done = cluster.run(cluster.submit(spec()))
    assert_sound(cluster, done)
    (profile,) = cluster.events(e.PackingProfiled)
    assert {"0", "2"} <= profile.batch_seconds.keys() <= {"0", "2", "4"} and profile.batch == {"bs": 4}


@pytest.mark.slow
def test_trials_have_the_numbers_of_the_width_that_was_chosen(cluster: Cluster, measuring: list[object]) -> None:
    measuring.append(FASTER)
    auto = cluster.run(cluster.submit(spec()))
    assert_sound(cluster, auto)
    assert pack_choice(cluster) == (4, "packs of 4 were reckoned to be 4.0 times as fast as trials alone on the CPU")
    assert len(cluster.events(e.ChainAssigned)) == 1 + 4 and cluster.lengths  # all four in one pack
    assert_as_said(cluster, auto, 4)


def test_trials_slower_in_packs_are_trained_alone(cluster: Cluster, measuring: list[object]) -> None:
    measuring.append(SLOWER)
    auto = cluster.run(cluster.submit(spec()))
    assert_sound(cluster, auto)
    assert pack_choice(cluster) == (0, "no packs were reckoned to be a tenth faster than trials alone on the CPU")
    assert_as_said(cluster, auto, 0)


def test_unpackable_trials_are_trained_alone_with_a_reason(cluster: Cluster) -> None:
    done = cluster.run(cluster.submit(spec("unpackable")))
    assert_sound(cluster, done)
    width, reason = pack_choice(cluster)
    assert width == 0 and "cannot be packed: its loss asks a tensor for its value" in reason


def test_trials_that_raise_in_a_measurement_are_trained_alone(cluster: Cluster, measuring: list[object]) -> None:
    measuring.append(TrainerFailed("exception", "Traceback ...\nKeyError: 'x'\n", 0, "KeyError"))
    done = cluster.run(cluster.submit(spec()))
    assert_sound(cluster, done)
    assert pack_choice(cluster)[0] == 0 and pack_choice(cluster)[1].endswith("measuring it failed: KeyError: 'x'")
    assert not cluster.events(e.StageFailed), "no trial is to blame yet"


@pytest.mark.slow
@pytest.mark.parametrize("accident", [TrainerKilled("killed"), TrainerFailed("crash", "its process died", 0, "crash")])
def test_a_process_lost_in_a_measurement_counts_against_no_trial(
    cluster: Cluster, measuring: list[object], accident: Exception
) -> None:
    measuring += [accident, FASTER]
    done = cluster.run(cluster.submit(spec()))
    assert_sound(cluster, done)
    assert pack_choice(cluster)[0] == 4 and not cluster.events(e.StageFailed)


def test_the_wait_for_a_measurement_is_bounded(cluster: Cluster, measuring: list[object]) -> None:
    measuring += [TrainerFailed("crash", "its process died", 0, "crash")] * 2
    done = cluster.run(cluster.submit(spec()))
    assert_sound(cluster, done)
    assert pack_choice(cluster) == (0, "trials are trained alone, since measuring packs came to no end 2 times")


def test_a_slot_that_is_killed_while_it_measures_is_made_good(cluster: Cluster, measuring: list[object]) -> None:
    measuring += [Killed(), FASTER]
    study = cluster.submit(spec())
    with pytest.raises(Killed):
        cluster.run(study)
    cluster.slots["gpu0"] = cluster.make_slot("gpu0")
    assert_sound(cluster, cluster.run(study))
    outcomes = [event.outcome for event in events_before_choice(cluster) if isinstance(event, e.ChainEnded)]
    assert outcomes == ["lost", "stopped"] and pack_choice(cluster)[0] == 4


def test_a_message_to_measure_that_never_came_is_sent_again(cluster: Cluster, measuring: list[object]) -> None:
    measuring.append(FASTER)
    study = cluster.submit(spec())
    cluster.beat()
    cluster.ticker.tick()
    cluster.messages.clear()
    cluster.clock.wait(20.0)
    assert_sound(cluster, cluster.run(study))
    assert pack_choice(cluster)[0] == 4


def test_a_database_that_is_away_while_it_is_measured_is_waited_for(cluster: Cluster, measuring: list[object]) -> None:
    measuring.append(FASTER)
    study = cluster.submit(spec())
    faults = cluster.faults["gpu0"]
    faults.before[e.PackingProfiled] = lambda: faults.away_for(30.0)
    assert_sound(cluster, cluster.run(study))
    assert faults.refusals and pack_choice(cluster)[0] == 4


def test_measurements_of_another_seed_are_reused(cluster: Cluster, measuring: list[object]) -> None:
    measuring.append(FASTER)
    cluster.run(cluster.submit(spec()))
    again = cluster.run(cluster.submit(spec(seed=1)))
    assert_sound(cluster, again)
    assert pack_choice(cluster)[0] == 4 and len(cluster.events(e.ChainAssigned)) == 4, "none of them to measure"


def test_trials_that_are_never_two_at_once_are_not_measured(cluster: Cluster) -> None:
    done = cluster.run(cluster.submit(spec(count=1)))
    assert_sound(cluster, done)
    assert pack_choice(cluster) == (0, "trials are trained alone, since no slot has two of them at once")
    assert not cluster.events(e.PackingProfiled)
