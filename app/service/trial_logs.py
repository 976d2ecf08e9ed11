"""Trainers' printed output and logged rows: their folder, the points along a trial's path, and their deletion.

On one machine slots write files, which are read here. In a cluster they send everything to the database.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from app.domain.search_plan import SearchPlan
from app.domain.terms import NodeId
from app.outages import LostRace, Unavailable
from stagetree.models.trials import LoggedPoint

logger = logging.getLogger(__name__)

Json = dict[str, Any]
LOG_CHARACTERS = 2**16


class KeptLogs(Protocol):
    """Stored logs. Methods raise OSError, `DatabaseUnavailable`, `LostRace`."""

    def printed(self, study: str, trial: int) -> Iterator[str]:
        """A trial's output in parts; nothing if none is stored."""

    def logged(self, plan: str, node: str) -> list[str]:
        """The rows logged in a node: one text for each file, a row a line, the oldest first."""

    def remove(self, study: str, but: Collection[str]) -> None:
        """Delete a study's logs, except the rows of these nodes."""


class LogFolder:
    """The folder of all slots' logs."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def printed(self, study: str, trial: int) -> Iterator[str]:
        path = self._root / study / f"{trial}.log"
        if not path.is_file():
            return
        with path.open(encoding="utf-8", errors="replace") as file:
            while part := file.read(LOG_CHARACTERS):
                yield part

    def logged(self, plan: str, node: str) -> list[str]:
        paths = sorted(self._root.glob(f"*/{plan}/{node}.jsonl"), key=lambda path: path.stat().st_mtime)
        return [path.read_text(encoding="utf-8", errors="replace") for path in paths]

    def remove(self, study: str, but: Collection[str]) -> None:
        """Also removes the study's folder if it is empty then."""
        folder = self._root / study
        files = [path for path in folder.rglob("*") if path.is_file()]
        going = [path for path in files if path.stem not in but]
        for path in going:
            path.unlink(missing_ok=True)
        if len(going) == len(files) and folder.exists():
            shutil.rmtree(folder)


# ------------------------------------------------------------------------------------------------ points of a path


@dataclass
class _Attempt:
    """The rows of one stage, which began at step `start`."""

    start: int
    rows: list[Json] = field(default_factory=list)

    @property
    def last_step(self) -> int:
        return max((row["step"] for row in self.rows), default=self.start)


def logged_points(logs: KeptLogs, plan: str, ends: Iterable[tuple[NodeId, int]]) -> Iterator[LoggedPoint]:
    """The rows of a path of nodes, each as far as its end, in order of steps."""
    before = 0
    for node, end in ends:
        latest = _latest([attempt for text in logs.logged(plan, node) for attempt in _attempts(text)])
        yield from (LoggedPoint(**row, node=node) for row in latest if before < row["step"] <= end)
        before = end


def _latest(attempts: list[_Attempt]) -> list[Json]:
    """The rows in order of steps. The last attempt at a step wins."""
    rows: list[Json] = []
    for attempt in attempts:
        start, last_step = attempt.start, attempt.last_step
        rows = [row for row in rows if not start < row["step"] <= last_step] + attempt.rows
    return sorted(rows, key=lambda row: int(row["step"]))


def _attempts(text: str) -> list[_Attempt]:
    """The attempts in a text. Each begins with a line of its start. Incomplete lines are skipped."""
    attempts = [_Attempt(0)]
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if "start" in record:
            attempts.append(_Attempt(record["start"]))
        else:
            attempts[-1].rows.append(record)
    return attempts


# ------------------------------------------------------------------------------------------------ deletion


def delete_logs(logs: KeptLogs, plan: SearchPlan) -> None:
    """Delete the logs of deleted studies, except rows in nodes that other studies' trials pass.

    Those rows stay until the other studies are deleted as well.
    """
    others = {node for study in plan.studies.values() if not study.deleted for node in study.max_step_by_node}
    for node in plan.nodes.values():  # each is there before its children, whose stages a later trial would share
        if node.parent in others:
            others.add(node.id)
    for study in [study.id for study in plan.studies.values() if study.deleted]:
        try:
            logs.remove(study, others)
        except (OSError, Unavailable, LostRace) as problem:
            logger.warning("study %s is deleted, and its logs are not: %s", study, problem)
