"""What goes with a study beside its events: the route does it, and the command line on a store without a server."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Container
from pathlib import Path

from app.api.commands.writing import Write
from app.api.services import Services
from app.domain import commands as c
from app.domain.decide import decide
from app.domain.ids import NodeId, StudyId
from app.domain.search_plan import SearchPlan
from app.events.rows import StudyRecord

logger = logging.getLogger(__name__)


def delete_study(use: Services, row: StudyRecord, write: Write) -> None:
    """Let go of a study that is over. Raises `Conflict` where it is not."""
    command = c.DeleteStudy(study=StudyId(row.id), at=use.clock())
    write(row.stream, lambda plan: decide(plan, command, use.limits))
    if use.logs is not None:
        with use.plans.holding(row.stream) as plan:
            _delete_logs(use.logs, plan)


def _delete_logs(logs: Path, plan: SearchPlan) -> None:
    """What trials of deleted studies printed, and what they logged where no other study's trials come.

    As far as it is kept here. What the others read stays where it is until they are deleted as well.
    """
    others = _nodes_of_others(plan)
    for study in [study.id for study in plan.studies.values() if study.deleted]:
        try:
            _delete_files(logs / study, others)
        except OSError as problem:
            logger.warning("study %s is deleted, and its logs are not: %s", study, problem)


def _nodes_of_others(plan: SearchPlan) -> set[NodeId]:
    """The nodes that trials of studies pass which are not deleted, and those to which they may come if asked for more.

    What is trained there is not trained again for them.
    """
    found = {node for study in plan.studies.values() if not study.deleted for node in study.max_step_by_node}
    for node in plan.nodes.values():  # each is there before its children
        if node.parent in found:
            found.add(node.id)
    return found


def _delete_files(folder: Path, nodes: Container[str]) -> None:
    """All but the rows of these nodes, and the folder if nothing stays."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    going = [path for path in files if path.stem not in nodes]
    for path in going:
        path.unlink(missing_ok=True)
    if len(going) == len(files) and folder.exists():
        shutil.rmtree(folder)
