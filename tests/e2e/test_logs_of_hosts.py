"""What trainers print and log is at the API, whichever machine they are on."""

from __future__ import annotations

import pytest
from stacks import Cluster, Json, wait_for
from toys import trials

from stagetree.errors import NotFound

pytestmark = pytest.mark.usefixtures("whole")


@pytest.mark.slow
def test_a_study_on_two_hosts_shows_its_logs_and_curves(cluster: Cluster) -> None:
    """Each slot of the cluster has a disk of its own, which no other process sees."""
    chatty = [({"lr": rate, "mood": "chatty"}, 12) for rate in (0.1, 0.2)]
    study = cluster.submit(trials("hosts", *chatty, seconds=0.2))
    assert cluster.wait(study)["state"] == "completed"
    slots = {fact["slot"] for fact in cluster.facts(study, "ChainAssigned")}
    assert slots == {"gpu0", "gpu1"}
    for trial in range(2):
        wait_for("the whole log", lambda trial=trial: "step 11 says hello" in trial_output(cluster, study, trial))
        said = trial_output(cluster, study, trial)
        assert [f"step {step} says hello" in said for step in range(12)] == [True] * 12
        points = wait_for("the curve", lambda trial=trial: whole_curve(cluster, study, trial))
        assert "push" in points[-1]["metrics"]
    assert not (cluster.folder / "logs").exists()
    cluster.client.delete(study)
    with cluster.database.engine.connect() as connection:
        left = connection.exec_driver_sql(f"SELECT count(*) FROM trial_logs WHERE study = '{study}'").scalar()
    assert left == 0


def trial_output(cluster: Cluster, study: str, trial: int) -> str:
    try:
        return cluster.client.trial_log(study, trial)
    except NotFound:  # the first part is on its way
        return ""


def whole_curve(cluster: Cluster, study: str, trial: int) -> list[Json]:
    points = list(cluster.client.logged(study, trial))
    return points if points and points[-1]["step"] == 12 else []
