"""A migrated PostgreSQL database for one test after another: to empty it takes a tenth of what copying one takes."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, Engine, MetaData, NullPool, create_engine, make_url, text

CATALOGS = (
    "pg_class",
    "pg_attribute",
    "pg_attrdef",
    "pg_constraint",
    "pg_index",
    "pg_namespace",
    "pg_proc",
    "pg_trigger",
)
SCHEMA = " UNION ALL ".join(f"SELECT count(*), max(xmin::text::bigint) FROM {name}" for name in CATALOGS)
"""It tells another schema: every change of one writes rows with a later number. DELETE and INSERT do not."""

SETTINGS = "SELECT count(*), 0 FROM pg_db_role_setting JOIN pg_database d ON setdatabase = d.oid WHERE datname = :name"
END_OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"


def connect(url: str) -> Engine:
    return create_engine(make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool)


class SpareDatabase:
    """Its name changes for each test, so that what an earlier test left running finds no database."""

    def __init__(self, admin: Engine, url: str) -> None:
        self.admin, self.url = admin, url
        self.tables = MetaData()
        with connect(url).begin() as connection:
            self.tables.reflect(connection)
            self.seeds = {
                table: [dict(row) for row in connection.execute(table.select()).mappings()]
                for table in self.tables.sorted_tables
            }
            self.schema = self._read_schema(connection)

    @property
    def name(self) -> str:
        return str(make_url(self.url).database)

    def rename(self) -> str:
        """Its URL under a new name."""
        name = f"stagetree_{uuid4().hex[:12]}"
        with self.admin.connect() as connection:  # it waits for the end of other connections, up to five seconds
            connection.execute(text(f'ALTER DATABASE "{self.name}" RENAME TO "{name}"'))
        self.url = make_url(self.url).set(database=name).render_as_string(hide_password=False)
        return self.url

    def reset(self) -> bool:
        """Bring the rows of a new database back; whether the schema and the settings are those of one, too."""
        with self.admin.connect() as connection:
            connection.execute(text(END_OTHERS), {"name": self.name})
        with connect(self.url).begin() as connection:
            if self._read_schema(connection) != self.schema:
                return False
            for table in reversed(self.tables.sorted_tables):
                connection.execute(table.delete())
            for table, rows in self.seeds.items():
                if rows:
                    connection.execute(table.insert(), rows)
        return True

    def _read_schema(self, connection: Connection) -> list[Any]:
        return list(connection.execute(text(f"{SCHEMA} UNION ALL {SETTINGS}"), {"name": self.name}))
