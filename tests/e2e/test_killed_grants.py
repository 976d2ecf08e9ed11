"""A slot that ends while a script of its own processes is inside of a grant of many steps."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from faults import check_log
from stacks import Cluster, wait_for
from toys import curves, trials

Json = dict[str, Any]
KEPT, AT, END = 200, 450, 700
"""Steps: whose state is kept; after which the slot ends, some hundred of which are one grant by then; and the last."""


def study(folder: Path, name: str) -> Json:
    hp = {"lr": {"family": "linear", "init": 0.1, "slope": -0.0001}}
    spec = trials("granted", (hp, END), trainer="granted", eval_every=100, keep_at=[KEPT])
    return spec | {"trainer_args": {"journal": str(folder / name), "seconds": 0.004}}


def begun(journal: Path) -> dict[int, list[int]]:
    """The steps that each process has begun, in their order."""
    steps = dict[int, list[int]]()
    for line in journal.read_text().splitlines() if journal.exists() else ():
        pid, step = map(int, line.split())
        steps.setdefault(pid, []).append(step)
    return steps


def kept(cluster: Cluster, study: str) -> set[int]:
    """The steps whose states are on record."""
    return {event["data"]["step"] for event in cluster.client.events(study) if event["type"] == "CheckpointKept"}


def logged(cluster: Cluster, study: str) -> list[int]:
    return [point["step"] for point in cluster.client.logged(study, 0)]


@pytest.mark.slow
@pytest.mark.usefixtures("whole")
def test_a_slot_that_ends_within_a_grant_loses_no_more_than_it_must(cluster: Cluster, tmp_path: Path) -> None:
    calm = cluster.run(study(tmp_path, "calm"))
    assert calm["state"] == "completed"
    for number in (signal.SIGTERM, signal.SIGKILL):
        journal = tmp_path / number.name
        name = cluster.submit(study(tmp_path, number.name))
        wait_for("steps", lambda journal=journal: any(AT in steps for steps in begun(journal).values()))
        assert KEPT in (before := kept(cluster, name))
        [chain] = cluster.running(name)
        cluster.kill(chain["slot"], number)
        cluster.start(chain["slot"])
        assert cluster.wait(name)["state"] == "completed"
        assert curves(cluster, name) == curves(cluster, calm["study"])
        first, second = begun(journal).values()
        assert first == [*range(first[-1] + 1)] and AT <= first[-1] < END
        assert second == [*range(second[0], END)]
        check_log(cluster, name)
        if number is signal.SIGTERM:
            assert second[0] == first[-1] + 1, "it stopped between two steps, and its state was kept"
            assert cluster.client.study(name)["steps"]["executed"] == END
        else:
            assert second[0] == max(before), "all since the last state is trained again"
        wait_for("what was logged last", lambda name=name: END in logged(cluster, name))
        assert logged(cluster, name) == sorted({*logged(cluster, name)})
