"""Runs on: the thread that trains; the heartbeat's keeps files short, and the sender's thread sends them.

The files of all that trainers print and log. On one machine they are what the API reads. In a cluster each slot has
files of its own, which are on their way to the database, and are deleted once they are there and their chain is over.
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.domain.chain_assignment import ChainAssignment
from app.events.trial_logs import LogPiece, TrialLogTable
from app.outages import LostRace, Unavailable
from app.process.logs import shorten
from app.workers.threads import THREADS, Executor, PeriodicThread

logger = logging.getLogger(__name__)

PROOFS = "proofs.log"
"""What is printed while steps are trained again, in the folder of the study."""

UNSAFE = re.compile(r"[^A-Za-z0-9._-]")

SEND_SECONDS = 5.0
"""How often new bytes are sent."""

PIECE_BYTES = 2**18
"""So much is sent at once."""

MOST_UNSENT = 16 * 2**20
"""A file with more is begun anew: the rest of it that was not sent is left out."""

LAST_SECONDS = 3.0
"""How long a worker that ends waits for its last bytes. The rest is sent by the next one of its slot."""


@dataclass(frozen=True, slots=True)
class StageFiles:
    """printed: a trial's; what its trainer prints. rows: a node's; what it says with `Trainer.log`; None: nothing."""

    printed: Path
    rows: Path | None

    def size(self) -> int:
        """The file's size in bytes; 0 where it is unknown."""
        with suppress(OSError):
            return self.printed.stat().st_size
        return 0

    def printed_since(self, size: int) -> bytes:
        """The text printed since the file had that size, up to `PIECE_BYTES`."""
        with suppress(OSError), self.printed.open("rb") as file:
            file.seek(size)
            return file.read(PIECE_BYTES)
        return b""

    def add(self, text: bytes) -> None:
        """As if it had been printed now."""
        with suppress(OSError), self.printed.open("ab") as file:
            file.write(text)


class TrialLogs:
    """root: the folder of all logs. A stage that several trials share is in the log of the one it runs for.

    table: where they are sent to; None where the API sees the folder.
    """

    def __init__(self, root: Path, slot: str, table: TrialLogTable | None = None, executor: Executor = THREADS) -> None:
        self._root, self._slot = root, slot
        self._printed: Path | None = None
        self._sender = None if table is None else LogSender(root / f"{slot}.unsent", table, executor)

    def begin(self, chain: str, work: ChainAssignment, index: int) -> StageFiles | None:
        """The files of a stage, with a line in each that says what begins there; None if none can be kept."""
        stage = work.stages[index]
        place = f"node {stage.node}, steps {stage.start} to {stage.end}, slot {self._slot}, chain {chain}\n"
        files = self._files(chain, work, index)
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

    def over(self, chain: str) -> None:
        """Nothing more is written for a chain."""
        if self._sender is not None:
            self._sender.over(chain)

    def keep_short(self) -> None:
        """Bound the file of the stage under way, or of the last one."""
        if self._printed is not None and self._sender is None:
            shorten(self._printed)

    def close(self) -> None:
        """Send the rest, as far as that is quick."""
        if self._sender is not None:
            self._sender.close()

    def _files(self, chain: str, work: ChainAssignment, index: int) -> StageFiles:
        study, is_proof = UNSAFE.sub("_", work.study), work.proof is not None
        printed = PROOFS if is_proof else f"{work.trial}.log"
        rows = f"{work.plan}/{work.stages[index].node}.jsonl"
        if self._sender is None:
            folder, source = self._root / study, ""
        else:
            folder, source = self._sender.begin(chain) / study, f"{chain}-{index}"
        return StageFiles(folder / printed / source, None if is_proof else folder / rows / source)


def _append(path: Path, text: str) -> None:
    for is_last in (False, True):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("a") as file:
                file.write(text)
            return
        except FileNotFoundError:  # the sender has just removed the folder, which was empty
            if is_last:
                raise


@dataclass(slots=True)
class _Place:
    """How far a file is sent, and how many bytes were cut off before its first: both as the source counts."""

    sent: int
    cut: int = 0


class LogSender:
    """Sends the files STUDY/NAME/SOURCE in a folder, which one slot writes, to the database.

    What its last worker left there is sent first. A database that is away is waited for.
    """

    def __init__(self, folder: Path, table: TrialLogTable, executor: Executor = THREADS) -> None:
        self._folder, self._table, self._executor = folder, table, executor
        self._live = frozenset[str]()  # put in place whole: the thread that trains changes it
        self._places = dict[Path, _Place]()
        self._lock = executor.lock()
        self._thread = PeriodicThread("sender", self.send, SEND_SECONDS, executor=executor)
        self._thread.start()

    def begin(self, chain: str) -> Path:
        """Where the files of a chain are, until it is over."""
        self._live |= {chain}
        return self._folder

    def over(self, chain: str) -> None:
        self._live -= {chain}

    def close(self) -> None:
        self._thread.close()
        self._executor.spawn("sender", self._send_last).join(LAST_SECONDS)

    def send(self) -> bool:
        """Send a piece of each file; whether there is nothing more. Raises `DatabaseUnavailable`, `LostRace`."""
        with self._lock:
            live = self._live
            files = [path for path in sorted(self._folder.rglob("*")) if path.is_file()]
            done = [self._send(path, path.name.partition("-")[0] in live) for path in files]
            return all(done)

    def _send_last(self) -> None:
        with suppress(Unavailable, LostRace):
            while not self.send():
                pass

    def _send(self, path: Path, is_live: bool) -> bool:
        """A piece of a file. One that is over and all sent is deleted."""
        study, *name, source = path.relative_to(self._folder).parts
        where = {"study": study, "name": "/".join(name), "source": source}
        try:
            data, size = self._unsent(path, where)
            place = self._places[path]
            if data:
                place.sent = self._table.add(LogPiece(**where, begin=max(place.sent, place.cut), data=data))
            is_all = place.sent >= place.cut + size
            if size > MOST_UNSENT:
                os.truncate(path, 0)
                place.cut += size
                place.sent = place.cut  # the rest is gone
            elif is_all and not is_live:
                self._forget(path)
            return is_all
        except OSError as problem:
            logger.warning("%s is not sent: %s", path, problem)
            return True

    def _unsent(self, path: Path, where: dict[str, str]) -> tuple[bytes, int]:
        """What comes next, and how long the file is."""
        size = path.stat().st_size
        if path not in self._places:
            sent = self._table.end(**where)
            self._places[path] = _Place(sent, sent if sent > size else 0)
        place = self._places[path]
        with path.open("rb") as file:
            file.seek(max(0, place.sent - place.cut))
            return file.read(PIECE_BYTES), size

    def _forget(self, path: Path) -> None:
        del self._places[path]
        path.unlink()
        for folder in path.relative_to(self._folder).parents:
            with suppress(OSError):
                (self._folder / folder).rmdir()
