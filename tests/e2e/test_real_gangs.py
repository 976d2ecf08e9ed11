"""A trial on two slots, on real processes: the values of one slot to the last digit, and what comes of a lost slot."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from faults import check, stop_at_work
from stacks import Cluster, Json, Service
from toys import curves, switch, trials

from app.events.plans import Plans
from app.events.sql_log import SqlRecords
from app.storage.owned_store import find_orphans, open_owned

TRUNK, END = 12, 16
DIVIDED: Json = {"trainer": "packable", "parallel": "fsdp", "metric": "val_loss", "mode": "min"}


def study(tag: str, seconds: float, **more: Any) -> Json:
    """A trunk, and two leaves."""
    hps = [{"lr": switch(0.1, after, TRUNK)} for after in (0.05, 0.01)]
    spec = trials(tag, *((hp, END) for hp in hps), trainer="sharded", shards=2, audit=0, **more)
    return spec | {"trainer_args": {"tag": tag, "seconds": seconds}}


def assigned_chains(service: Service, study: str) -> list[tuple[int, int, int]]:
    """Of each chain that trained something new: from where to where, and how many slots it had."""
    trained = [each for each in service.facts(study, "ChainAssigned") if each["proof"] is None]
    return [(each["stages"][0]["start"], each["stages"][-1]["end"], 1 + len(each["members"])) for each in trained]


@pytest.mark.slow
def test_a_trunk_has_two_slots_and_its_leaves_one_each(stack: Service) -> None:
    alone = stack.run(study("alone", 0.0, ranks=1))
    done = stack.run(study("moldable", 0.1, ranks={"least": 1, "most": 2}))
    assert done["state"] == "completed"
    assert curves(stack, done["study"]) == curves(stack, alone["study"])
    ((*_, measured), trunk, *leaves) = assigned_chains(stack, done["study"])
    assert (measured, trunk) == (2, (0, TRUNK, 2))  # the first chain only measures
    assert leaves == [(TRUNK, END, 1)] * 2
    (profile,) = stack.facts(done["study"], "RanksProfiled")
    assert profile["step_seconds"].keys() == {"1", "2"}
    foretold = stack.client.preview(study("moldable", 0.1, ranks={"least": 1, "most": 2}), slots=2)["ranks"]
    assert (foretold["kind"], foretold["assumed"]) == (profile["kind"], [])
    assert foretold["times_faster"] == {"2": round(profile["step_seconds"]["1"] / profile["step_seconds"]["2"], 2)}
    assert done["steps"]["executed"] == done["steps"]["unique"]
    assert stack.client.replay(done["study"])["identical"]


def test_two_ranks_always_have_the_values_of_one(stack: Service) -> None:
    alone = stack.run(study("alone", 0.0, ranks=1))
    done = stack.run(study("two", 0.0, ranks=2))
    assert curves(stack, done["study"]) == curves(stack, alone["study"])
    assert {slots for *_, slots in assigned_chains(stack, done["study"])} == {2}
    assert {slot["lent_to"] for slot in stack.client.slots()} == {None}


@pytest.mark.slow
def test_two_ranks_with_divided_parameters_have_the_values_of_one(stack: Service) -> None:
    alone, two = (stack.run({**study(f"divided {ranks}", 0.0, ranks=ranks), **DIVIDED}) for ranks in (1, 2))
    assert (alone["state"], two["state"]) == ("completed", "completed")
    assert curves(stack, two["study"]) == curves(stack, alone["study"])
    assert {slots for *_, slots in assigned_chains(stack, two["study"])} == {2}
    assert {len(fact["parts"]) for fact in stack.facts(two["study"], "CheckpointKept")} == {1}


@pytest.mark.parametrize("lost", [pytest.param("the leader", marks=pytest.mark.slow), "a member"])
def test_a_lost_slot_counts_against_no_trial(cluster: Cluster, whole: Cluster, stack: Service, lost: str) -> None:
    expected = curves(stack, stack.run(study("alone", 0.0, ranks=1))["study"])
    going = cluster.submit(study(f"lost {lost}", 0.3, ranks=2, check=False, max_restarts=0))
    cluster.wait_for_event(going, "ChainAssigned", proof=None)
    leader, child = stop_at_work(cluster, going)  # or the chain might be over before its slot is lost
    member = {"gpu0": "gpu1", "gpu1": "gpu0"}[leader]
    (lent,) = [slot for slot in cluster.client.slots() if slot["name"] == member]
    assert (lent["state"], lent["lent_to"]["slot"], lent["lent_to"]["study"]) == ("lent", leader, going)
    (under_way,) = cluster.client.study(going)["progress"]["running"]
    assert (under_way["slot"], under_way["members"]) == (leader, [member])
    cluster.restart(leader if lost == "the leader" else member)
    if lost == "a member":
        os.kill(child, signal.SIGCONT)
    check(cluster, going, expected)
    outcomes = {fact["outcome"] for fact in cluster.facts(going, "ChainEnded")}
    assert outcomes & {"lost", "interrupted"}


@pytest.mark.slow
def test_a_worker_that_is_killed_between_two_parts_leaves_no_checkpoint_and_what_it_left_is_found(
    whole: Cluster, stack: Service, tmp_path: Path
) -> None:
    """A checkpoint is there as a whole or not at all, also where its first part is stored."""
    expected = curves(stack, stack.run({**study("alone", 0.0, ranks=1), **DIVIDED})["study"])
    before, died, slots = whole.commands, tmp_path / "died", ("gpu0", "gpu1")
    script = str(Path(__file__).with_name("dying.py"))
    try:
        for name in slots:
            whole.commands = whole.commands | {name: [before[name][0], script, str(died), *before[name][3:]]}
        whole.restart(*slots)
        going = whole.submit({**study("killed between parts", 0.0, ranks=2, max_restarts=0), **DIVIDED})
        check(whole, going, expected)
    finally:
        whole.commands = before
        whole.restart(*slots)
    lost = died.read_text()
    kept = whole.facts(going, "CheckpointKept")
    named = {key for each in kept for key in (each["key"], *(part["key"] for part in each["parts"]))}
    assert {len(each["parts"]) for each in kept} == {1} and lost not in named
    records = SqlRecords(whole.database)
    store = open_owned(records, whole.settings["STAGETREE_CHECKPOINTS"])
    stream = lost.removeprefix(store.prefix).partition("/")[0]
    orphans = [each.key for each in find_orphans(records, Plans(records.log), store, -1e9) if stream in each.key]
    assert orphans == [lost.replace(".1.", ".")]
    assert named <= set(store.all_keys())
