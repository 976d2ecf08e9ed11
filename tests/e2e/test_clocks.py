"""Clocks of the database or of machines that jump by an hour: no worker loses a lease, and none is waited for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import begin, check, check_cost, stop_at_work
from sqlalchemy import Engine, make_url, text
from stacks import ROOT, Cluster, Json

pytestmark = pytest.mark.usefixtures("whole")

HOUR = 3600
LOOKS = 2.5
"""The scheduler looks at the leases more than once."""

MACHINE = """
import time
from pathlib import Path

offset, real = Path({file!r}), time.time
time.time = lambda: real() + float(offset.read_text() or 0)
"""

SHADOW = """
CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
'SELECT pg_catalog.clock_timestamp() + make_interval(secs => (SELECT seconds FROM jump))'
"""


@pytest.fixture
def set_database_clock(cluster: Cluster, postgres_admin: Engine) -> Iterator[Callable[[int], None]]:
    """Puts the clock of the database forwards by some seconds: our function shadows PostgreSQL's own."""
    execute(cluster, "CREATE TABLE jump AS SELECT 0 AS seconds", SHADOW)
    begin_sessions_anew(cluster, postgres_admin, "SET search_path = public, pg_catalog")
    yield lambda seconds: execute(cluster, f"UPDATE jump SET seconds = {seconds}")
    begin_sessions_anew(cluster, postgres_admin, "RESET search_path")
    execute(cluster, "DROP FUNCTION public.clock_timestamp()", "DROP TABLE jump")


def execute(cluster: Cluster, *statements: str) -> None:
    with cluster.database.engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def begin_sessions_anew(cluster: Cluster, admin: Engine, change: str) -> None:
    """A setting of the database holds for new sessions."""
    name = make_url(cluster.settings["STAGETREE_DATABASE_URL"]).database
    with admin.connect() as connection:
        connection.execute(text(f'ALTER DATABASE "{name}" {change}'))
        ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
        connection.execute(text(ending), {"name": name})


@pytest.mark.slow
def test_a_clock_of_the_database_that_jumps(
    cluster: Cluster, expected_curves: list[Json], set_database_clock: Callable[[int], None]
) -> None:
    """Forwards, no worker is taken for lost; backwards, a dead machine is not taken for alive."""
    study, _ = begin(cluster, "database-clock", seconds=0.8)
    set_database_clock(HOUR)
    time.sleep(LOOKS)
    assert "lost" not in outcomes(cluster, study)
    slot, child = stop_at_work(cluster, study)
    dead = [child, cluster.processes[slot].pid]
    os.kill(dead[1], signal.SIGSTOP)
    set_database_clock(0)
    try:
        cluster.wait_for_event(study, "ChainEnded", outcome="lost")
    finally:
        for pid in dead:
            os.kill(pid, signal.SIGCONT)
    check(cluster, study, expected_curves)


def outcomes(cluster: Cluster, study: str) -> set[str]:
    return {fact["outcome"] for fact in cluster.facts(study, "ChainEnded")}


@pytest.mark.slow
def test_a_clock_of_machines_that_jumps(cluster: Cluster, expected_curves: list[Json], tmp_path: Path) -> None:
    """That of a slot and the scheduler, while beat, the messages and all that waits go by it."""
    offset, names = tmp_path / "offset", ("gpu0", "scheduler")
    offset.write_text("0")
    (tmp_path / "sitecustomize.py").write_text(MACHINE.format(file=str(offset)))
    cluster.restart(*names, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}", STAGETREE_WARM="")
    try:
        study, _ = begin(cluster, "machine-clock", slot="gpu0", seconds=0.3)
        for jump in (HOUR, -HOUR):
            offset.write_text(str(jump))
            time.sleep(LOOKS)
        check(cluster, study, expected_curves)
        check_cost(cluster, study)
    finally:
        offset.write_text("0")
        cluster.restart(*names)
