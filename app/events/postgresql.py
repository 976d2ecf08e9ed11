"""Engines for PostgreSQL, with a limit for every wait."""

from __future__ import annotations

from collections.abc import Generator
from time import monotonic
from typing import Any

import psycopg
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL

from app.events.codec import read_json


class LimitedConnection(psycopg.Connection[Any]):
    """Closes the connection if the server sends nothing for `silence` seconds, even while the network still
    acknowledges.
    """

    silence = 60.0

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **named: Any) -> Any:
        return super().wait(self._watch_silence(gen), *args, **named)

    def _watch_silence(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Forward to `gen`, which receives 0 after each interval without data."""
        heard_at = monotonic()
        try:
            awaited = next(gen)
            while True:
                ready = yield awaited
                if ready:
                    heard_at = monotonic()
                elif monotonic() - heard_at > self.silence:
                    raise self._give_up()
                awaited = gen.send(ready)
        except StopIteration as done:
            return done.value

    def _give_up(self) -> psycopg.OperationalError:
        self.close()
        return psycopg.OperationalError(f"the server did not answer within {self.silence:g} s")


def postgresql_engine(url: URL, patience: float) -> Engine:
    """An engine whose transactions raise if the server or a lock makes them wait for more than `patience` seconds."""
    engine = create_engine(
        url,
        isolation_level="READ COMMITTED",
        pool_pre_ping=True,
        json_deserializer=read_json,
        pool_timeout=patience,
        connect_args=_network(patience),
    )

    class Limited(LimitedConnection):
        silence = 1.5 * patience

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, args: Any, options: Any) -> Any:
        return Limited.connect(*args, **options)

    @event.listens_for(engine, "connect")
    def configure(connection: psycopg.Connection[Any], _: object) -> None:
        connection.autocommit = True
        connection.execute("; ".join(f"SET {name} = {round(1000 * value)}" for name, value in _limits(patience)))
        connection.autocommit = False

    return engine


def _network(patience: float) -> dict[str, int]:
    """Options of libpq: a dead peer is noticed within `patience` seconds."""
    third = max(1, round(patience / 3))
    alive = {
        "keepalives": 1,
        "keepalives_idle": third,
        "keepalives_interval": max(1, third // 2),
        "keepalives_count": 3,
    }
    return {
        **alive,
        "tcp_user_timeout": round(1000 * patience),
        "connect_timeout": max(2, min(10, round(patience / 2))),
    }


def _limits(patience: float) -> list[tuple[str, float]]:
    """Settings of the server, in seconds. The last one ends the transaction of a frozen writer, and frees its locks."""
    return [
        ("statement_timeout", 3 * patience),
        ("lock_timeout", patience),
        ("idle_in_transaction_session_timeout", patience),
    ]
