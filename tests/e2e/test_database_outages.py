"""PostgreSQL away while a message arrives, and for long: nothing is trained twice, and no slot stays idle."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count

import pytest
from faults import begin, check, check_cost
from sqlalchemy import Engine, make_url, text
from stacks import LEASE_SECONDS, Cluster, Json, wait_for
from toys import grid

from app.domain.terms import ChainState
from app.events.rows import ChainRecord
from app.events.sql_log import SqlRecords

Outage = Callable[[], AbstractContextManager[None]]
Submit = Callable[[], str]
Moment = Callable[[Cluster, Outage, Submit], str]
pytestmark = pytest.mark.usefixtures("whole")

SLOTS = ("gpu0", "gpu1")
MOMENT, TRIES = 0.5, 5
LONG = 30.0
"""Seven of the cluster's leases, and longer than any process waits for one answer."""


@pytest.fixture
def outage(request: pytest.FixtureRequest, cluster: Cluster, postgres_admin: Engine) -> Outage:
    """How the database is away."""
    if request.param == "demoted":
        return lambda: demote(cluster, postgres_admin)
    return lambda: cluster.fault("database", request.param)


@contextmanager
def demote(cluster: Cluster, admin: Engine) -> Iterator[None]:
    """The database takes no writes, as a primary that has become a standby."""
    name = make_url(cluster.settings["STAGETREE_DATABASE_URL"]).database

    def set_read_only(is_on: bool) -> None:
        with admin.connect() as connection:
            connection.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {is_on}'))
            ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
            connection.execute(text(ending), {"name": name})

    set_read_only(True)
    try:
        yield
    finally:
        set_read_only(False)


# ------------------------------------------------------------------------------------- moments at which a message comes


def outage_at_claim(cluster: Cluster, outage: Outage, submit: Submit) -> str:
    """The message that begins a chain arrives while the database is away.

    The slots are halted for as short as can be. One that is halted for as long as its lease is rightly taken for lost:
    if a busy machine takes that long, another study is tried.
    """
    for _ in range(TRIES):
        with ExitStack() as away:
            with ExitStack() as still:
                with halt(cluster, "scheduler"):
                    study = submit()
                    still.enter_context(halt(cluster, *SLOTS))
                    begun = time.monotonic()
                wait_for("a chain that is ready", lambda: chains(cluster, ChainState.READY))
                away.enter_context(outage())
            time.sleep(MOMENT)
        if time.monotonic() - begun < LEASE_SECONDS:
            return study
        cluster.wait(study)
    raise AssertionError(f"each of {TRIES} times, the slots were halted for as long as a lease")


def outage_between_stages(cluster: Cluster, outage: Outage, submit: Submit) -> str:
    """The message that begins the next stage arrives while the database is away."""
    study = submit()
    first = wait_for("a chain of more stages", lambda: [c for c in chains(cluster, ChainState.RUNNING) if has_next(c)])
    with ExitStack() as away:
        with halt(cluster, first[0].slot):
            wait_for("the end of a stage", lambda: is_past(cluster, first[0]))
            away.enter_context(outage())
        time.sleep(MOMENT)
    return study


@contextmanager
def halt(cluster: Cluster, *slots: str) -> Iterator[None]:
    """No message reaches these slots; their current work continues."""
    for slot in slots:
        os.kill(cluster.processes[slot].pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for slot in slots:
            os.kill(cluster.processes[slot].pid, signal.SIGCONT)


def chains(cluster: Cluster, state: ChainState) -> list[ChainRecord]:
    """The live chains in this state."""
    with SqlRecords(cluster.database).read() as rows:
        return [row for row in rows.chains.live() if row.state == state]


def has_next(chain: ChainRecord) -> bool:
    return chain.index + 1 < len(chain.stages)


def is_past(cluster: Cluster, before: ChainRecord) -> bool:
    """Whether the stage that was under way is over."""
    with SqlRecords(cluster.database).read() as rows:
        now = rows.chains.get(before.chain)
    assert now is not None
    return now.index > before.index


# ------------------------------------------------------------------------------------------------ the tests


@pytest.mark.parametrize(
    ("outage", "moment"),
    [
        ("refuse", outage_at_claim),
        pytest.param("demoted", outage_at_claim, marks=pytest.mark.slow),
        pytest.param("refuse", outage_between_stages, marks=pytest.mark.slow),
        pytest.param("demoted", outage_between_stages, marks=pytest.mark.slow),
    ],
    indirect=["outage"],
)
def test_an_outage_in_which_a_message_arrives_costs_no_step(
    cluster: Cluster, expected_curves: list[Json], outage: Outage, moment: Moment, request: pytest.FixtureRequest
) -> None:
    """`tests/world` has outages at all other moments, and the next test has long ones."""
    names = (f"{request.node.name}-{number}" for number in count())
    study = moment(cluster, outage, lambda: cluster.submit(grid(next(names), seconds=0.1)))
    check(cluster, study, expected_curves)
    check_cost(cluster, study)


@pytest.mark.slow
def test_an_outage_of_half_a_minute_costs_no_step_and_leaves_no_slot_idle(
    cluster: Cluster, expected_curves: list[Json], postgres_admin: Engine
) -> None:
    """The database freezes, refuses connections, and is read-only; finished work is recorded afterwards."""
    study, _ = begin(cluster, "half-a-minute", seconds=0.5)
    before = len(assigned_slots(cluster, study))
    for away in (cluster.fault("database", "freeze"), cluster.fault("database", "refuse")):
        with away:
            time.sleep(LONG / 3)
    with demote(cluster, postgres_admin):
        time.sleep(LONG / 3)
    wait_for("new work for both", lambda: {*assigned_slots(cluster, study)[before:]} == {"gpu0", "gpu1"})
    check(cluster, study, expected_curves)
    check_cost(cluster, study)


def assigned_slots(cluster: Cluster, study: str) -> list[str]:
    """The slots of all chains of the study, in order."""
    return [fact["slot"] for fact in cluster.facts(study, "ChainAssigned")]


@pytest.mark.slow
def test_resets_of_the_schedulers_connections_fail_no_study(cluster: Cluster, expected_curves: list[Json]) -> None:
    study, _ = begin(cluster, "resets")
    for _ in range(24):
        cluster.networks["scheduler"]["database"].reset()
        cluster.wake_scheduler()
        time.sleep(0.15)
    check(cluster, study, expected_curves)
