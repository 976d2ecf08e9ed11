"""The rows of studies in a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from sqlalchemy import delete, func, select, text, tuple_, update
from sqlalchemy.orm import Session

from app.events.rows.ports import StudiesPort
from app.events.rows.values import StudyRecord
from app.events.tables import ACTIVE, AUDITED, CHAINS, LIVE, STREAMS, STUDIES


class Studies(StudiesPort):
    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, study: StudyRecord) -> None:
        self._session.execute(STUDIES.insert().values(asdict(study)))

    def set_state(self, id: str, state: str) -> None:
        self._session.execute(update(STUDIES).where(STUDIES.c.id == id).values(state=state))

    def set_audited(self, id: str, is_audited: bool) -> None:
        self._session.execute(update(STUDIES).where(STUDIES.c.id == id).values(audited=is_audited or None))

    def show_due(self, due: Mapping[str, float]) -> None:
        self._session.execute(update(STUDIES).where(STUDIES.c.slots_due.is_not(None)).values(slots_due=None))
        for study, slots in due.items():
            self._session.execute(update(STUDIES).where(STUDIES.c.id == study).values(slots_due=slots))

    def remove(self, id: str) -> None:
        self._session.execute(delete(STUDIES).where(STUDIES.c.id == id))

    def find(self, id: str) -> StudyRecord | None:
        row = self._session.execute(select(STUDIES).where(STUDIES.c.id == id)).one_or_none()
        return None if row is None else StudyRecord(**row._mapping)

    def page(self, after: str | None = None, limit: int = 100) -> list[StudyRecord]:
        order = tuple_(STUDIES.c.submitted_at, STUDIES.c.id)
        query = select(STUDIES).order_by(STUDIES.c.submitted_at.desc(), STUDIES.c.id.desc()).limit(limit)
        if after is not None:
            cursor = select(STUDIES.c.submitted_at, STUDIES.c.id).where(STUDIES.c.id == after).scalar_subquery()
            query = query.where(order < cursor)
        return [StudyRecord(**row._mapping) for row in self._session.execute(query)]

    def count_by_state(self) -> dict[str, int]:
        query = select(STUDIES.c.state, func.count()).group_by(STUDIES.c.state)
        return {row[0]: row[1] for row in self._session.execute(query)}

    def active_streams(self) -> list[str]:
        query = select(STUDIES.c.stream).where(text(ACTIVE)).distinct().order_by(STUDIES.c.stream)
        return list(self._session.scalars(query))

    def busy_versions(self) -> dict[str, int]:
        is_audited = select(STUDIES.c.stream).where(text(AUDITED))
        busy = select(STUDIES.c.stream).where(text(ACTIVE)).union(select(CHAINS.c.stream).where(text(LIVE)), is_audited)
        query = select(STREAMS.c.stream, STREAMS.c.version).where(STREAMS.c.stream.in_(busy)).order_by(STREAMS.c.stream)
        return {row.stream: row.version for row in self._session.execute(query)}
