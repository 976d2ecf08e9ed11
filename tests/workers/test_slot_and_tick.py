"""A tick and a slot against what may go wrong between any two of their steps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from app.workers.checkpoints import Checkpoints
from house import LEASE, House
from stacks import Service
from toys import grid, switch

from app.domain import events as e
from app.events import leases
from app.events.database import Database
from app.workers.slot import Slot
from app.workers.tick import DISPATCH_AGAIN_SECONDS, Ticker

Json = dict[str, Any]


def spec(*trials: tuple[Json, int], **fields: Any) -> Json:
    listed = [{"hp": {"lr": 0.1, **hp}, "steps": steps} for hp, steps in trials]
    named = {"name": "study", "trainer": "toy", "metric": "score", "mode": "max"}
    return {**named, "tuner": {"kind": "trials", "trials": listed}, **fields}


BRANCHES = spec(({"lr": switch(0.1, 0.2, 4)}, 8), ({"lr": switch(0.1, 0.3, 4)}, 8))
ALONE = {**BRANCHES, "merge": False}


def test_one_slot_gives_what_two_slots_give(house: House, stack: Service) -> None:
    alone = house.values(house.run(house.submit(grid("slots"))).id)
    trials = [stack.client.trial(found, number) for found in [stack.run(grid("slots"))["study"]] for number in range(8)]
    assert alone == [(trial["state"], trial["curve"][-1]["metrics"]) for trial in trials]


# -------------------------------------------------------------------------------------------------------------- storage


def test_storage_that_never_takes_a_checkpoint_fails_who_needs_it(house: House, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    branches = [({"lr": switch(0.1, lr / 10, 4)}, 8) for lr in range(2, 8)]
    study = house.run(house.submit(spec(*branches)))
    # Each try takes one branch on, with the model in memory; those that are left need the checkpoint at step 4.
    failed = [trial for trial in study.trials if trial.state == "failed"]
    assert 3 <= len(failed) < 6
    for trial in failed:
        assert trial.error is not None
        assert (trial.error["kind"], trial.error["step"]) == ("storage", 4)
        assert "the checkpoint could not be written" in trial.error["error"]
    assert len([event for event in house.events(e.CheckpointDropped) if event.step == 4]) == 3


def test_storage_that_is_back_in_time_costs_only_time(house: House, tmp_path: Path) -> None:
    expected = house.values(house.run(house.submit({**ALONE, "trainer_args": {"tag": "calm"}})).id)
    blocked = tmp_path / "checkpoints" / "blocked"
    blocked.mkdir(parents=True)
    house.slots["gpu0"]._saver._checkpoints._shelf._root = blocked / "file"  # type: ignore[attr-defined]
    (blocked / "file").write_text("")
    study = house.submit(BRANCHES)
    house.ticker.tick()
    house.deliver()
    house.settle()
    (blocked / "file").unlink()
    assert house.run(study).state == "completed"
    assert house.values(study) == expected


def test_storage_that_cannot_be_read_fails_the_trial(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.run(house.submit(spec(({}, 4))))
    house.run(house.submit(spec(({"lr": 0.7}, 1), trainer_args={"tag": "another-model-in-memory"})))

    def away(*_: Any) -> bytes:
        raise OSError("the network is down")

    monkeypatch.setattr(Checkpoints, "read", away)
    study = house.run(house.submit(spec(({}, 6))))
    assert study.trials[0].error is not None
    assert study.trials[0].error["kind"] == "storage"
    assert "the network is down" in study.trials[0].error["error"]


# ------------------------------------------------------------------------------------------------------------- messages


def test_messages_may_come_twice_late_and_for_what_is_long_over(house: House) -> None:
    study = house.submit(spec(({}, 2), ({}, 4), ({}, 6)))
    house.ticker.tick()
    chain = house.messages[0][0]
    slot = house.slots["gpu0"]
    assert not slot.run_stage(chain, 1)  # before its time
    assert not slot.run_stage("nobody", 0)
    assert slot.run_stage(chain, 0)
    assert not slot.run_stage(chain, 0)  # a copy
    assert slot.run_stage(chain, 1)
    assert not slot.run_stage(chain, 1)
    assert slot.run_stage(chain, 2)
    assert not slot.run_stage(chain, 2)
    house.settle()
    assert not slot.run_stage(chain, 0)
    assert house.run(study).executed == 6


def test_a_message_that_is_not_claimed_is_sent_again(house: House) -> None:
    study = house.submit(spec(({}, 2)))
    house.ticker.tick()
    house.messages.clear()
    house.ticker.tick()
    assert not house.messages
    house.seconds += DISPATCH_AGAIN_SECONDS + 1
    house.ticker.tick()
    assert len(house.messages) == 1
    assert house.run(study).state == "completed"


def test_a_broker_that_is_away_is_asked_again(house: House) -> None:
    study = house.submit(spec(({}, 2)))
    send, house.ticker._publish = house.ticker._publish, broken  # type: ignore[assignment]
    house.ticker.tick()
    house.ticker._publish = send
    house.seconds += DISPATCH_AGAIN_SECONDS + 1
    house.ticker.tick()
    assert len(house.messages) == 1
    assert house.run(study).state == "completed"


def broken(*_: Any) -> None:
    raise OSError("no broker")


def test_a_chain_that_nobody_claims_goes_to_another_slot(house: House) -> None:
    study = house.submit(spec(({}, 2)))
    house.ticker.tick()
    house.messages.clear()
    house.seconds += LEASE + 1
    house.slots["gpu1"] = house.make_slot("gpu1")
    house.ticker.tick()
    assert [event.outcome for event in house.events(e.ChainEnded)] == ["undelivered"]
    assert [event.slot for event in house.events(e.ChainAssigned)] == ["gpu0", "gpu1"]
    assert house.run(study).executed == 2


# ---------------------------------------------------------------------------------------------------- leases and fences


def test_a_worker_that_lost_its_chain_writes_nothing_more(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of its stage the worker freezes, until its lease is over and another one has done its work."""
    expected = house.values(house.run(house.submit({**ALONE, "trainer_args": {"tag": "calm"}})).id)
    other = house.make_slot("gpu1")
    study = house.submit({**BRANCHES, "eval_every": 1})
    frozen = house.slots["gpu0"]
    look, said = Slot._look, list[int]()

    def freeze(self: Slot, run: Any, model: Any) -> Any:
        if self is frozen and model.step == 2:
            monkeypatch.setattr(Slot, "_look", look)
            house.seconds += LEASE + 1
            del house.slots["gpu0"]
            house.slots["gpu1"] = other
            with house.database.write() as session:
                leases.touch_slot(session, "gpu1")
            assert house.run(study).state == "completed"
            house.slots["gpu0"] = frozen
            said.append(len(house.log.read(house.stream)))
        return look(self, run, model)

    monkeypatch.setattr(Slot, "_look", freeze)
    house.ticker.tick()
    house.deliver()
    house.settle()
    assert said == [len(house.log.read(house.stream))]
    assert house.values(study) == expected


def test_a_worker_that_dies_before_its_checkpoint_is_saved(house: House) -> None:
    """The stage is done and its checkpoint is lost with the process: it is trained again, to the same end."""
    expected = house.values(house.run(house.submit({**ALONE, "trainer_args": {"tag": "calm"}})).id)
    study = house.submit(BRANCHES)
    dying = house.slots["gpu0"]
    house.ticker.tick()
    dying._saver.submit = lambda job: None  # type: ignore[method-assign]
    while house.messages:
        house.deliver()
    house.slots["gpu0"] = house.make_slot("gpu0")  # as its process is started again
    assert house.run(study).state == "completed"
    assert house.values(study) == expected


def test_ticks_at_the_same_time_give_each_slot_one_chain(database: Database, tmp_path: Path) -> None:
    house = House(database, str(tmp_path), slots=3)
    studies = [spec(*(({"lr": lr / 10}, 3) for lr in range(1, 9)), trainer_args={"tag": str(tag)}) for tag in range(3)]
    for each in studies:
        house.submit(each)

    def tick(ticker: Ticker) -> None:
        for _ in range(3):
            ticker.tick()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(tick, [house.make_ticker() for _ in range(6)]))
    with database.read() as session:
        live = leases.live(session)
    assert sorted(row.slot for row in live) == ["gpu0", "gpu1", "gpu2"]
    assert {chain for chain, _, _ in house.messages} == {row.chain for row in live}
    house.close()
