"""The output of trainers in the database: slots of any machine write it, and any API reads it.

Only for a database server. With SQLite all is on one machine, and the API reads the files of the slots.

A log has a name within its study: `7.log` has the lines printed for trial 7, `PLAN/NODE.jsonl` the rows logged while a
node was trained. Several stages write to one log, each as a `source`. Positions are bytes counted from the source's
first one, so that a piece that is sent twice is stored once.

Logs are no events, which are few and permanent, and no objects of the store, which are written once and never listed.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from sqlalchemy import and_, delete, func, select, tuple_, update

from app.events.database import Database, SqlSession, insert
from app.events.tables import TRIAL_LOGS

MOST_BYTES = 16 * 2**20
"""The limit of a log. The middle of a longer one is left out."""

HEAD_BYTES = 2**18
"""The first bytes of a log, which always stay."""

PART_BYTES = 2**16
"""The approximate size of a row: later bytes are added to the last row up to this size."""

LEFT_OUT = f"\n--- the middle is left out: {MOST_BYTES:,} bytes are kept at most\n".encode()
LOST = "\n--- {:,} bytes are left out: they were more than could be sent\n"
RANK = re.compile(r"\.(r\d+)$")
"""The end of a source that is a further process of a stage."""

_OF = TRIAL_LOGS.c


@dataclass(frozen=True, slots=True)
class LogPiece:
    """What a source wrote from byte `begin` on."""

    name: str
    study: str
    source: str
    begin: int
    data: bytes


class TrialLogTable:
    """Each method is a transaction: it raises `DatabaseUnavailable` and `LostRace`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ------------------------------------------------------------------------------------------------ slots write

    def end(self, name: str, study: str, source: str) -> int:
        """How many bytes of a source are stored or were left out."""
        with self._database.read() as session:
            return _end(session, name, study, source)

    def add(self, piece: LogPiece) -> int:
        """Store the new bytes of a piece; returns the end of its source. A source has one writer at a time."""
        with self._database.write() as session:
            end = _end(session, piece.name, piece.study, piece.source)
            data = piece.data[max(0, end - piece.begin) :]
            begin = max(end, piece.begin)
            if data:
                _put(session, piece, begin, end, data)
                _leave_out(session, piece.name, piece.study)
            return begin + len(data)

    # ------------------------------------------------------------------------------------------------ the API reads

    def printed(self, study: str, trial: int) -> Iterator[str]:
        """The lines printed for a trial, in parts, stage after stage."""
        decoder, source, end = codecs.getincrementaldecoder("utf-8")("replace"), "", 0
        for key, begin, its_end in self._places(f"{trial}.log", study):
            if key != source:
                rank = RANK.search(key)
                yield decoder.decode(b"", final=True) + (f"--- process {rank[1]} of a stage\n" if rank else "")
                source, end = key, 0
            if begin > end:
                yield LOST.format(begin - end)
            yield decoder.decode(self._data(f"{trial}.log", study, key, begin))
            end = its_end
        yield decoder.decode(b"", final=True)

    def logged(self, plan: str, node: str) -> list[str]:
        """One text per stage of a node, in the order in which the stages began."""
        texts: dict[tuple[str, str], bytearray] = {}
        query = select(_OF.study, _OF.source, _OF.data).where(_OF.name == f"{plan}/{node}.jsonl")
        with self._database.read() as session:
            for study, source, data in session.execute(query.order_by(_OF.at, _OF.begin)):
                texts.setdefault((study, source), bytearray()).extend(data)
        return [text.decode("utf-8", "replace") for text in texts.values()]

    def remove(self, study: str, but: Collection[str]) -> None:
        """Delete all output of a study, except for the rows of the nodes in `but`."""
        with self._database.write() as session:
            names = set(session.scalars(select(_OF.name).distinct().where(_OF.study == study)))
            going = [name for name in names if name.rpartition("/")[2].removesuffix(".jsonl") not in but]
            session.execute(delete(TRIAL_LOGS).where(_OF.study == study, _OF.name.in_(going)))

    def _places(self, name: str, study: str) -> Iterable[tuple[str, int, int]]:
        """The parts of a log: of which source, and which bytes of it. Sources come in the order in which they began."""
        query = select(_OF.source, _OF.begin, _OF.end, _OF.at).where(_OF.name == name, _OF.study == study)
        with self._database.read() as session:
            pieces = session.execute(query.order_by(_OF.at, _OF.begin)).all()
        order = {source: place for place, source in reversed(list(enumerate(row.source for row in pieces)))}
        rows = sorted(pieces, key=lambda row: (order[row.source], row.begin))
        return [(row.source, row.begin, row.end) for row in rows]

    def _data(self, name: str, study: str, source: str, begin: int) -> bytes:
        """Empty if the row was deleted meanwhile."""
        query = select(_OF.data).where(_OF.name == name, _OF.study == study, _OF.source == source, _OF.begin == begin)
        with self._database.read() as session:
            return bytes(session.scalar(query) or b"")


def _end(session: SqlSession, name: str, study: str, source: str) -> int:
    query = select(func.max(_OF.end)).where(_OF.name == name, _OF.study == study, _OF.source == source)
    return int(session.scalar(query) or 0)


def _put(session: SqlSession, piece: LogPiece, begin: int, stored_to: int, data: bytes) -> None:
    """Append to the source's last row if there is room and no gap; else insert a row."""
    ours = and_(_OF.name == piece.name, _OF.study == piece.study, _OF.source == piece.source)
    end = begin + len(data)
    if begin == stored_to:
        is_last = and_(ours, _OF.end == stored_to, func.length(_OF.data) < PART_BYTES)
        before = session.execute(select(_OF.begin, _OF.data).where(is_last)).first()
        if before is not None:
            there = update(TRIAL_LOGS).where(ours, _OF.begin == before.begin)
            session.execute(there.values(data=bytes(before.data) + data, end=end))
            return
    row = {"name": piece.name, "study": piece.study, "source": piece.source, "begin": begin, "end": end, "data": data}
    session.execute(insert(session, TRIAL_LOGS).values(**row, at=session.now))


def _leave_out(session: SqlSession, name: str, study: str) -> None:
    """Bound a log: its head stays and about three quarters of the limit in all."""
    ours = and_(_OF.name == name, _OF.study == study)
    size = func.length(_OF.data)
    if (total := session.scalar(select(func.sum(size)).where(ours)) or 0) <= MOST_BYTES:
        return
    place, before, going = (_OF.source, _OF.begin), 0, list[tuple[str, int]]()
    for row in session.execute(select(*place, size.label("size")).where(ours).order_by(_OF.at, _OF.begin)):
        if before >= HEAD_BYTES and total > MOST_BYTES * 3 // 4:
            going.append((row.source, row.begin))
            total -= row.size
        before += row.size
    *others, last = going
    session.execute(delete(TRIAL_LOGS).where(ours, tuple_(*place).in_(others)))
    session.execute(update(TRIAL_LOGS).where(ours, _OF.source == last[0], _OF.begin == last[1]).values(data=LEFT_OUT))
