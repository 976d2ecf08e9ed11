"""A trial on slots of two machines, on real workers, each of which starts its own rank: the values of one slot.

Two names before the device are two machines, as tasks of Slurm are that see one GPU each.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from faults import busy_slots, check
from stacks import Cluster, wait_for
from test_real_gangs import DIVIDED, assigned_chains, study
from toys import curves

pytestmark = pytest.mark.slow(together=True)

APART = ("a-gpu0", "b-gpu0")


@pytest.fixture(scope="module")
def apart(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with a slot on each of two machines instead of its own."""
    before, commands = cluster.settings, cluster.commands
    for name in ("gpu0", "gpu1"):
        cluster.kill(name, signal.SIGTERM)
    cluster.settings = before | {"STAGETREE_ADDRESS": "127.0.0.1"}
    named = {
        name: [name if part == "gpu0" else part.replace("gpu0@", f"{name}@") for part in commands["gpu0"]]
        for name in APART
    }
    cluster.commands = commands | named
    cluster.start(*APART)
    yield cluster
    for name in APART:
        cluster.kill(name, signal.SIGTERM)
    cluster.settings, cluster.commands = before, commands
    cluster.start("gpu0", "gpu1")


def test_two_machines_have_the_values_of_one_slot(apart: Cluster) -> None:
    alone = apart.run(study("alone", 0.0, ranks=1))
    done = apart.run(study("two machines", 0.0, ranks=2))
    assert done["state"] == "completed"
    assert curves(apart, done["study"]) == curves(apart, alone["study"])
    assert {slots for *_, slots in assigned_chains(apart, done["study"])} == {2}
    outcomes = {fact["outcome"] for fact in apart.facts(done["study"], "ChainEnded")}
    assert outcomes == {"done"}
    assert {slot["lent_to"] and slot["lent_to"]["study"] for slot in apart.client.slots()} == {None}


def test_parameters_that_two_machines_divide_have_the_values_of_one_slot(apart: Cluster) -> None:
    alone, two = (apart.run({**study(f"divided by {ranks}", 0.0, ranks=ranks), **DIVIDED}) for ranks in (1, 2))
    assert (alone["state"], two["state"]) == ("completed", "completed")
    assert curves(apart, two["study"]) == curves(apart, alone["study"])
    assert {len(fact["parts"]) for fact in apart.facts(two["study"], "CheckpointKept")} == {1}


@pytest.mark.parametrize("lost", ["the leader", "a member"])
def test_a_lost_machine_counts_against_no_trial(apart: Cluster, lost: str) -> None:
    expected = curves(apart, apart.run(study("alone", 0.0, ranks=1))["study"])
    going = apart.submit(study(f"{lost} is lost", 0.3, ranks=2, check=False, max_restarts=0))
    leader = str(wait_for("a stage under way", lambda: busy_slots(apart, going))[0])
    apart.restart(leader if lost == "the leader" else next(each for each in APART if each != leader))
    check(apart, going, expected)
    outcomes = {fact["outcome"] for fact in apart.facts(going, "ChainEnded")}
    assert outcomes & {"lost", "interrupted"}
