"""A study on several slots: any number of ranks gives the same checkpoints, through a mishap in any of them."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from studies import spec
from toys import switch

from app.domain import commands as c
from app.domain import events as e
from app.domain.terms import Verdict, VerificationKind
from app.events.database import Database
from app.exactness import judge, verdict_text
from app.registry import TrainerSource
from app.storage.owned_store import find_orphans
from app.workers.trainer_group import TrainerGroup
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm

FILE = str(Path(__file__).parents[1] / "ranks" / "in_shards.py")
ADDED = str(Path(__file__).parents[1] / "ranks" / "added.py")
HP = {"lr": 0.01, "bs": 30}
TRIALS = (({**HP, "lr": switch(0.01, 0.002, 4)}, 7), ({**HP, "lr": switch(0.01, 0.005, 4), "bs": switch(30, 46, 5)}, 7))


def study(ranks: Any, *trials: Any, hungry: bool = False, **fields: Any) -> dict[str, Any]:
    args = {"samples": 101} | ({"hungry": True} if hungry else {})
    named = {"trainer": "in_shards", "trainer_args": args, "metric": "val_accuracy", "max_slots": 2}
    return spec(*(trials or TRIALS), **named, ranks=ranks, shards=4, eval_every=2, **fields)


def added_spec(args: dict[str, Any], *trials: Any, **fields: Any) -> dict[str, Any]:
    """Of a trainer whose ranks have a part of the memory each."""
    named: dict[str, Any] = {"trainer": "added", "trainer_args": args, "metric": "sum", "shards": 4}
    return spec(*trials, **named, ranks={"least": 1, "most": 4}, **fields)


class Ranked(Cluster):
    """Two slots. begun: the number of ranks of each process. kill_at: which of them loses a rank as it trains.

    beside: the processes of other slots that were there when a gang was started, and the other way round.
    """

    def __init__(self, database: Database, folder: Path, warm: Warm, **how: Any) -> None:
        self.begun, self.kill_at, self._warm = list[int](), -1, warm
        self.beside, self.processes_so_far = list[TrainerProcess](), list[TrainerProcess]()
        self.is_deaf = False
        super().__init__(database, folder, slots=2, start=self._start_process, silence=60.0, **how)
        self.sources["in_shards"] = TrainerSource(FILE, "1")
        self.sources["in_ddp"] = TrainerSource(str(Path(FILE).with_name("in_ddp.py")), "1")
        self.sources["added"] = TrainerSource(ADDED, "1")

    def _start_process(self, members: Sequence[str] = ()) -> TrainerProcess:
        self.begun.append(1 + len(members))
        before = [each for each in self.processes_so_far if Path(f"/proc/{each.leader.pid}").exists()]
        self.beside += [each for each in before if members or isinstance(each, TrainerGroup)]
        kind = Doomed if len(self.begun) - 1 == self.kill_at else TrainerGroup
        new = kind.start(self._warm, ranks=1 + len(members)) if members else TrainerProcess.start(self._warm)
        self.processes_so_far.append(new)
        return new

    def lend(self, chain: str, slot: str) -> None:
        if not self.is_deaf:
            super().lend(chain, slot)

    def checkpoint_hashes(self) -> dict[tuple[str, int], str]:
        return {(event.node, event.step): event.sha256 for event in self.events(e.CheckpointKept)}


class Doomed(TrainerGroup):
    """Its last rank is killed when it is to train."""

    def train(self, *args: Any, **how: Any) -> Any:
        os.kill(self.ranks[-1].pid, signal.SIGKILL)
        return super().train(*args, **how)


Make = Callable[..., Ranked]


@pytest.fixture
def make(sqlite_template: Path, tmp_path: Path, warm: Warm) -> Iterator[Make]:
    """A new cluster with a log of its own."""
    made = list[Ranked]()

    def make(**how: Any) -> Ranked:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        shutil.copy(sqlite_template, folder / "log.db")
        made.append(Ranked(Database(f"sqlite:///{folder / 'log.db'}"), folder, warm, **how))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.slow
def test_two_ranks_keep_the_checkpoints_of_one_also_where_one_is_killed(make: Make) -> None:
    one, two, hurt = make(), make(), make()
    hurt.kill_at = 0
    found = []
    for cluster, ranks in ((one, 1), (two, 2), (hurt, 2)):
        done = cluster.run(cluster.submit(study(ranks)))
        found.append((cluster.values(done.id), cluster.checkpoint_hashes()))
        assert set(cluster.begun) == {ranks}
        assert not cluster.events(e.StageFailed)
    for values, kept in found[1:]:
        assert values == found[0][0]
        assert all(found[0][1][place] == sha256 for place, sha256 in kept.items() if place in found[0][1])
    assert "interrupted" in {event.outcome for event in hurt.events(e.ChainEnded)}


@pytest.mark.slow
def test_a_study_of_one_rank_continues_with_two(make: Make) -> None:
    alone, moved = make(), make()
    longer = [(hp, steps + 3) for hp, steps in TRIALS]
    expected = alone.values(alone.run(alone.submit(study(1, *longer))).id)
    moved.run(moved.submit(study(1)))
    begun = len(moved.begun)
    done = moved.run(moved.submit(study(2, *longer)))
    assert moved.values(done.id) == expected
    assert set(moved.begun[:begun]) == {1} and set(moved.begun[begun:]) == {2}
    assert done.executed < done.unique


@pytest.mark.slow
def test_a_slot_that_is_lent_is_left_before_ranks_start_there_and_after_the_chain_is_over(make: Make) -> None:
    """Both slots have a model in memory, then a gang has both, and then each has a path of its own again."""
    cluster = make()
    for number, ranks in enumerate((1, 2, 1)):
        trials = [({"lr": switch(lr + 0.01 * number, lr / 2, 3)}, 5) for lr in (0.1, 0.2)]
        cluster.run(cluster.submit(added_spec({}, *trials) | {"ranks": ranks}))
        slots = {each.slot for each in cluster.events(e.ChainAssigned)}
        assert slots == {"gpu0", "gpu1"} or ranks > 1
    assert {1, 2} == set(cluster.begun) and cluster.begun[-1] == 1
    assert cluster.beside == []


@pytest.mark.slow
def test_a_slot_whose_worker_stays_on_a_device_that_is_lent_rests_and_nobody_is_charged(make: Make) -> None:
    cluster = make()
    cluster.is_deaf = True
    study = cluster.submit(added_spec({}, ({"lr": 0.1}, 3)) | {"ranks": 2})
    for _ in range(2):
        cluster.round()
    assert cluster.begun == [], "no process starts beside one that may still run"
    (given,), (end,) = cluster.events(e.ChainAssigned), cluster.events(e.ChainEnded)
    assert end.outcome == "interrupted" and cluster.events(e.StageFailed) == []
    silent = cluster.row(given.members[0])
    assert "its worker has not left the device" in str(silent.note)
    assert silent.quarantined_until is not None and silent.quarantined_until > cluster.clock.now()
    assert cluster.row(given.slot).quarantined_until is None
    cluster.is_deaf = False
    cluster.clock.wait(120.0)
    assert cluster.run(study).state == "completed"


@pytest.mark.slow
def test_what_has_no_room_on_one_device_is_tried_on_two_and_charged_to_nobody(make: Make) -> None:
    """The large batches: one that is out of memory says so for all. The small ones stay on one device each."""
    alone, cluster = make(), make()
    hps = [{"lr": lr, "bs": size} for size in (64, 32) for lr in (0.1, 0.2)]
    found = []
    for each, needs in ((alone, 1), (cluster, 2)):
        done = each.run(each.submit(added_spec({"needs": needs}, *((hp, 5) for hp in hps))))
        found.append([each.plan.metrics(trial, 5) for trial in done.trials])
        assert done.state == "completed"
    assert [seen["sum"] for seen in found[1]] == [seen["sum"] for seen in found[0]]
    assert cluster.events(e.StageFailed) == []
    (needed,) = cluster.events(e.NeedsMore)
    assert (needed.ranks, needed.kind, needed.batch) == (1, "cpu", {"bs": 64})
    sizes = [len(event.members) for event in cluster.events(e.ChainAssigned)]
    assert sizes.count(0) == 3, "the other large one has two at once"
    assert [node.failures for node in cluster.plan.nodes.values()] == [{}] * 4


def test_what_has_no_room_on_all_devices_there_are_is_a_failure(make: Make) -> None:
    cluster = make()
    done = cluster.run(cluster.submit(added_spec({"needs": 4}, ({"lr": 0.1, "bs": 64}, 5), max_restarts=0)))
    assert [trial.state for trial in done.trials] == ["failed"]
    (failed,) = cluster.events(e.StageFailed)
    assert failed.kind == "out_of_memory"
    assert "It had 2 devices, the most that `ranks` and the machines allow" in failed.error
    assert [each.ranks for each in cluster.events(e.NeedsMore)] == [1]


@pytest.mark.slow
def test_more_devices_are_no_help_to_shards(make: Make) -> None:
    """Of a batch in shards, a device has one at a time, for any number of devices."""
    cluster = make()
    ranks = {"least": 1, "most": 2}
    done = cluster.run(cluster.submit(study(ranks, (HP, 3), (HP | {"lr": 0.1}, 3), max_restarts=0, hungry=True)))
    assert [trial.state for trial in done.trials] == ["failed", "failed"]
    assert cluster.events(e.NeedsMore) == []
    assert all("more shards need less memory" in each.error for each in cluster.events(e.StageFailed))


CALLS = ("build", "train", "evaluate", "save", "load")
MISHAPS = [("kill", "load"), ("stop", "train"), ("raise", "save"), ("memory", "evaluate"), ("kill", "build")]
"""Each of them, and each call; `tests/ranks/test_trainer_group.py` has all pairs."""


@pytest.mark.slow
@pytest.mark.parametrize(("mishap", "call"), MISHAPS)
def test_after_a_mishap_in_a_rank_the_values_are_those_of_a_calm_study(
    make: Make, mishap: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is charged to the user only where the user's code has raised, and then it is tried again."""
    monkeypatch.setattr("app.workers.trainer_group.STOPPED_SECONDS", 0.5)
    calm, hurt = make(), make()
    trials = [({"lr": switch(0.1, lr, 4)}, 7) for lr in (0.05, 0.02)]
    how = {"mishap": mishap, "call": call, "who": (CALLS.index(call) + len(mishap)) % 2, "once": str(tmp_path / "was")}
    found = []
    for cluster, args in ((calm, {}), (hurt, how)):
        fields = {"ranks": 2, "max_restarts": 2, "eval_every": 2}
        done = cluster.run(cluster.submit(added_spec(args, *trials) | fields))
        found.append(cluster.values(done.id))
    assert found[1] == found[0]
    assert {state for state, _ in found[1]} == {"completed"}
    assert (tmp_path / "was").exists()
    kinds = [failed.kind for failed in hurt.events(e.StageFailed)]
    assert kinds == {"raise": ["exception"], "memory": ["out_of_memory"]}.get(mishap, [])
    assert hurt.events(e.NeedsMore) == []


@pytest.mark.slow
def test_an_error_in_a_rank_is_the_users(make: Make) -> None:
    cluster = make()
    done = cluster.run(cluster.submit(study(2, ({"lr": 0.01, "bs": 0}, 4), (HP, 4), max_restarts=0)))
    assert [trial.state for trial in done.trials] == ["failed", "completed"]
    assert {failure.kind for failure in cluster.events(e.StageFailed)} == {"exception"}


@pytest.mark.slow
def test_divided_states_are_kept_in_parts_that_any_number_of_ranks_reads(make: Make) -> None:
    alone, moved = make(), make()
    how: dict[str, Any] = {"parallel": "fsdp", "keep_best": 0}
    longer = [(hp, steps + 3) for hp, steps in TRIALS]
    expected = alone.values(alone.run(alone.submit(study(1, *longer, **how))).id)
    moved.run(moved.submit(study(2, **how)))
    kept = moved.events(e.CheckpointKept)
    assert {len(each.parts) for each in kept} == {1}
    for each in kept:
        sizes = {key: moved.store.stat(key).size for key in each.keys}
        assert sum(sizes.values()) == each.size and sizes[each.parts[0].key] == each.parts[0].size
    assert not list(find_orphans(moved.records, moved.plans, moved.store, age=-1e9))
    begun = len(moved.begun)
    done = moved.run(moved.submit(study(1, *longer, **how)))
    assert moved.values(done.id) == expected and set(moved.begun[begun:]) == {1}
    assert done.executed < done.unique
    forget(moved)
    assert list(moved.store.all_keys()) == []


def forget(cluster: Ranked) -> None:
    """Delete all studies, and what only they kept."""
    for study in list(cluster.plan.studies):
        cluster.give(c.DeleteStudy(study=study, at=cluster.clock.now()))
    deleting = cluster.deleting()
    while not deleting.look().is_done:
        pass


STOCK = {"ddp": "in_ddp", "fsdp": "in_shards"}


@pytest.mark.slow
@pytest.mark.parametrize("parallel", STOCK)
def test_torchs_own_sums_are_of_a_plan_with_the_number_of_ranks_and_proven_there(make: Make, parallel: str) -> None:
    cluster = make(proofs=True)
    how: dict[str, Any] = {"parallel": parallel, "trainer": STOCK[parallel]}
    done = cluster.run(cluster.submit({**study(2), **how, "shards": None}))
    assert [trial.state for trial in done.trials] == ["completed", "completed"]
    assert set(cluster.begun) == {2} and done.executed == done.unique < done.requested
    assert cluster.plan.opened is not None and cluster.plan.opened.parallel == f"{parallel}:2"
    proofs = {each.proof for each in cluster.events(e.ChainAssigned) if each.members} - {None}
    assert {VerificationKind.CHECK, VerificationKind.HANDOVER} <= proofs
    assert [each for each in cluster.events(e.ExactnessTested) if each.difference or each.unproven] == []
    assert judge(cluster.plan, done).verdict in (Verdict.CHECKED, Verdict.VERIFIED)


@pytest.mark.slow
def test_what_is_inexact_in_two_ranks_alone_is_found_by_a_proof_in_two(make: Make) -> None:
    cluster = make(proofs=True)
    trials = [({"lr": switch(0.1, lr, 4)}, 7) for lr in (0.05, 0.02)]
    fields = {"ranks": 2, "inexact": "allow"}
    done = cluster.run(cluster.submit(added_spec({"forgets": True}, *trials) | fields))
    assert (found := judge(cluster.plan, done)).verdict == Verdict.INEXACT
    assert verdict_text(done, found).startswith("inexact, and shared results may be wrong: ")


@pytest.mark.slow
def test_a_verification_that_loses_a_rank_is_repeated_without_blame(make: Make) -> None:
    cluster = make(proofs=True)
    cluster.kill_at = 0  # it is the check
    done = cluster.run(cluster.submit(study(2)))
    assert [trial.state for trial in done.trials] == ["completed", "completed"]
    checks = [each.chain for each in cluster.events(e.ChainAssigned) if each.proof == VerificationKind.CHECK]
    ends = {each.chain: each.outcome for each in cluster.events(e.ChainEnded)}
    assert [ends[chain] for chain in checks] == ["interrupted", "done"]
    assert judge(cluster.plan, done).verdict in (Verdict.CHECKED, Verdict.VERIFIED)


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_is_killed_between_two_parts_costs_no_checkpoint(make: Make, who: int) -> None:
    """All ranks have given their parts before the first is stored."""
    calm, hurt = make(), make()
    killed = list[str]()

    def kill(key: str) -> None:
        group = hurt.processes_so_far[-1]
        if key.endswith(".1.safetensors") and not killed and isinstance(group, TrainerGroup):
            killed.append(key)
            os.kill(group.ranks[who].pid, signal.SIGKILL)

    hurt.store.before_write = kill
    found = []
    for cluster in (calm, hurt):
        done = cluster.run(cluster.submit(study(2, parallel="fsdp")))
        found.append(cluster.values(done.id))
    assert found[1] == found[0] and killed and hurt.events(e.StageFailed) == []
    kept = [set(each.keys) for each in hurt.events(e.CheckpointKept)]
    assert {len(keys) for keys in kept} == {2} and any(killed[0] in keys for keys in kept)
    assert not list(find_orphans(hurt.records, hurt.plans, hurt.store, age=-1e9))


@pytest.mark.slow
def test_a_lost_part_is_a_lost_checkpoint(make: Make) -> None:
    cluster = make()
    cluster.run(cluster.submit(study(2, parallel="fsdp")))
    leaves = [kept for kept in cluster.events(e.CheckpointKept) if kept.step == 7]
    for kept in leaves:
        cluster.store.delete(kept.parts[0].key)
    for name, slot in cluster.slots.items():
        slot.close()
        cluster.slots[name] = cluster.make_slot(name)  # its states in memory are gone
    longer = [(hp, steps + 3) for hp, steps in TRIALS]
    again = cluster.run(cluster.submit(study(2, *longer, parallel="fsdp")))
    dropped = {event.key for event in cluster.events(e.CheckpointDropped)}
    assert dropped & {kept.key for kept in leaves}
    assert [trial.state for trial in again.trials] == ["completed", "completed"]
    other = make()
    assert cluster.values(again.id) == other.values(other.run(other.submit(study(2, *longer, parallel="fsdp"))).id)
