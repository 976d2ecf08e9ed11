"""The clock that leases go by."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Float, literal, literal_column
from sqlalchemy.orm import Session

SQL_NOW = {
    "postgresql": "extract(epoch FROM clock_timestamp())::float8",
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
}


def now(session: Session) -> ColumnElement[float]:
    """Unix seconds by the database's clock, or by the one given to `Database`."""
    clock = session.info.get("clock")
    if clock is not None:
        return literal(clock(), Float)
    return literal_column(SQL_NOW[session.get_bind().dialect.name], Float)
