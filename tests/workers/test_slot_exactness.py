"""A reason for a difference in the last bits is a fact, and is shown with the result."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import Cluster
from in_process import InProcess
from studies import BRANCHES, spec
from toys import switch

from app.domain import events as e
from app.domain.terms import StudyId
from app.service.views import documents

OTHER_TORCH = "resumed under another torch (2.13.0 after 2.12.0)"
PUT = "used put_, which has no deterministic form"


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """Reasons for differences are the same with each kind of database."""
    return sqlite_url


def answer(cluster: Cluster, study: StudyId) -> list[str]:
    told: list[str] = documents.study(cluster.plan, study, now=0.0)["not_exact"]
    return told


def trial(cluster: Cluster, study: StudyId, number: int) -> list[str]:
    told: list[str] = documents.trial(cluster.plan, cluster.study(study).trials[number])["not_exact"]
    return told


def upgrade_torch(slot: str, process: InProcess, what: str, step: int) -> None:
    """A process under a newer torch than the one before."""
    process.machine = {"torch": "2.13.0"}


def test_exact_results_have_no_remark(cluster: Cluster) -> None:
    done = cluster.run(cluster.submit(BRANCHES))
    assert answer(cluster, done.id) == []
    assert not cluster.events(e.ExactnessLost)


def test_going_on_under_another_torch_is_said_of_whoever_it_concerns(cluster: Cluster) -> None:
    """The trunk was trained under the torch before; a third trial and then a longer one find its checkpoint."""
    first = cluster.run(cluster.submit(BRANCHES))
    cluster.slots["gpu0"].close()
    cluster.slots["gpu0"] = cluster.make_slot("gpu0")
    cluster.script = upgrade_torch
    later = spec(({"lr": switch(0.1, 0.4, 4)}, 8), ({"lr": switch(0.1, 0.2, 4)}, 8), ({"lr": switch(0.1, 0.2, 4)}, 12))
    second = cluster.run(cluster.submit(later))
    assert answer(cluster, first.id) == []  # its own numbers were there before
    assert answer(cluster, second.id) == [f"2 stages {OTHER_TORCH}"]
    assert trial(cluster, second.id, 0) == [f"1 stage {OTHER_TORCH}"]
    assert trial(cluster, second.id, 1) == []
    assert trial(cluster, second.id, 2) == [f"1 stage {OTHER_TORCH}"]
    assert [event.step for event in cluster.events(e.ExactnessLost)] == [5, 9]


def test_an_operation_without_a_deterministic_form_is_said_once_of_each_stage(cluster: Cluster) -> None:
    def scatter(slot: str, process: InProcess, what: str, step: int) -> None:
        if what == "train" and step == 5:
            process.not_exact = ("put_",)

    cluster.script = scatter
    done = cluster.run(cluster.submit({**BRANCHES, "eval_every": 2}))
    assert answer(cluster, done.id) == [f"2 stages {PUT}"]
    assert {event.step for event in cluster.events(e.ExactnessLost)} == {5}  # trained from there to 6
    assert trial(cluster, done.id, 0) == trial(cluster, done.id, 1) == [f"1 stage {PUT}"]


def test_what_only_an_evaluation_used_is_said_as_well(cluster: Cluster) -> None:
    def scatter(slot: str, process: InProcess, what: str, step: int) -> None:
        if what == "evaluate":
            process.not_exact = ("put_",)

    cluster.script = scatter
    done = cluster.run(cluster.submit(spec(({}, 4))))
    assert answer(cluster, done.id) == [f"1 stage {PUT}"]


def test_a_stage_that_only_evaluates_what_is_kept_is_told_of_its_machine(cluster: Cluster) -> None:
    trials: list[tuple[dict[str, Any], int]] = [({"lr": switch(0.1, 0.2, 4)}, 8), ({"lr": switch(0.1, 0.3, 4)}, 8)]
    first = cluster.run(cluster.submit(spec(*trials)))
    cluster.slots["gpu0"].close()
    cluster.slots["gpu0"] = cluster.make_slot("gpu0")
    cluster.script = upgrade_torch
    second = cluster.run(cluster.submit(spec(({"lr": switch(0.1, 0.2, 4)}, 4))))
    assert second.executed == 0
    assert answer(cluster, second.id) == [f"1 stage {OTHER_TORCH}"]
    assert answer(cluster, first.id) == [f"1 stage {OTHER_TORCH}"]  # it went through there, and now has a metric of it
