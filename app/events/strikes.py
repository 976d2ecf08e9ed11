"""Striking a study: it ends, and none of its events is folded any more. Works on rows, for folding may be the harm.

The fact is an event like any other, so whoever replays the log comes to the same plan; but it is looked for before a
stream is folded (`EventLog.struck`), and what the study's trials asked for is not in the plan then. What was trained
for it stays on record with the nodes, for other studies that share them.
"""

from __future__ import annotations

from app.domain import events as e
from app.domain.errors import Unknown
from app.domain.ids import ChainId, StudyId
from app.domain.states import ChainOutcome
from app.events.log import VersionConflict
from app.events.records import Records
from app.events.rows import Fenced, StudyRecord
from app.events.rows.ports import RowsPort


def strike(records: Records, study: str, reason: str, at: float, attempts: int = 10) -> bool:
    """Strike a study out, and end the chains that train for it; False if that was done before.

    Raises `Unknown`, `DatabaseUnavailable`, and `VersionConflict` where others were faster each time.
    """
    for attempt in range(1, attempts + 1):
        try:
            return _strike(records, study, reason, at)
        except (VersionConflict, Fenced) as lost:  # a chain ended meanwhile
            if attempt == attempts:
                raise VersionConflict(str(lost)) from lost
    raise ValueError("A strike needs at least one attempt.")


def _strike(records: Records, study: str, reason: str, at: float) -> bool:
    row, chains = _found(records, study)
    if study in records.log.struck(row.stream):
        return False

    def end(rows: RowsPort) -> None:
        for chain in chains:
            rows.chains.end(chain)

    ended = [e.ChainEnded(chain=chain, outcome=ChainOutcome.STOPPED) for chain in chains]
    struck = e.StudyStruck(study=StudyId(study), reason=reason, at=at)
    records.log.append(row.stream, [*ended, struck], expected=None, at=at, alongside=end)
    return True


def _found(records: Records, study: str) -> tuple[StudyRecord, list[ChainId]]:
    """The study's row, and the live chains that have a stage for it."""
    with records.read() as rows:
        row = rows.studies.find(study)
        if row is None:
            raise Unknown(f"there is no study {study}")
        live = rows.chains.live(row.stream)
    for_it = [chain for chain in live if any(stage.study == study for stage in chain.stages)]
    return row, [ChainId(chain.chain) for chain in for_it]
