"""What trainers print, kept for each trial on the machine where it ran."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from app.scheduling.assignment import ChainAssignment

logger = logging.getLogger(__name__)

UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class TrialLogs:
    """root: the folder of all logs. A stage that several trials share is in the log of the one it runs for."""

    def __init__(self, root: Path | None, slot: str) -> None:
        self._root, self._slot = root, slot

    def begin(self, chain: str, work: ChainAssignment, index: int) -> Path | None:
        """The log of a stage, with a line that says what begins there; None if none can be kept."""
        if self._root is None:
            return None
        stage = work.stages[index]
        path = self._root / UNSAFE.sub("_", work.study) / f"{work.trial}.log"
        line = f"--- stage of node {stage.node}, steps {stage.start} to {stage.end}, slot {self._slot}, chain {chain}\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as log:
                log.write(line)
        except OSError as problem:
            logger.warning("what trial %s of study %s prints is not kept: %s", work.trial, work.study, problem)
            return None
        return path
