"""Runs on: the thread that trains; the heartbeat's keeps the files short.

What trainers print and log, kept on the machine where it ran.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path

from app.domain.assignment import ChainAssignment
from app.processes import shorten

logger = logging.getLogger(__name__)

PROOFS = "proofs.log"
"""What is printed while steps are trained again, in the folder of the study."""

UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class StageFiles:
    """printed: a trial's; what its trainer prints. rows: a node's; what it says with `Trainer.log`; None: nothing."""

    printed: Path
    rows: Path | None


class TrialLogs:
    """root: the folder of all logs. A stage that several trials share is in the log of the one it runs for."""

    def __init__(self, root: Path, slot: str) -> None:
        self._root, self._slot = root, slot
        self._printed: Path | None = None

    def begin(self, chain: str, work: ChainAssignment, index: int) -> StageFiles | None:
        """The files of a stage, with a line in each that says what begins there; None if none can be kept."""
        stage, folder = work.stages[index], self._root / UNSAFE.sub("_", work.study)
        place = f"node {stage.node}, steps {stage.start} to {stage.end}, slot {self._slot}, chain {chain}\n"
        printed, rows = folder / f"{work.trial}.log", folder / work.plan / f"{stage.node}.jsonl"
        files = StageFiles(printed, rows) if work.proof is None else StageFiles(folder / PROOFS, None)
        try:
            _append(
                files.printed, f"--- stage of {place}" if work.proof is None else f"--- {work.proof.kind} at {place}"
            )
            if files.rows is not None:
                _append(files.rows, "\n" + json.dumps({"start": stage.start, "chain": chain}) + "\n")
        except OSError as problem:
            logger.warning("what trial %s of study %s prints is not kept: %s", work.trial, work.study, problem)
            return None
        self._printed = files.printed
        return files

    def keep_short(self) -> None:
        """Bound the file of the stage under way, or of the last one."""
        if self._printed is not None:
            shorten(self._printed)


def _append(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)
