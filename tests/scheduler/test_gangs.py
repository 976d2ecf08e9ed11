"""Several slots for one path: which slots, their waits, and the end of a gang that loses a slot."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from assignments import FENCE
from scenes import LEASE, OPENED, Scene, rates, scene, trials

from app.domain import commands as c
from app.domain import events as e

SHARDED = e.PlanOpened(trainer="toy", trainer_version="1", trainer_args={}, seed=0, shards=8)
PROFILE = e.RanksProfiled(kind="H200", step_seconds={"1": 1.0, "2": 0.55, "4": 0.3, "8": 0.2}, batch={})


def submit(at: Scene, *steps: int, name: str = "study", ranks: Any = 1, **fields: Any) -> None:
    at.submit(trials(*steps), name=name, opened=SHARDED, shards=8, ranks=ranks, **fields)


def gangs(at: Scene) -> list[tuple[str, ...]]:
    """The slots of each chain, the leader first."""
    return [(event.slot, *event.members) for event in at.events(e.ChainAssigned)]


def states(at: Scene) -> dict[str, tuple[bool, bool]]:
    """Of each slot, whether it has a chain, and whether it is lent."""
    with at.records.read() as rows:
        return {row.name: (row.chain is not None, row.lent_to is not None) for row in rows.slots.all()}


@pytest.mark.parametrize("reached", [False, True])
def test_a_gang_is_of_one_machine_that_has_enough_slots(reached: bool) -> None:
    at = scene({"a": 1, "b": 2}, reached=reached)
    submit(at, 10, ranks=2)
    at.scheduler.tick()
    assert gangs(at) == [("b-gpu0", "b-gpu1")]
    assert at.messages == [("chain0", 1, "b-gpu0")]
    assert at.invited == [("chain0", "b-gpu1")], "its worker is to leave the device"
    (event,) = at.events(e.ChainAssigned)
    assert event.kind == "H200"
    given = at.assignment("chain0")
    assert (given.members, given.shards, given.ranks) == (("b-gpu1",), 8, 2)


def test_slots_whose_kind_is_not_known_are_in_no_gang() -> None:
    at = scene({"a": 2}, kind="")
    submit(at, 10, ranks=2)
    at.scheduler.tick()
    assert gangs(at) == []
    (problem,) = at.scheduler.problems().values()
    assert "ranks: 2, and no machine has this many healthy slots of one kind" in problem


def test_the_seconds_of_a_gang_are_those_of_all_its_slots() -> None:
    at = scene({"a": 4})
    submit(at, 10, ranks=4)
    at.run()
    assert at.study().gpu_seconds == 4.0
    assert set(states(at).values()) == {(False, False)}


def test_where_no_machine_has_enough_slots_of_several_are_a_gang() -> None:
    at = scene({"a": 1, "b": 1}, reached=True)
    submit(at, 10, ranks=2)
    at.scheduler.tick()
    (event,) = at.events(e.ChainAssigned)
    assert (event.slot, event.members, event.kind) == ("a-gpu0", ("b-gpu0",), "H200, several machines")
    assert (at.messages, at.invited) == ([("chain0", 1, "a-gpu0")], [("chain0", "b-gpu0")])
    meeting = at.assignment("chain0").meeting
    assert meeting is not None and meeting["address"] == "a:700" and len(meeting["secret"]) > 4


def test_a_script_with_a_launcher_waits_for_enough_slots_of_one_machine() -> None:
    """Its launcher starts all processes there; two of each machine are free, so others have a gang of both machines."""
    at = scene({"a": 2, "b": 2}, reached=True)
    at.submit(trials(10), opened=dataclasses.replace(SHARDED, shards=0, parallel="launched:4"), parallel="ddp", ranks=4)
    at.scheduler.tick()
    assert gangs(at) == []
    (problem,) = at.scheduler.problems().values()
    assert "ranks: 4, and no machine has this many healthy slots of one kind" in problem


def test_unreachable_slots_are_in_no_gang_of_several_machines() -> None:
    at = scene({"a": 1, "b": 1})
    submit(at, 10, ranks=2)
    at.scheduler.tick()
    assert gangs(at) == []


def test_tasks_of_one_node_that_see_a_gpu_each_are_several_machines() -> None:
    """As Slurm gives them names: the leader would take its own GPU for that of the other one."""
    at = Scene(slots=0)
    for gpu in (3, 5):
        with at.records.write() as rows:
            name, where = f"node7-{gpu}-gpu0", {"host": "node7", "kind": "H200", "address": f"node7:{gpu}"}
            rows.slots.take(name, "anna", instead_of=None, device=name, pid=1, **where)  # type: ignore[arg-type]
            rows.slots.describe(name, "anna", trainers={"toy": "1"}, note=None)
    submit(at, 10, ranks=2)
    at.scheduler.tick()
    (event,) = at.events(e.ChainAssigned)
    assert (event.slot, event.members) == ("node7-3-gpu0", ("node7-5-gpu0",))
    assert event.kind == "H200, several machines"


def test_a_worker_that_the_broker_did_not_take_the_invitation_of_is_invited_again() -> None:
    at = scene({"a": 1, "b": 1}, reached=True)
    submit(at, 10, ranks=2)
    at.scheduler.tick()
    at.messages.clear()
    at.invited.clear()
    at.at += LEASE - 1
    for slot in ("a-gpu0", "b-gpu0"):
        at.touch(slot)
    at.scheduler.tick()
    assert (at.messages, at.invited) == ([("chain0", 1, "a-gpu0")], [("chain0", "b-gpu0")])


# ------------------------------------------------------------------------------------------------ waiting


def make_gang_wait(at: Scene, ranks: int = 2) -> None:
    """One of two slots is busy with a long stage, and a gang waits for both."""
    at.submit(trials(100), name="alone", plan="other", opened=OPENED)
    at.scheduler.tick()
    submit(at, 10, ranks=ranks)
    at.scheduler.tick()
    assert at.events(e.ChainAssigned) == []


def test_slots_are_held_for_a_gang() -> None:
    at = scene({"a": 2})
    make_gang_wait(at)
    at.submit(rates(0.2, steps=5000), name="later", plan="third", opened=OPENED)
    at.scheduler.tick()
    assert at.events(e.ChainAssigned, plan="third") == []
    at.train()
    at.scheduler.tick()
    assert gangs(at) == [("a-gpu0", "a-gpu1")]


def test_work_no_longer_needed_holds_no_slot() -> None:
    at = scene({"a": 2})
    make_gang_wait(at)
    at.give(c.CancelStudy(study="study", at=at.at))  # type: ignore[arg-type]
    at.submit(rates(0.2, steps=5000), name="later", plan="third", opened=OPENED)
    at.scheduler.tick()
    assert [event.slot for event in at.events(e.ChainAssigned, plan="third")] == ["a-gpu1"]


# ------------------------------------------------------------------------------------------------ how many pay


def test_idle_slots_are_measured_before_they_are_given() -> None:
    at = scene({"a": 4})
    submit(at, 10, ranks={"least": 1, "most": 4})
    at.scheduler.tick()
    assert (at.assignment("chain0").ranks, at.assignment("chain0").measures_ranks) == (4, {})
    at.claim()
    at.record(
        "chain0",
        [PROFILE, e.ChainEnded(chain="chain0", outcome="stopped")],
        lambda rows: rows.chains.end("chain0", FENCE),
    )
    at.scheduler.tick()
    assert gangs(at)[1:] == [("a-gpu0", "a-gpu1", "a-gpu2", "a-gpu3")]


def test_measurements_of_another_plan_are_reused() -> None:
    at = scene({"a": 4})
    submit(at, 10, name="before", plan="plan0", ranks=1)
    at.records.inner.log.append("plan0", [PROFILE], expected=None, at=0.0)
    at.run()
    submit(at, 10, name="after", plan="plan1", ranks={"least": 1, "most": 4})
    at.scheduler.tick()
    assert [len(event.members) for event in at.events(e.ChainAssigned, plan="plan1")] == [3]
    assert at.events(e.RanksProfiled, plan="plan1") == [PROFILE]


@pytest.mark.parametrize(("seconds", "ranks"), [(0.49, 4), (0.6, 2), (0.9, 1)])
def test_the_largest_number_that_pays_is_taken(seconds: float, ranks: int) -> None:
    """1 / 0.41 of 4 is more than 0.6, and 1 / 0.42 is not."""
    profile = {"1": 1.0, "2": 0.5 if ranks > 1 else seconds, "4": {4: 0.41, 2: 0.42, 1: 0.8}[ranks]}
    at = scene({"a": 4})
    submit(at, 10, ranks={"least": 1, "most": 4})
    profiled = e.RanksProfiled(kind="H200", step_seconds=profile, batch={})
    at.records.inner.log.append("plan", [profiled], expected=None, at=0.0)
    at.scheduler.tick()
    assert [len(gang) for gang in gangs(at)] == [ranks]


def test_where_paths_are_as_many_as_slots_each_has_one() -> None:
    at = scene({"a": 2})
    at.submit(rates(0.1, 0.2, steps=10), opened=SHARDED, shards=8, ranks={"least": 1, "most": 2})
    at.scheduler.tick()
    assert gangs(at) == [("a-gpu0",), ("a-gpu1",)]


# ------------------------------------------------------------------------------------------------ memory

NEEDS = e.NeedsMore(node="n", step=0, kind="H200", ranks=2, batch={"bs": 64})  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "ranks"), [(64, 4), (128, 4), (32, 1)])
def test_a_batch_as_large_as_one_that_had_no_room_has_more_slots(size: int, ranks: int) -> None:
    at = scene({"a": 4})
    hp = {"lr": 0.1, "bs": size}
    tuner = {"kind": "trials", "trials": [{"hp": hp | {"lr": 0.1 * n}, "steps": 10} for n in (1, 2, 3, 4, 5)]}
    at.submit(tuner, opened=SHARDED, shards=8, ranks={"least": 1, "most": 8})
    at.records.inner.log.append("plan", [NEEDS], expected=None, at=0.0)
    at.scheduler.tick()
    assert [len(gang) for gang in gangs(at)] == [ranks] * (4 // ranks)
    assert at.assignment("chain0").most_ranks == 4  # a gang larger than the machine would wait in vain


def test_a_gang_larger_than_all_slots_waits_with_a_reason() -> None:
    at = scene({"a": 4})
    submit(at, 10, ranks={"least": 1, "most": 8})
    at.records.inner.log.append("plan", [dataclasses.replace(NEEDS, ranks=4, batch={})], expected=None, at=0.0)
    at.scheduler.tick()
    assert gangs(at) == []
    (problem,) = at.scheduler.problems().values()
    assert "it needs 8 devices for its memory, and no machine has this many" in problem


def test_out_of_memory_on_another_kind_does_not_count() -> None:
    at = scene({"a": 4})
    submit(at, 10, ranks={"least": 1, "most": 4}, max_slots=1)
    at.records.inner.log.append("plan", [dataclasses.replace(NEEDS, kind="A100", batch={})], expected=None, at=0.0)
    at.scheduler.tick()
    assert gangs(at) == [("a-gpu0",)]


# ------------------------------------------------------------------------------------------------ what goes wrong


def start_gang() -> Scene:
    """A gang of two that has begun."""
    at = scene({"a": 2})
    submit(at, 10, ranks=2)
    at.scheduler.tick()
    at.claim()
    at.beat("chain0", 4)
    return at


def test_a_lost_member_ends_the_chain_without_blame() -> None:
    at = start_gang()
    at.at += LEASE - 1
    at.touch("a-gpu0")
    at.beat("chain0", 5)
    at.scheduler.tick()
    at.at += 2
    at.beat("chain0", 6)
    at.scheduler.tick()
    assert at.outcomes() == ["interrupted"]
    assert states(at) == {"a-gpu0": (False, False), "a-gpu1": (False, False)}
    plan = at.plan()
    assert [node.lost for node in plan.nodes.values()] == [{}]
    at.touch("a-gpu1")
    at.scheduler.tick()
    assert gangs(at) == [("a-gpu0", "a-gpu1")] * 2


def test_a_member_with_another_worker_is_lost_at_once() -> None:
    at = start_gang()
    with at.records.write() as rows:
        rows.slots.take("a-gpu1", "berta", instead_of="anna", device="x", host="a", pid=2, kind="H200")
        rows.slots.describe("a-gpu1", "berta", trainers={"toy": "1"}, note=None)
    at.scheduler.tick()
    assert at.outcomes() == ["interrupted"]
    assert gangs(at) == [("a-gpu0", "a-gpu1")] * 2


def test_a_lost_leader_frees_its_members_with_its_lease() -> None:
    at = start_gang()
    at.scheduler.tick()
    at.expire("a-gpu1")
    at.scheduler.tick()
    assert at.outcomes() == ["lost"]
    assert states(at)["a-gpu1"] == (False, False)


def test_a_member_that_leaves_in_order_ends_nothing_before_the_step_is_done() -> None:
    at = start_gang()
    with at.records.write() as rows:
        rows.slots.retire("a-gpu1", "anna")
    at.scheduler.tick()
    assert at.outcomes() == []
    with at.records.read() as rows:
        assert rows.chains.flags("chain0", FENCE).preempt
