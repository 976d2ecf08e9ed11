"""Each process with no more rights than it needs: roles of PostgreSQL, and users of Redis."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from redis import Redis
from redis.exceptions import NoPermissionError
from sqlalchemy import make_url
from sqlalchemy.exc import ProgrammingError
from stacks import ROOT, TRAINERS, Cluster, accepts_connections, wait_for
from toys import grid

from app.embedded.machine import redis_server, reserve
from app.events.database import Database
from app.events.sql_log import SqlRecords
from app.service.health import check_writable
from stagetree.client import Client

ROLES = (ROOT / "docker" / "roles.sql").read_text()
OF = {"api": "stagetree_api", "scheduler": "stagetree_scheduler", "gpu0": "stagetree_slot"}
USER = {"api": "api:stagetree-api", "scheduler": "worker:stagetree-worker", "gpu0": "worker:stagetree-worker"}
UNWANTED = {
    "stagetree_api": ["INSERT INTO slots (name) VALUES ('x')", "UPDATE chains SET state = 'done'"],
    "stagetree_scheduler": ["SELECT * FROM tokens", "INSERT INTO slots (name) VALUES ('x')"],
    "stagetree_slot": ["SELECT * FROM tokens", "DELETE FROM studies", "INSERT INTO chains (chain) VALUES ('x')"],
}


def as_role(url: str, role: str) -> str:
    return make_url(url).set(username=role).render_as_string(hide_password=False)


@pytest.fixture
def owner_database(postgres_url: str) -> Iterator[Database]:
    """A database with its roles, as its owner has it."""
    database = Database(postgres_url)
    address = make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address) as connection:
        connection.execute(ROLES)
        for role in OF.values():
            connection.execute(f"ALTER ROLE {role} LOGIN PASSWORD 'secret'")
    yield database
    database.dispose()


@pytest.mark.parametrize("role", OF.values())
def test_every_role_that_may_write_is_ready(owner_database: Database, postgres_url: str, role: str) -> None:
    """`/readyz` deleted from a table that the role of the API may only read: it was 503 for ever."""
    theirs = Database(as_role(postgres_url, role))
    try:
        check_writable(SqlRecords(theirs))
    finally:
        theirs.dispose()


@pytest.fixture
def apart(owner_database: Database, postgres_url: str, bucket: dict[str, str], tmp_path: Path) -> Iterator[Cluster]:
    """The service, each process with its role and its user."""
    (api, kept), (broker, kept_too) = (reserve("127.0.0.1", 0) for _ in range(2))
    settings = {
        **bucket,
        "STAGETREE_CHECKPOINTS": "s3://checkpoints/roles",
        "STAGETREE_TRAINERS": ",".join(TRAINERS),
        "STAGETREE_LEASE_SECONDS": "12",
        "STAGETREE_ALLOW_CPU": "1",
        "STAGETREE_STOP_SECONDS": "8",
        "STAGETREE_LOCKS": str(tmp_path / "locks"),
        "PYTHONPATH": str(ROOT),
    }
    celery = [sys.executable, "-m", "celery", "-A", "app.workers", "worker", "--without-gossip", "--without-mingle"]
    server = [redis_server(), "--port", str(broker), "--bind", "127.0.0.1", "--save", ""]
    commands = {
        "redis": [*server, "--aclfile", str(ROOT / "docker" / "redis.acl")],
        "api": [sys.executable, "-m", "uvicorn", "--factory", "app.main:create_app", "--port", str(api)],
        "scheduler": [*celery, "-Q", "scheduler", "-c", "1", "-B", "-n", "scheduler@%h"],
        "gpu0": [*celery, "-Q", "gpu0", "-c", "1", "-n", "gpu0@%h"],
    }
    with Client(f"http://127.0.0.1:{api}") as client, kept, kept_too:
        running = Cluster(client, tmp_path, owner_database, settings, commands, networks={})
        try:
            running.start("redis")
            for name, role in OF.items():
                to_broker = f"redis://{USER[name]}@127.0.0.1:{broker}/0"
                to_database = as_role(postgres_url, role)
                running.start(name, STAGETREE_DATABASE_URL=to_database, STAGETREE_BROKER_URL=to_broker)
            running.settings["STAGETREE_BROKER_URL"] = f"redis://worker:stagetree-worker@127.0.0.1:{broker}/0"
            yield running
        finally:
            running.stop()


@pytest.mark.slow
def test_a_study_is_trained_by_processes_that_may_do_no_more_than_they_must(apart: Cluster) -> None:
    done = apart.run(grid("roles"))
    assert (done["state"], done["failed"]) == ("completed", 0)
    apart.client.delete(done["study"])
    for name in OF:
        assert "permission" not in apart.log(name).lower() and "NoPermission" not in apart.log(name), apart.log(name)
    api = Redis.from_url(apart.settings["STAGETREE_BROKER_URL"].replace("worker:stagetree-worker", "api:stagetree-api"))
    wait_for("the broker", lambda: accepts_connections(api))
    with pytest.raises(NoPermissionError):
        api.lpush("stagetree:gpu0", "{}")
    with pytest.raises(NoPermissionError):
        apart.broker().flushall()


@pytest.mark.parametrize("role", OF.values())
def test_no_role_changes_or_deletes_an_event(owner_database: Database, postgres_url: str, role: str) -> None:
    theirs = Database(as_role(postgres_url, role))
    statements = ["UPDATE events SET at = 0", "DELETE FROM events", "TRUNCATE events", "DROP TABLE events"]
    try:
        for statement in [*statements, *UNWANTED[role]]:
            with pytest.raises(ProgrammingError, match=r"permission denied|must be owner"), theirs.engine.begin() as to:
                to.exec_driver_sql(statement)
    finally:
        theirs.dispose()
