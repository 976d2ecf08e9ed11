"""Processes killed or frozen, data lost or damaged: every trial ends with the results of a run without faults."""

from __future__ import annotations

import os
import signal
import time

import boto3
import psutil
import pytest
from faults import begin, check, check_log, stop_at_work
from stacks import LEASE_SECONDS, PATIENCE, Cluster, Json, Service, wait_for
from toys import curves, grid, switch, trials

pytestmark = pytest.mark.usefixtures("whole")


@pytest.mark.slow
def test_a_killed_training_process(cluster: Cluster, expected_curves: list[Json]) -> None:
    """It died alone if a new process was there within the lease; a lease that ran out first hides that."""
    study, _ = begin(cluster, "child")
    slot, child = stop_at_work(cluster, study)
    os.kill(child, signal.SIGKILL)
    killed_at = time.monotonic()
    wait_for("another process", lambda: cluster.child(slot) not in (None, child) and cluster.is_ready(slot))
    within_lease = time.monotonic() - killed_at < LEASE_SECONDS / 2
    ended = cluster.wait_for_event(study, "ChainEnded", outcome="lost")
    assert ended["data"]["died_alone"] or not within_lease
    check(cluster, study, expected_curves)


@pytest.mark.slow
def test_a_killed_script_resumes_from_its_last_state(cluster: Cluster, stack: Service) -> None:
    """One that owns its loop: it is run again from its first line, and told where it stands."""
    lr = {"family": "wsd", "peak": 0.01, "warmup": 5, "decay": {"ratio": 0.25}}
    spec = {"name": "script", "trainer": "script", "trainer_args": {"width": 64, "block": 64}, "metric": "val_loss"}
    spec |= {"mode": "min", "eval_every": 10, "space": {"max_steps": [40, 60], "lr": lr}, "tuner": {"kind": "grid"}}
    study = cluster.submit(spec)
    _, child = stop_at_work(cluster, study)
    os.kill(child, signal.SIGKILL)
    assert cluster.wait(study)["state"] == "completed"
    assert curves(cluster, study) == curves(stack, stack.run(spec)["study"])
    check_log(cluster, study)


@pytest.mark.slow
def test_a_killed_program_is_an_accident_as_that_of_a_process_is(cluster: Cluster, stack: Service) -> None:
    """It is started again from its last checkpoint; once is no evidence against the stage."""
    lr = {"family": "wsd", "peak": 0.01, "warmup": 5, "decay": {"ratio": 0.25}}
    args = {"scale": 1.0 + os.getpid() / 1e8, "seconds": 0.1}  # its arguments identify the program
    spec = {"name": "walk", "trainer": "walk", "trainer_args": args, "metric": "where", "mode": "min"}
    spec |= {"eval_every": 10, "space": {"max_steps": [40, 60], "lr": lr}, "tuner": {"kind": "grid"}}
    study = cluster.submit(spec)

    def programs() -> list[psutil.Process]:
        words = [str(each) for each in args.values()]
        return [each for each in psutil.process_iter(["cmdline"]) if (each.info["cmdline"] or [])[-2:] == words]

    wait_for("a program at work", programs)[0].kill()
    assert cluster.wait(study)["state"] == "completed"
    alone = stack.run(spec | {"trainer_args": args | {"seconds": 0.0}})
    assert curves(cluster, study) == curves(stack, alone["study"])
    check_log(cluster, study)


def test_a_killed_worker_and_another_in_its_place(cluster: Cluster, expected_curves: list[Json]) -> None:
    study, _ = begin(cluster, "main")
    slot, child = stop_at_work(cluster, study)
    cluster.kill(slot)
    wait_for("the end of the child", lambda: not psutil.pid_exists(child))
    cluster.start(slot)
    cluster.wait_for_event(study, "ChainEnded", outcome="lost", died_alone=False)
    check(cluster, study, expected_curves)


@pytest.mark.slow
def test_a_worker_that_is_asked_to_end_gives_its_chain_back(cluster: Cluster, expected_curves: list[Json]) -> None:
    study, slot = begin(cluster, "asked", seconds=0.3)
    cluster.kill(slot, signal.SIGTERM)
    outcomes = [event["data"].get("outcome") for event in cluster.client.events(study)]
    assert "stopped" in outcomes and "lost" not in outcomes
    assert slot not in [known["name"] for known in cluster.client.slots()]
    cluster.start(slot)
    check(cluster, study, expected_curves)
    steps = cluster.client.study(study)["steps"]
    assert steps["executed"] == steps["unique"]


@pytest.mark.slow
def test_a_zombie_worker_is_fenced_off(cluster: Cluster, expected_curves: list[Json]) -> None:
    study, _ = begin(cluster, "zombie")
    slot, zombie = stop_at_work(cluster, study)
    try:
        lost = cluster.wait_for_event(study, "ChainEnded", outcome="lost")["data"]["chain"]
        cluster.wait(study)
    finally:
        os.kill(zombie, signal.SIGCONT)
    wait_for("its confession", lambda: f"chain {lost} is given up" in cluster.log(slot))
    log = [event["data"] for event in cluster.client.events(study) if event["data"].get("chain") == lost]
    assert log[-1]["outcome"] == "lost"
    check(cluster, study, expected_curves)
    begin(cluster, "zombie-again", slot)  # it works like any other from here on


@pytest.mark.slow
def test_a_broker_that_forgets_everything(cluster: Cluster, expected_curves: list[Json]) -> None:
    study, _ = begin(cluster, "broker")
    cluster.kill("redis")
    time.sleep(2)  # messages that are sent meanwhile are lost
    cluster.start("redis")
    check(cluster, study, expected_curves)


@pytest.mark.slow
def test_a_broker_that_loses_the_message_between_two_stages(cluster: Cluster) -> None:
    study = cluster.submit(trials("hole", ({}, 10), ({}, 15), ({}, 20), seconds=0.3))
    cluster.wait_for_step(study, 2)
    slot = cluster.running(study)[0]["slot"]
    os.kill(cluster.processes[slot].pid, signal.SIGSTOP)
    try:
        with cluster.broker() as redis:
            wait_for("the message of the next stage", lambda: redis.delete(f"stagetree:{slot}"))
    finally:
        os.kill(cluster.processes[slot].pid, signal.SIGCONT)
    assert cluster.wait(study)["state"] == "completed"
    assert cluster.wait_for_event(study, "ChainEnded", outcome="undelivered")
    assert cluster.client.study(study)["steps"]["executed"] == 20
    check_log(cluster, study)


def test_a_killed_scheduler(cluster: Cluster, expected_curves: list[Json]) -> None:
    study, _ = begin(cluster, "scheduler")
    family = psutil.Process(cluster.processes["scheduler"].pid).children(recursive=True)
    cluster.kill("scheduler")
    assert len(family) == 2
    assert psutil.wait_procs(family, timeout=PATIENCE)[1] == []
    cluster.start("scheduler")
    check(cluster, study, expected_curves)


@pytest.mark.slow
def test_two_schedulers_at_once(cluster: Cluster, expected_curves: list[Json]) -> None:
    cluster.commands["scheduler2"] = [*cluster.commands["scheduler"][:-1], "scheduler2@%h"]
    cluster.start("scheduler2")
    try:
        study = cluster.submit(grid("twins", seconds=0.02))
        for _ in range(50):
            cluster.wake_scheduler()
        check(cluster, study, expected_curves)
        steps = cluster.client.study(study)["steps"]
        assert steps["executed"] == steps["unique"]
    finally:
        del cluster.commands["scheduler2"]
        cluster.kill("scheduler2", signal.SIGTERM)
        del cluster.processes["scheduler2"]


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["deleted", "damaged"])
def test_a_checkpoint_behind_our_back(cluster: Cluster, harm: str) -> None:
    tag = f"checkpoint-{harm}"
    first = cluster.run(trials(tag, ({}, 6)))["study"]
    kept = cluster.wait_for_event(first, "CheckpointKept", step=6)["data"]
    forget_models(cluster, f"others: {harm}")
    storage = boto3.client("s3")
    if harm == "deleted":
        storage.delete_object(Bucket="checkpoints", Key=f"tests/{kept['key']}")
    else:
        storage.put_object(Bucket="checkpoints", Key=f"tests/{kept['key']}", Body=b"x" * kept["size"])
    branch = ({"lr": switch(0.1, 0.2, 6)}, 9)
    study = cluster.run(trials(tag, branch))
    assert cluster.wait_for_event(study["study"], "CheckpointDropped", step=6)
    assert study["state"] == "completed"
    assert study["steps"]["executed"] > 3  # which would be those after step 6
    assert "StageFailed" not in [event["type"] for event in cluster.client.events(study["study"])]
    alone = cluster.run(trials(tag, branch, merge=False))
    assert curves(cluster, study["study"]) == curves(cluster, alone["study"])
    check_log(cluster, study["study"])


def forget_models(cluster: Cluster, tag: str) -> None:
    """Each slot trains a model of another plan, so that it has that in memory."""
    others = cluster.submit(trials(tag, ({}, 1000), ({"lr": 0.7}, 1000), seconds=0.1))
    wait_for("both slots", lambda: {run["slot"] for run in cluster.running(others) if run["step"]} == {"gpu0", "gpu1"})
    cluster.client.cancel(others)


@pytest.mark.slow
def test_a_stage_that_kills_its_process_fails_and_its_siblings_continue(cluster: Cluster) -> None:
    bad, good = {"mood": switch("fine", "exit", 4)}, {"mood": switch("fine", "good", 4)}
    study = cluster.run(trials("poison", (good, 8), (bad, 8), (good, 10)))
    assert [trial["state"] for trial in study["trials"]] == ["completed", "failed", "completed"]
    failure = cluster.client.trial(study["study"], 1)["failure"]
    assert (failure["kind"], failure["step"]) == ("crash", 4)
    assert not [event for event in cluster.client.events(study["study"]) if event["data"].get("outcome") == "lost"]
    check_log(cluster, study["study"])
