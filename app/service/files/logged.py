"""What trainers logged between evaluations, as rows of a trial: read from the files that slots write, node by node."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.domain.ids import NodeId
from app.domain.search_plan import trial_of
from app.events.rows import StudyRecord
from app.service.services import Services
from stagetree.models.pages import Logged
from stagetree.models.trials import LoggedPoint

Json = dict[str, Any]


@dataclass
class _Attempt:
    """The rows of one stage: those of steps past `start`."""

    start: int
    rows: list[Json] = field(default_factory=list)

    @property
    def reached(self) -> int:
        return max((row["step"] for row in self.rows), default=self.start)


def trial_metrics(use: Services, row: StudyRecord, number: int) -> Logged:
    """The rows of a trial, in order of steps. Raises `Unknown` where there is no such trial."""
    with use.open_study(row) as (plan, study):
        ends = list(plan.ends(trial_of(study, number)))
    return Logged(items=[] if use.logs is None else list(_rows(use.logs, row.stream, ends)))


def _rows(logs: Path, plan: str, ends: Iterable[tuple[NodeId, int]]) -> Iterator[LoggedPoint]:
    before = 0
    for node, end in ends:
        paths = sorted(logs.glob(f"*/{plan}/{node}.jsonl"), key=lambda path: path.stat().st_mtime)
        latest = _latest([attempt for path in paths for attempt in _attempts(path)])
        yield from (LoggedPoint(**row, node=node) for row in latest if before < row["step"] <= end)
        before = end


def _latest(attempts: list[_Attempt]) -> list[Json]:
    """Steps that were trained again are those of the last attempt."""
    rows: list[Json] = []
    for attempt in attempts:
        start, reached = attempt.start, attempt.reached
        rows = [row for row in rows if not start < row["step"] <= reached] + attempt.rows
    return sorted(rows, key=lambda row: int(row["step"]))


def _attempts(path: Path) -> list[_Attempt]:
    """What is in a file: the beginning of each attempt, and behind it its rows. A line that was cut off is none."""
    attempts = [_Attempt(0)]
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if "start" in record:
            attempts.append(_Attempt(record["start"]))
        else:
            attempts[-1].rows.append(record)
    return attempts
