"""The rows of tokens in a database."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from app.events.database import insert
from app.events.rows.ports import TokensPort
from app.events.rows.values import TokenRecord
from app.events.tables import TOKENS


class Tokens(TokensPort):
    def __init__(self, session: Session) -> None:
        self._session = session

    def put(self, token: TokenRecord) -> None:
        row = insert(self._session, TOKENS).values(asdict(token))
        self._session.execute(row.on_conflict_do_update(index_elements=[TOKENS.c.name], set_=asdict(token)))

    def find(self, name: str) -> TokenRecord | None:
        return self._one(TOKENS.c.name == name)

    def find_digest(self, digest: str) -> TokenRecord | None:
        return self._one(TOKENS.c.digest == digest)

    def all(self) -> list[TokenRecord]:
        return [TokenRecord(**row._mapping) for row in self._session.execute(select(TOKENS).order_by(TOKENS.c.name))]

    def _one(self, is_it: ColumnElement[bool]) -> TokenRecord | None:
        row = self._session.execute(select(TOKENS).where(is_it)).one_or_none()
        return None if row is None else TokenRecord(**row._mapping)
