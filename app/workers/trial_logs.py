"""The files of everything that trainers print and log.

On one machine the API reads these files. In a cluster each slot has its own, which are sent to the database and deleted
once they are there and their chain is over.

Runs on: the thread that trains; the heartbeat's truncates files, and the sender's thread sends them.
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from app.domain.chain_assignment import ChainAssignment
from app.events.trial_logs import LogPiece, TrialLogTable
from app.outages import LostRace, Unavailable
from app.process.logs import shorten
from app.workers.threads import THREADS, Executor, PeriodicThread

logger = logging.getLogger(__name__)

VERIFICATION_LOG = "proofs.log"
"""The output of verification steps, in the study's folder."""

UNSAFE = re.compile(r"[^A-Za-z0-9._-]")

SEND_SECONDS = 5.0
"""How often new bytes are sent."""

PIECE_BYTES = 2**18
"""The most bytes sent at once."""

MAX_UNSENT_BYTES = 16 * 2**20
"""A file that grows larger is emptied, and its unsent rest is lost."""

LAST_SECONDS = 3.0
"""How long an ending worker sends its last bytes. The slot's next worker sends the rest."""


@dataclass(frozen=True, slots=True)
class StageFiles:
    """printed: the trial's output file. rows: the node's file of `Trainer.log` rows; None: no rows are kept."""

    printed: Path
    rows: Path | None

    def size(self) -> int:
        """The output's size in bytes; 0 if unknown."""
        with suppress(OSError):
            return self.printed.stat().st_size
        return 0

    def read_since(self, size: int) -> bytes:
        """The output from that offset on, up to `PIECE_BYTES`."""
        with suppress(OSError), self.printed.open("rb") as file:
            file.seek(size)
            return file.read(PIECE_BYTES)
        return b""

    def add(self, text: bytes) -> None:
        """Append text to the output."""
        with suppress(OSError), self.printed.open("ab") as file:
            file.write(text)


class TrialLogs:
    """root: the folder of all logs. A stage that several trials share is in the log of the trial that it runs for.
    table: where the logs are sent; None if the API reads the folder.
    """

    def __init__(self, root: Path, slot: str, table: TrialLogTable | None = None, executor: Executor = THREADS) -> None:
        self._root, self._slot = root, slot
        self._printed: Path | None = None
        self._sender = None if table is None else LogSender(root / f"{slot}.unsent", table, executor)

    def begin(self, chain: str, work: ChainAssignment, index: int) -> StageFiles | None:
        """The files of a stage, each with a header line; None if they cannot be written."""
        files = self._files(chain, work, index)
        try:
            _append(files.printed, self._header(chain, work, index))
            if files.rows is not None:
                _append(files.rows, "\n" + json.dumps({"start": work.stages[index].start, "chain": chain}) + "\n")
        except OSError as problem:
            logger.warning("what trial %s of study %s prints is not kept: %s", work.trial, work.study, problem)
            return None
        self._printed = files.printed
        return files

    def add_to_trial(self, chain: str, work: ChainAssignment, printed: bytes) -> None:
        """Add the output of a verification to the log of its trial."""
        trial_log = self._files(chain, replace(work, proof=None), 0)
        with suppress(OSError):
            _append(trial_log.printed, self._header(chain, work, 0))
        trial_log.add(printed)

    def end(self, chain: str) -> None:
        """Note that a chain writes nothing more."""
        if self._sender is not None:
            self._sender.end(chain)

    def truncate_current(self) -> None:
        """Limit the size of the current stage's file, or of the last one's."""
        if self._printed is not None and self._sender is None:
            shorten(self._printed)

    def close(self) -> None:
        """Send the rest, within a few seconds."""
        if self._sender is not None:
            self._sender.close()

    def _header(self, chain: str, work: ChainAssignment, index: int) -> str:
        stage, what = work.stages[index], "stage of" if work.proof is None else f"{work.proof.kind} at"
        place = f"node {stage.node}, steps {stage.start} to {stage.end}, slot {self._slot}, chain {chain}"
        return f"--- {what} {place}\n"

    def _files(self, chain: str, work: ChainAssignment, index: int) -> StageFiles:
        study, is_proof = UNSAFE.sub("_", work.study), work.proof is not None
        printed = VERIFICATION_LOG if is_proof else f"{work.trial}.log"
        rows = f"{work.plan}/{work.stages[index].node}.jsonl"
        if self._sender is None:
            folder, source = self._root / study, ""
        else:
            folder, source = self._sender.begin(chain) / study, f"{chain}-{index}"
        return StageFiles(folder / printed / source, None if is_proof else folder / rows / source)


def open_to_append(path: Path) -> int:
    """The descriptor of a file that is written at its end; it and its folder are made if they are missing.

    Raises OSError.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for _ in range(2):  # the sender may remove an empty folder at any time
        with suppress(FileNotFoundError):
            return os.open(path, flags, 0o644)
        path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, flags, 0o644)


def _append(path: Path, text: str) -> None:
    fd = open_to_append(path)
    try:
        os.write(fd, text.encode("utf-8", "backslashreplace"))
    finally:
        os.close(fd)


@dataclass(slots=True)
class _Place:
    """sent: how far a file is sent. cut: how many bytes were cut off its beginning. Both count from the source's first
    byte.
    """

    sent: int
    cut: int = 0


class LogSender:
    """Sends the files STUDY/NAME/SOURCE in one slot's folder to the database, the files of its last worker first.

    An outage of the database is waited for.
    """

    def __init__(self, folder: Path, table: TrialLogTable, executor: Executor = THREADS) -> None:
        self._folder, self._table, self._executor = folder, table, executor
        self._live = frozenset[str]()  # replaced as a whole by the thread that trains
        self._places = dict[Path, _Place]()
        self._lock = executor.lock()
        self._thread = PeriodicThread("sender", self.send, SEND_SECONDS, executor=executor)
        self._thread.start()

    def begin(self, chain: str) -> Path:
        """Note that a chain is live; returns the folder for its files."""
        self._live |= {chain}
        return self._folder

    def end(self, chain: str) -> None:
        self._live -= {chain}

    def close(self) -> None:
        self._thread.close()
        self._executor.spawn("sender", self._send_last).join(LAST_SECONDS)

    def send(self) -> bool:
        """Send a piece of each file, and return whether nothing is left. Raises `DatabaseUnavailable`, `LostRace`."""
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
        """Send a piece of a file; delete it when its chain is over and all is sent."""
        study, *name, source = path.relative_to(self._folder).parts
        where = {"study": study, "name": "/".join(name), "source": source}
        try:
            data, size = self._unsent(path, where)
            place = self._places[path]
            if data:
                place.sent = self._table.add(LogPiece(**where, begin=max(place.sent, place.cut), data=data))
            is_all = place.sent >= place.cut + size
            if size > MAX_UNSENT_BYTES:
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
        """The next piece, and the file's size."""
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
