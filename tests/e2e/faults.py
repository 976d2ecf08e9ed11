"""A study in the middle of a cluster's work, and what must hold of it when all is over."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from stacks import Cluster, Json, wait_for
from toys import curves, grid, switch, trials

from app.domain.evolve import fold
from app.domain.search_plan import SearchPlan
from app.events.sql_log import SqlRecords

BRANCH, SHORT, LONG = 2, 5, 40
DONE, LANES = 3, 8


def siblings(tag: str, **more: Any) -> Json:
    """Eight trials that part at one step; three of them end early."""
    lengths = [SHORT] * DONE + [LONG] * (LANES - DONE)
    hps = ({"lr": switch(0.1, 0.2 / (1 + number), BRANCH), "bs": 4} for number in range(LANES))
    listed = zip(hps, lengths, strict=True)
    return trials(tag, *listed, trainer="packable", metric="val_loss", mode="min", packing=LANES, **more)


def begin(cluster: Cluster, tag: str, slot: str | None = None, seconds: float = 0.3) -> tuple[str, str]:
    """The grid under way, and a slot (or this one) that is in the middle of a stage of it."""
    study = cluster.submit(grid(tag, seconds=seconds))
    return study, wait_for("a stage under way", lambda: busy_slots(cluster, study, slot))[0]


def busy_slots(cluster: Cluster, study: str, slot: str | None = None) -> list[str]:
    """The slots (or this one, if it is among them) that are in the middle of a stage of the study."""
    inside = [run for run in cluster.running(study) if run["start"] < run["step"] < run["end"]]
    return [run["slot"] for run in inside if slot in (None, run["slot"])]


def stop_at_work(cluster: Cluster, study: str) -> tuple[str, int]:
    """A slot in the middle of a stage of the study, and its child, stopped: so its chain cannot end by itself.

    Otherwise it might have ended before the test acts on it, while the next one has not begun.
    It is stopped first and looked at then, so that no machine is too slow to meet it inside a stage.
    """

    def stop_busy_slot() -> tuple[str, int] | None:
        for slot in {run["slot"] for run in cluster.running(study)}:
            child = cluster.signal_child(slot, signal.SIGSTOP)
            time.sleep(0.3)  # the database has handled everything that was sent to it before
            if busy_slots(cluster, study, slot):
                return slot, child
            os.kill(child, signal.SIGCONT)
        return None

    slot, child = wait_for("a slot that is stopped in a stage", stop_busy_slot)
    return slot, child


def check(cluster: Cluster, study: str, expected: list[Json]) -> None:
    """The study comes to its end, with the results of a run without faults."""
    assert cluster.wait(study)["state"] == "completed"
    assert curves(cluster, study) == expected
    check_log(cluster, study)


def check_log(cluster: Cluster, study: str) -> None:
    """Folded anew, the log has no gap and leaves nothing open, and every chain ended once."""

    def plan_without_chains() -> SearchPlan | None:
        plan = fold_anew(cluster, study)
        return None if plan.chains else plan

    plan = wait_for(f"the end of all chains of {study}", plan_without_chains)
    assert not any(node.waiting or node.running or node.saving for node in plan.nodes.values())


def check_cost(cluster: Cluster, study: str) -> None:
    """No step was trained twice, and no worker was taken for lost."""
    steps = cluster.client.study(study)["steps"]
    assert steps["executed"] == steps["unique"]
    ended = cluster.facts(study, "ChainEnded")
    assert {fact["outcome"] for fact in ended} == {"done"}, ended


def fold_anew(cluster: Cluster, study: str) -> SearchPlan:
    records = SqlRecords(cluster.database)
    with records.read() as rows:
        row = rows.studies.find(study)
    recorded = records.log.read(row.stream)
    assert [each.version for each in recorded] == list(range(1, len(recorded) + 1))
    begun = [each.event.chain for each in recorded if type(each.event).__name__ == "ChainAssigned"]
    ended = [each.event.chain for each in recorded if type(each.event).__name__ in ("ChainEnded", "StageFailed")]
    assert len(set(begun)) == len(begun) and len(set(ended)) == len(ended)
    return fold(each.event for each in recorded)
