"""One policy for errors, on real processes: an accident fails no trial, and a fault only its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stacks import Cluster, Service
from test_surroundings import TRAINER
from toys import curves, switch, trials

from app.embedded.stack import Embedded, embedded
from stagetree.client import Client

pytestmark = pytest.mark.slow(together=True)


TWENTY = [({"lr": switch(0.1, 0.2 + number / 100, 4)}, 6) for number in range(20)]
"""Trials that share the first four of their six steps."""


def test_one_error_in_a_trunk_of_twenty_trials_fails_no_trial(stack: Service, tmp_path: Path) -> None:
    hiccup = [({**hp, "mood": "hiccup"}, steps) for hp, steps in TWENTY]
    spec = trials("hiccup", *hiccup)
    spec["trainer_args"]["journal"] = str(tmp_path / "journal")
    study = stack.run(spec)
    assert [trial["state"] for trial in study["trials"]] == ["completed"] * 20
    assert [failure["error"].splitlines()[-1] for failure in stack.facts(study["study"], "StageFailed")] == [
        "OSError: stale file handle"
    ]


def test_a_device_that_a_trial_broke_is_whole_for_all_others(stack: Service) -> None:
    broken = ({"mood": switch("fine", "device", 4)}, 6)
    study = stack.run(trials("device", *TWENTY[:3], broken, *TWENTY[3:6], max_restarts=1))
    states = [trial["state"] for trial in study["trials"]]
    assert states == ["completed"] * 3 + ["failed"] + ["completed"] * 3
    sound = stack.run(trials("no device", *TWENTY[:6]))
    values = [trial["value"] for trial in study["trials"] if trial["state"] == "completed"]
    assert values == [trial["value"] for trial in sound["trials"]]
    assert {failure["kind"] for failure in stack.facts(study["study"], "StageFailed")} == {"device"}


@pytest.fixture(scope="module")
def unwell(cluster: Cluster) -> Iterator[Cluster]:
    """gpu1 is sick, and silent trainers are ended soon."""
    restart(cluster, gpu0={}, gpu1={"SICK": "1", "STAGETREE_WARM": ""}, STAGETREE_SILENCE_SECONDS="10")
    yield cluster
    restart(cluster, gpu0={}, gpu1={})


def restart(cluster: Cluster, gpu0: dict[str, str], gpu1: dict[str, str], **both: str) -> None:
    for name, settings in (("gpu0", gpu0), ("gpu1", gpu1)):
        cluster.restart(name, **both, **settings)


def test_a_sick_slot_beside_a_sound_one_fails_no_trial(unwell: Cluster) -> None:
    alone = [({"lr": 0.1 + number / 100, "mood": "sick"}, 4) for number in range(6)]
    study = unwell.run(trials("sick", *alone))
    assert [trial["state"] for trial in study["trials"]] == ["completed"] * 6
    slots = {fact["chain"]: fact["slot"] for fact in unwell.facts(study["study"], "ChainAssigned")}
    assert {slots[failure["chain"]] for failure in unwell.facts(study["study"], "StageFailed")} == {"gpu1"}


def test_a_hanging_step_is_ended_and_others_continue(unwell: Cluster) -> None:
    hangs = ({"mood": switch("fine", "sleep", 4)}, 6)
    study = unwell.run(trials("sleep", *TWENTY[:3], hangs, max_restarts=0))
    assert [trial["state"] for trial in study["trials"]] == ["completed"] * 3 + ["failed"]
    failure = unwell.client.trial(study["study"], 3)["failure"]
    assert (failure["kind"], failure["step"]) == ("hang", 4)
    assert "_fail_if_in_the_mood" in failure["error"]


def test_an_edited_helper_is_trained_anew(tmp_path: Path) -> None:
    """The service keeps running; results of the old code do not count for the new one."""
    (tmp_path / "trainer.py").write_text(TRAINER)
    helper = tmp_path / "steps.py"
    spec = trials("walk", ({"drift": 0.0}, 4))
    spec |= {"trainer": "walk", "trainer_args": {}, "metric": "place"}
    del spec["tuner"]["trials"][0]["hp"]["lr"]
    stack = Embedded(tmp_path / "store", 1, [str(tmp_path / "trainer.py")])
    with embedded(stack, await_slots=True), Client(stack.url) as client:
        service, found = Service(client), list[tuple[float, int]]()
        for step in (1.0, 1.0, 5.0):
            helper.write_text(f"def noise():\n    return {step}\n")
            study = service.run(spec)
            found.append((curves(service, study["study"])[0]["value"], study["steps"]["executed"]))
    assert found == [(4.0, 4), (4.0, 0), (20.0, 4)]
