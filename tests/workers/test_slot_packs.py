"""Chains that a slot trains together: facts, failures and accidents are each chain's own."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import LANES, Cluster
from stacks import Json
from toys import switch

from app.cli.result import print_result
from app.domain import events as e
from app.domain.terms import StudyId
from app.registry import TrainerSource
from app.search.replay import replay
from app.service.views import documents
from app.workers.trainer_connection import TrainerKilled
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm
from stagetree.runtime.failures import TrainerFailed


@pytest.fixture
def cluster(packing_cluster: Cluster) -> Cluster:
    return packing_cluster


def spec(*trials: tuple[Json, int], packing: int = 4, **fields: Any) -> Json:
    listed = [{"hp": {"lr": 0.1, "bs": 4, **hp}, "steps": steps} for hp, steps in trials]
    named = {"name": "study", "trainer": "tiny", "metric": "val_loss", "mode": "min", "packing": packing}
    return {**named, "tuner": {"kind": "trials", "trials": listed}, **fields}


RATES = (0.2, 0.05, 0.01)
SIBLINGS = [({"lr": switch(0.1, rate, 2)}, steps) for rate, steps in zip(RATES, (5, 5, 4), strict=True)]


def has_room(cluster: Cluster, study: StudyId, width: int = 4) -> StudyId:
    """The study, on a device where a full pack takes no longer than one trial."""
    profile = e.PackingProfiled(device="the CPU", batch_seconds={"0": 1.0, str(width): 1.0}, peak_bytes={})
    cluster.state(profile)
    return study


def give(cluster: Cluster) -> None:
    """Chains to the slot, which has said what trainers it has."""
    cluster.beat()
    cluster.ticker.tick()


def chains_at_once(cluster: Cluster) -> int:
    """The most chains that were under way together."""
    most, live = 0, set[str]()
    for stored in cluster.log.read(cluster.stream, limit=100_000):
        match stored.event:
            case e.ChainAssigned(chain=chain):
                live.add(chain)
            case e.ChainEnded(chain=chain) | e.StageFailed(chain=chain):
                live.discard(chain)
        most = max(most, len(live))
    return most


def values(cluster: Cluster, study: Any) -> list[float]:
    return [cluster.plan.metrics(trial, trial.steps)["val_loss"] for trial in cluster.study(study).trials]


def test_siblings_are_trained_together_to_the_results_that_they_have_alone(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    alone = cluster.run(cluster.submit(spec(*SIBLINGS, packing=0)))
    assert chains_at_once(cluster) == 1
    expected = values(cluster, alone.id)
    before, begun_at = cluster.processes["gpu0"], cluster.clock.now()
    packed = cluster.run(has_room(cluster, cluster.submit(spec(*SIBLINGS))))
    assert chains_at_once(cluster) == 3
    assert values(cluster, packed.id) == pytest.approx(expected, rel=1e-9)
    assert packed.executed == packed.unique == alone.unique == 10
    assert packed.gpu_seconds <= cluster.clock.now() - begun_at, "the seconds of a pack are shared among its trials"
    assert "trained one after the other" not in caplog.text
    assert not cluster.events(e.ExactnessLost)
    assert cluster.processes["gpu0"] == before + 2  # one for the shared steps, and one for the pack
    assert cluster.idle()


def test_a_result_has_the_same_bits_beside_any_neighbours(cluster: Cluster) -> None:
    together = cluster.run(cluster.submit(spec(*SIBLINGS)))
    expected = values(cluster, together.id)
    cluster.sources["tiny"] = TrainerSource(LANES, "2")
    for number, trial in enumerate(SIBLINGS):
        single = cluster.run(cluster.submit(spec(trial, ({"lr": switch(0.1, 1e30, 2)}, 3), seed=0)))
        assert values(cluster, single.id)[0] == expected[number]


def test_a_pack_without_a_place_for_its_logs_is_trained(cluster: Cluster) -> None:
    (cluster.folder / "logs").write_text("no folder")
    done = cluster.run(cluster.submit(spec(*TWO)))
    assert done.executed == done.unique
    assert {event.outcome for event in cluster.events(e.ChainEnded)} == {"done"}


def test_a_lane_continues_from_stage_to_stage(cluster: Cluster) -> None:
    trials = [({"lr": switch(0.1, rate, 2)}, steps) for rate in RATES for steps in (3, 5)]
    alone = cluster.run(cluster.submit(spec(*trials, packing=0)))
    expected = values(cluster, alone.id)
    packed = cluster.run(has_room(cluster, cluster.submit(spec(*trials))))
    assert any(len(event.stages) > 1 for event in cluster.events(e.ChainAssigned)[-3:])
    assert values(cluster, packed.id) == pytest.approx(expected, rel=1e-9)
    assert packed.executed == packed.unique


@pytest.mark.parametrize(
    ("trainer", "kind", "said"),
    [("moody", "exception", "too much"), ("greedy", "out_of_memory", "no memory for a batch")],
)
def test_a_lane_that_fails_ends_alone(cluster: Cluster, trainer: str, kind: str, said: str) -> None:
    sick = ({"lr": switch(0.1, 9.0, 2)}, 5)
    done = cluster.run(cluster.submit(spec(*SIBLINGS[:2], sick, trainer=trainer, max_restarts=0)))
    assert [trial.state for trial in done.trials] == ["completed", "completed", "failed"]
    (failure,) = cluster.events(e.StageFailed)
    assert failure.kind == kind and said in failure.error
    assert {event.outcome for event in cluster.events(e.ChainEnded)} == {"done"}
    assert not cluster.events(e.ExactnessLost)
    assert cluster.processes["gpu0"] == 2  # one for the shared steps, and one for the pack
    assert cluster.idle()


def test_a_lane_that_failed_is_tried_again_in_a_fresh_process(cluster: Cluster) -> None:
    sick = ({"lr": switch(0.1, 9.0, 2)}, 3)
    cluster.run(cluster.submit(spec(*SIBLINGS[:2], sick, trainer="moody", max_restarts=1)))
    assert len(cluster.events(e.StageFailed)) == 2
    assert cluster.processes["gpu0"] == 3


def test_where_memory_runs_out_for_all_lanes_they_go_on_alone_and_it_is_said(cluster: Cluster) -> None:
    trials = [({"lr": rate}, 3) for rate in RATES]
    expected = values(cluster, cluster.run(cluster.submit(spec(*trials))).id)
    tight = spec(*trials, trainer="greedy", trainer_args={"tight": True}, max_restarts=0)
    done = cluster.run(cluster.submit(tight))
    assert values(cluster, done.id) == pytest.approx(expected, rel=1e-9)
    lost = cluster.events(e.ExactnessLost)
    assert [event.reason for event in lost] == ["trained without their pack, which had failed"] * 3
    assert not cluster.events(e.StageFailed)


def test_a_model_for_which_there_is_no_room_beside_others_is_trained_later(cluster: Cluster) -> None:
    trials = [({"lr": rate}, 3) for rate in RATES]
    crowded = spec(*trials, trainer="greedy", trainer_args={"room": 2}, max_restarts=0)
    done = cluster.run(has_room(cluster, cluster.submit(crowded)))
    assert [trial.state for trial in done.trials] == ["completed"] * 3
    assert "interrupted" in [event.outcome for event in cluster.events(e.ChainEnded)]
    assert done.executed == done.unique


def test_unpackable_trials_are_trained_alone(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    done = cluster.run(cluster.submit(spec(*SIBLINGS, trainer="unpackable", eval_every=1)))
    assert [trial.state for trial in done.trials] == ["completed"] * 3
    assert done.executed == done.unique
    said = caplog.text.count("trained one after the other: its loss asks a tensor for its value")
    assert said == len(cluster.events(e.ChainAssigned))  # each is given by itself, and trained in several pieces
    (profile,) = cluster.events(e.PackingProfiled)
    assert "asks a tensor for its value" in profile.refusal and chains_at_once(cluster) == 1
    (device,) = documents.study(cluster.plan, done.id, now=0.0)["packing"]["devices"]
    assert device == {"device": "the CPU", "refusal": profile.refusal}
    expected = values(cluster, done.id)
    alone = cluster.run(cluster.submit(spec(*SIBLINGS, trainer="unpackable", packing=0)))
    assert values(cluster, alone.id) == expected


def test_a_crash_in_a_pack_fails_only_the_trial_whose_fault_it_is(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    deadly = ({"lr": switch(0.1, 666.0, 2)}, 5)
    done = cluster.run(cluster.submit(spec(*SIBLINGS[:2], deadly, trainer="moody", max_restarts=0)))
    assert [trial.state for trial in done.trials] == ["completed", "completed", "failed"]
    assert done.trials[2].error["kind"] == "crash"
    assert "a fault of ours" not in caplog.text
    assert {lost.reason for lost in cluster.events(e.ExactnessLost)} == {"trained without their pack, which had failed"}
    assert cluster.idle()


@pytest.mark.parametrize("others", [1, 3])
def test_a_crash_while_one_lane_is_measured_is_no_fault_of_the_others(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, others: int
) -> None:
    deadly = ({"lr": switch(0.1, 666.0, 2)}, 7)  # the longest, so the first of the pack
    sound = [({"lr": switch(0.1, 0.01 * (1 + number), 2)}, 5) for number in range(others)]
    done = cluster.run(cluster.submit(spec(deadly, *sound, trainer="delicate", eval_every=3, max_restarts=0)))
    assert [trial.state for trial in done.trials] == ["failed", *["completed"] * others]
    assert "a fault of ours" not in caplog.text
    with cluster.records.read() as rows:
        assert not any(slot.quarantined_until for slot in rows.slots.all())


def test_a_crash_of_the_only_lane_is_its_own(cluster: Cluster) -> None:
    cluster.submit(spec(({"lr": 666.0}, 3), trainer="moody", max_restarts=0))
    give(cluster)
    assert not cluster.deliver()
    cluster.settle()
    assert [event.kind for event in cluster.events(e.StageFailed)] == ["crash"]
    assert not cluster.events(e.ChainEnded)


TWO = [({"lr": rate}, 3) for rate in (0.1, 0.2)]


def test_a_chain_of_a_pack_that_is_over_by_then_is_left_out(cluster: Cluster) -> None:
    study = cluster.submit(spec(*TWO))
    give(cluster)
    (gone,) = [row.chain for row in cluster.live() if row.chain != cluster.messages[0][0]]
    ended = e.ChainEnded(chain=gone, outcome="interrupted")
    cluster.log.append(cluster.stream, [ended], expected=None, at=0.0, alongside=lambda rows: rows.chains.end(gone))
    assert cluster.deliver()
    done = cluster.run(study)
    assert [trial.state for trial in done.trials] == ["completed"] * 2
    assert done.executed == done.unique


def test_how_packs_do_on_a_device_is_measured_once(cluster: Cluster) -> None:
    study = cluster.run(cluster.submit(spec(*SIBLINGS))).id
    (profile,) = cluster.events(e.PackingProfiled)
    assert profile.device == "the CPU" and profile.batch_seconds.keys() == {"0", "2", "4"}
    assert documents.study(cluster.plan, study, now=0.0)["packing"]["width"] == 4
    cluster.run(cluster.submit(spec(({"lr": 0.3}, 4))))
    assert len(cluster.events(e.PackingProfiled)) == 1


def test_it_is_told_where_a_pack_draws_other_random_numbers(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was refused, with a wrong reason; in bf16 it was packed, without a notice."""
    study = cluster.run(cluster.submit(spec(*SIBLINGS, trainer="turned"))).id
    (profile,) = cluster.events(e.PackingProfiled)
    assert (profile.refusal, profile.other_draws) == ("", "2")
    shown = documents.study(cluster.plan, study, now=0.0)
    assert shown["packing"]["devices"][0]["other_draws"] == "2"
    print_result(shown)
    assert "packing `2` of the model draws other random numbers in a pack than alone" in capsys.readouterr().out


@pytest.mark.parametrize(("packing", "memory"), [(4, 0), (0, 2**20)])
def test_where_stages_begin_is_read_once_by_a_slot(cluster: Cluster, packing: int, memory: int) -> None:
    """In a pack, also where nothing is kept in memory."""
    cluster.run(cluster.submit(spec(({}, 2), packing=packing)))
    cluster.slots["gpu0"].close()
    cluster.slots["gpu0"] = cluster.make_slot("gpu0", memory_bytes=memory)
    cluster.store.reads.clear()
    done = cluster.run(cluster.submit(spec(*SIBLINGS, packing=packing)))
    assert done.executed == 3 + 3 + 2
    assert len(cluster.store.reads) == 1


def test_a_replay_decides_the_same(cluster: Cluster) -> None:
    sha = {"kind": "sha", "num_trials": 6, "min_steps": 1, "max_steps": 4, "reduction_factor": 2, "sampling_seed": 1}
    space = {"lr": {"loguniform": [0.001, 0.3]}, "bs": 4}
    named = {"name": "study", "trainer": "tiny", "metric": "val_loss", "mode": "min", "packing": 4}
    done = cluster.run(has_room(cluster, cluster.submit({**named, "space": space, "tuner": sha})))
    assert done.executed == done.unique
    assert chains_at_once(cluster) > 1
    log = [(stored.version, stored.event) for stored in cluster.log.read(cluster.stream, limit=100_000)]
    assert replay(log, done.id).identical


class Doomed:
    """A process that raises this error when a pack of this many lanes is to be trained."""

    def __init__(self, process: TrainerProcess, lanes: int, end: BaseException) -> None:
        self._process, self._lanes, self._end = process, lanes, end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def train_together(self, hps: Any, steps: int, **how: Any) -> Any:
        if len(hps) == self._lanes:
            raise self._end
        return self._process.train_together(hps, steps, **how)


def start_doomed(warm: Warm, lanes: int, end: BaseException) -> Any:
    return Doomed(TrainerProcess.start(warm), lanes, end)


def test_a_pack_ended_as_unneeded_is_stopped(cluster: Cluster, warm: Warm) -> None:
    cluster.start = lambda: start_doomed(warm, 2, TrainerKilled("killed"))
    cluster.submit(spec(*TWO))
    give(cluster)
    assert not cluster.deliver()
    cluster.settle()
    assert [event.outcome for event in cluster.events(e.ChainEnded)] == ["stopped"] * 2


def test_a_pack_that_broke_once_is_packed_again(cluster: Cluster, warm: Warm) -> None:
    healthy = cluster.start
    starts = iter([lambda: start_doomed(warm, 2, TrainerFailed("crash", "the process was ended by signal 9"))])
    cluster.start = lambda: next(starts, healthy)()
    done = cluster.run(cluster.submit(spec(*TWO)))
    assert [trial.state for trial in done.trials] == ["completed"] * 2
    assert [event.outcome for event in cluster.events(e.ChainEnded)].count("interrupted") == 2
    assert not cluster.events(e.ExactnessLost)
