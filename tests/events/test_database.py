"""The database's port: its errors in an outage, its rollbacks, and its schema."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, inspect, text

from app.events import database as module
from app.events.database import Database, sqlite_engine
from app.events.sql_log import SqlLog
from app.events.sqlite import SQLITE
from app.events.tables import metadata
from app.outages import DatabaseUnavailable

COUNT = text("SELECT count(*) FROM streams")
ADD = text("INSERT INTO streams (stream, version) VALUES ('a', 1)")


def test_the_migrated_schema_equals_the_tables(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_the_schema_made_afresh_is_the_migrated_one(database: Database) -> None:
    """As the database describes them, with parts that Alembic does not compare: partial indexes, constraints."""
    migrated = describe_schema(database.engine)
    with database.engine.begin() as connection:
        metadata.drop_all(connection)
        for index in (index for table in metadata.tables.values() for index in table.indexes):
            index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]
        metadata.create_all(connection)
    assert describe_schema(database.engine) == migrated


def describe_schema(engine: Engine) -> dict[str, str]:
    look = inspect(engine)
    parts = (look.get_columns, look.get_pk_constraint, look.get_unique_constraints, look.get_indexes)
    return {f"{table} {part.__name__}": text_of(part(table)) for table in metadata.tables for part in parts}


def text_of(description: object) -> str:
    if isinstance(description, list):
        return str(sorted(text_of(each) for each in description))
    if isinstance(description, dict):
        return str(sorted((key, text_of(value)) for key, value in description.items()))
    return str(description)


def test_concurrent_processes_may_create_the_schema(empty_url: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: migrate(empty_url), range(3)))
    database = Database(empty_url)
    assert SqlLog(database).head() == 0
    database.dispose()


def migrate(url: str) -> None:
    database = Database(url)
    database.create()
    database.dispose()


def test_the_first_connection_waits_for_a_writer(tmp_path: Path) -> None:
    """SQLite alone does not wait: a change of the journal fails at once while another connection has the lock."""
    writer = SQLITE.connect(tmp_path / "log.db", isolation_level=None, check_same_thread=False)
    writer.execute("CREATE TABLE streams (stream TEXT)")
    writer.execute("BEGIN IMMEDIATE")
    Timer(0.2, lambda: writer.execute("COMMIT")).start()
    database = Database(f"sqlite:///{tmp_path}/log.db")
    with database.read() as session:
        assert session.scalar(COUNT) == 0
    database.dispose()
    writer.close()


def test_creating_again_keeps_the_rows(database: Database) -> None:
    with database.write() as session:
        session.execute(ADD)
    database.create()
    with database.read() as session:
        assert session.scalar(COUNT) == 1


def test_a_transaction_that_raises_is_rolled_back(database: Database) -> None:
    with pytest.raises(KeyError), database.write() as session:
        session.execute(ADD)
        raise KeyError
    with database.read() as session:
        assert session.scalar(COUNT) == 0


def test_writers_take_turns_on_sqlite(sqlite_url: str) -> None:
    """A transaction that reads first and writes later must not fail because another wrote in between."""
    database = Database(sqlite_url)

    def count_up(_: int) -> None:
        with database.write() as session:
            head = session.scalar(text("SELECT position FROM log_head"))
            session.execute(text("UPDATE log_head SET position = :p"), {"p": head + 1})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count_up, range(40)))
    assert SqlLog(database).head() == 40
    database.dispose()


@pytest.mark.parametrize(("version", "mode"), [((3, 40, 1), "delete"), ((3, 51, 2), "delete"), ((3, 51, 3), "wal")])
def test_the_write_ahead_log_waits_for_a_safe_sqlite(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], mode: str
) -> None:
    monkeypatch.setattr(SQLITE, "sqlite_version_info", version)
    monkeypatch.setattr(module, "sqlite_engine", sqlite_engine)  # tests wait for no disk else
    database = Database(sqlite_url)
    with database.read() as session:
        assert session.scalar(text("PRAGMA journal_mode")) == mode
        assert session.scalar(text("PRAGMA synchronous")) == 2  # FULL
        assert session.scalar(text("PRAGMA busy_timeout")) == 20_000
        assert session.scalar(text("PRAGMA foreign_keys")) == 1
    database.dispose()


def one_sentence(error: pytest.ExceptionInfo[DatabaseUnavailable]) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def test_a_missing_server_is_named_without_its_password() -> None:
    database = Database("postgresql://me:secret@127.0.0.1:1/log")
    for use in (database.read, database.write):
        with pytest.raises(DatabaseUnavailable) as error, use():
            pass
        assert "secret" not in one_sentence(error)
        assert "127.0.0.1:1/log" in str(error.value)
    with pytest.raises(DatabaseUnavailable):
        database.create()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable) as error:
        Database(f"sqlite:///{tmp_path}/none/log.db").create()
    assert f"{tmp_path}/none/log.db" in one_sentence(error)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_text("not a database" * 100)
    with pytest.raises(DatabaseUnavailable) as error:
        Database(f"sqlite:///{tmp_path}/log.db").create()
    assert "not a database" in one_sentence(error)


def test_a_restored_server_is_used_again(postgres_url: str, postgres_admin: Engine) -> None:
    database = Database(postgres_url)
    with database.read() as session:
        session.scalar(COUNT)
    with postgres_admin.connect() as connection:
        name = {"name": database.url.database}
        connection.execute(text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"), name)
    with database.write() as session:
        session.execute(ADD)
    database.dispose()


def test_the_command_line_migrates_too(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic import command
    from alembic.config import Config

    monkeypatch.setenv("STAGETREE_DATABASE_URL", sqlite_url)
    ini = Config(str(Path(__file__).parent.parent.parent / "alembic.ini"), stdout=io.StringIO())
    command.downgrade(ini, "base")
    engine = create_engine(sqlite_url)
    assert inspect(engine).get_table_names() == ["alembic_version"]
    command.upgrade(ini, "head")
    command.check(ini)
    engine.dispose()
