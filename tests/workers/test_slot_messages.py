"""Messages are hints, and fences are proofs: messages that come twice, late or from a dead worker do no harm."""

from __future__ import annotations

from pathlib import Path

import pytest
from assignments import work
from cluster import LEASE, Cluster
from studies import BRANCHES, spec
from toys import switch

from app.domain import events as e
from app.domain.terms import StudyState
from stagetree.runtime.failures import TrainerFailed


def test_messages_may_come_twice_late_and_for_what_is_long_over(cluster: Cluster) -> None:
    study = cluster.submit(spec(({}, 2), ({}, 4), ({}, 6)))
    cluster.ticker.tick()
    chain = cluster.messages[0][0]
    slot = cluster.slots["gpu0"]
    assert not slot.run_stage(chain, 1)  # before its time
    assert not slot.run_stage("unknown", 0)
    assert slot.run_stage(chain, 0)
    assert not slot.run_stage(chain, 0)  # a copy
    assert not slot.run_stage("another", 1)
    assert slot.run_stage(chain, 1)
    assert not slot.run_stage(chain, 1)
    assert slot.run_stage(chain, 2)
    assert not slot.run_stage(chain, 2)
    cluster.settle()
    assert not slot.run_stage(chain, 0)
    assert cluster.run(study).executed == 6


@pytest.mark.parametrize(("seconds", "expected"), [(0.1, {2: [], 4: [2], 6: []}), (2.0, {2: [], 4: [], 6: []})])
def test_the_message_of_the_next_stage_is_sent_before_a_short_stage_ends(
    cluster: Cluster, seconds: float, expected: dict[int, list[int]]
) -> None:
    """No stage waits for it then. How long the steps of a chain take is not known in its first stage."""
    study = cluster.submit(spec(({}, 2), ({}, 4), ({}, 6)))
    sent = dict[int, list[int]]()

    def script(slot: str, process: object, what: str, step: int) -> None:
        if what == "train":
            cluster.clock.wait(seconds)
        if what == "evaluate":
            sent[step] = [index for _, index, _ in cluster.messages]

    cluster.script = script
    cluster.ticker.tick()
    while cluster.messages:
        assert cluster.deliver()
    assert sent == expected
    cluster.settle()
    assert cluster.run(study).executed == 6


@pytest.mark.parametrize(("what", "step"), [("evaluate", 4), ("save", 4), ("train", 3)])
def test_a_message_that_was_sent_before_its_stage_failed_begins_nothing(cluster: Cluster, what: str, step: int) -> None:
    study = cluster.submit(spec(({}, 2), ({}, 4), ({}, 6)))
    done = list[tuple[str, int]]()

    def script(slot: str, process: object, doing: str, at: int) -> None:
        done.append((doing, at))
        if (doing, at) == (what, step):
            cluster.messages.append((cluster.live()[0].chain, 2, slot))  # at the latest
            cluster.script = lambda *_: done.append(("more", 0))
            raise TrainerFailed("crash", "the process has ended", at)

    cluster.script = script
    cluster.ticker.tick()
    assert cluster.deliver() and not cluster.deliver()
    assert cluster.messages and {index for _, index, _ in cluster.messages} == {2}
    while cluster.messages:
        assert not cluster.deliver()
    assert done[-1] == (what, step)
    cluster.settle()
    cluster.script = lambda *_: None
    assert cluster.run(study).state == StudyState.COMPLETED
    assert not cluster.study(study).failed


def test_a_chain_that_was_lost_between_two_stages_begins_none(cluster: Cluster) -> None:
    study = cluster.submit(spec(({}, 2), ({}, 4)))
    cluster.work()
    cluster.clock.wait(LEASE + 1)
    cluster.ticker.tick()
    cluster.beat()
    cluster.script = lambda slot, process, what, step: pytest.fail(f"{what} at step {step}")
    assert not cluster.deliver()
    cluster.script = lambda *_: None
    cluster.messages.clear()
    cluster.settle()
    assert cluster.run(study).executed == 4


def test_a_stage_that_only_evaluates_is_not_the_end_of_its_chain(cluster: Cluster) -> None:
    """No state is saved at its end, with which the end of a chain would be recorded."""
    cluster.run(cluster.submit(BRANCHES))
    study = cluster.submit(spec(({}, 4), ({}, 8)))
    cluster.ticker.tick()
    (*_, given) = cluster.events(e.ChainAssigned)
    assert [(stage.start, stage.end) for stage in given.stages] == [(4, 4), (4, 8)]
    assert cluster.deliver()
    cluster.settle()
    assert [(row.state, row.index) for row in cluster.live()] == [("running", 1)]
    assert cluster.run(study).executed == 4


@pytest.mark.parametrize("ends", [(4,), (4, 6, 8)])
def test_a_stage_and_its_small_checkpoint_are_one_commit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, ends: tuple[int, ...]
) -> None:
    """One wait for the disk, and one tick. The first stage only evaluates, and waits for no checkpoint."""
    monkeypatch.setattr("app.workers.slot.outbox.COALESCE_SECONDS", 600.0)
    cluster.run(cluster.submit(BRANCHES))
    cluster.submit(spec(*(({}, end) for end in ends)))
    cluster.ticker.tick()
    for _ in ends:
        told = cluster.told
        cluster.deliver()
        cluster.settle()
        assert cluster.told == told + 1


def test_the_row_of_a_chain_names_the_next_stage(cluster: Cluster) -> None:
    """It is what tells a worker that waits for a message from one that was interrupted, and what people are shown."""
    cluster.submit(spec(({}, 2), ({}, 4), ({}, 6)))
    cluster.ticker.tick()
    for index in range(2):
        cluster.deliver()
        cluster.settle()
        assert [row.index for row in cluster.live()] == [index + 1]
    chain = cluster.plan.chains[next(iter(cluster.plan.chains))]
    assert chain.index == 2


def test_a_chain_that_was_lost_is_not_trained_on(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.submit(spec(({}, 12)))
    steps = list[int]()

    def script(slot: str, process: object, what: str, step: int) -> None:
        if what == "train":
            steps.append(step)
        if (what, step) == ("train", 3):
            cluster.clock.wait(LEASE + 1)
            cluster.ticker.tick()
            cluster.beat()

    cluster.script = script
    cluster.ticker.tick()
    assert not cluster.deliver()
    assert steps == [0, 1, 2, 3]
    assert "a fault of ours" not in caplog.text


def test_steps_that_someone_asks_for_on_the_way_are_evaluated_and_kept(cluster: Cluster) -> None:
    study = cluster.submit(spec(({}, 12)))

    def ask() -> None:
        cluster.submit(spec(({"lr": switch(0.1, 0.5, 6)}, 8)))
        cluster.ticker.tick()
        cluster.beat()

    cluster.at("train", 2, ask)
    cluster.work()
    assert [event.step for event in cluster.events(e.CheckpointKept)] == [6, 12]
    assert cluster.run(study).state == StudyState.COMPLETED
    assert not cluster.store.reads


# -------------------------------------------------------------------------------------------- the model in memory


def test_a_model_is_not_used_for_other_names_of_hyper_parameters(cluster: Cluster) -> None:
    """A set value cannot be taken back: the toy would keep the momentum of the trial before."""
    alone = cluster.submit(spec(({}, 3), merge=False))
    expected = cluster.values(cluster.run(alone).id)
    cluster.run(cluster.submit(spec(({"momentum": 0.9}, 3), trainer_args={"tag": "b"})))
    done = cluster.run(cluster.submit(spec(({}, 3), trainer_args={"tag": "b"})))
    assert cluster.values(done.id) == expected


def test_what_is_given_for_the_run_alone_makes_no_other_plan(cluster: Cluster, tmp_path: Path) -> None:
    """The place of the data, or the number of reading processes, changes no result; the trained steps serve all."""
    first = cluster.run(cluster.submit(spec(({}, 4), runtime_args={"seconds": 0.0})))
    journal = tmp_path / "journal"
    second = cluster.run(cluster.submit(spec(({}, 6), runtime_args={"journal": str(journal)})))
    assert (first.executed, second.executed) == (4, 2)
    assert len(journal.read_text().splitlines()) == 2


def test_a_chain_continues_with_the_model_in_memory(cluster: Cluster) -> None:
    builds = list[int]()
    cluster.script = lambda slot, process, what, step: builds.append(step) if what in ("build", "load") else None
    cluster.run(cluster.submit(spec(({}, 2), ({}, 4), ({}, 6))))
    cluster.run(cluster.submit(spec(({}, 8))))
    assert builds == [0]
    assert not cluster.store.reads


def test_a_model_in_doubt_is_loaded_anew(cluster: Cluster) -> None:
    """A chain that was lost leaves its model somewhere: the next one begins with a checkpoint."""
    cluster.run(cluster.submit(spec(({}, 2))))
    study = cluster.submit(spec(({}, 6)))
    loads = list[int]()

    def script(slot: str, process: object, what: str, step: int) -> None:
        if what == "load":
            loads.append(step)
        if (what, step) == ("train", 3) and not loads:
            loads.append(0)
            cluster.clock.wait(LEASE + 1)
            cluster.ticker.tick()
            cluster.beat()

    cluster.script = script
    cluster.ticker.tick()
    assert not cluster.deliver()
    values = cluster.values(cluster.run(study).id)
    assert len(loads) == 2
    assert cluster.values(cluster.run(cluster.submit(spec(({}, 6), merge=False))).id) == values


# ----------------------------------------------------------------------------------------------------------- logs


def test_each_stage_has_a_line_in_the_log_of_its_trial(cluster: Cluster) -> None:
    study = cluster.submit(spec(({}, 2), ({}, 4)))
    cluster.run(study)
    lines = [path.read_text() for path in sorted((cluster.folder / "logs" / study).glob("*.log"))]
    text = "".join(lines)
    assert text.count("--- stage of node") == 2
    assert "steps 0 to 2, slot gpu0" in text and "steps 2 to 4, slot gpu0" in text


def test_a_log_for_which_there_is_no_place_holds_up_nothing(cluster: Cluster) -> None:
    (cluster.folder / "logs").write_text("no folder")
    assert cluster.run(cluster.submit(spec(({}, 2), ({}, 4)))).executed == 4


def test_a_log_that_cannot_be_opened_holds_up_nothing(cluster: Cluster) -> None:
    def refuse() -> None:
        raise PermissionError("not yours")

    cluster.at("log", 0, refuse)
    assert cluster.run(cluster.submit(spec(({}, 2)))).executed == 2
    assert [event.outcome for event in cluster.events(e.ChainEnded)] == ["done"]


def test_a_chain_that_was_given_up_is_over_when_its_slot_is_lent(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The message of its next stage came before a heartbeat: that the model was gone was taken for an accident here."""
    cluster.submit(BRANCHES)
    cluster.ticker.tick()
    assert cluster.deliver() and cluster.messages, "it waits between two stages"
    [chain] = cluster.live()
    with cluster.records.write() as rows:
        rows.chains.end(chain.chain)
        rows.slots.take("gpu1", "berta", instead_of=None, device="cpu", host="here", pid=1)
        rows.chains.assign("gang", cluster.stream, "gpu1", work(members=("gpu0",)), 60.0)
    cluster.lend("gang", "gpu0")
    assert not cluster.deliver()
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []
    slot = cluster.row()
    assert slot.emptied_for == "gang" and slot.quarantined_until is None
