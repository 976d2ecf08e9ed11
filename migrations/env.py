"""Runs migrations on the connection from `Database.create`, or for the command line on STAGETREE_DATABASE_URL."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from alembic import context
from sqlalchemy.engine import Connection

from app.events.database import Database, schema_of
from app.events.schema_numbers import UnreadableSchema, check_schema_is_known
from app.events.tables import metadata


@contextmanager
def connection() -> Iterator[Connection]:
    given = context.config.attributes.get("connection")
    if given is not None:
        yield given
        return
    with Database(os.environ["STAGETREE_DATABASE_URL"]).engine.begin() as opened:
        try:
            check_schema_is_known(schema_of(opened), opened.engine.url.render_as_string(hide_password=False))
        except UnreadableSchema as problem:
            sys.exit(str(problem))
        yield opened


with connection() as current:
    context.configure(connection=current, target_metadata=metadata, render_as_batch=current.dialect.name == "sqlite")
    with context.begin_transaction():
        context.run_migrations()
