"""The lock on the folder of a stack, and where its server answers, which the lock's file says."""

from __future__ import annotations

import fcntl
import json
from dataclasses import dataclass
from pathlib import Path
from typing import IO

FILE = "lock"


@dataclass(frozen=True)
class FolderServer:
    """The server of a folder in which a stack is at work. stays: until the user ends it, not only for a study."""

    url: str
    stays: bool


class FolderLock:
    """Of one stack at a time. The kernel opens it when the process ends."""

    def __init__(self, folder: Path) -> None:
        """Raises `BlockingIOError` where another stack has it, and `OSError` where the folder cannot be written."""
        self._file: IO[bytes] = (folder / FILE).open("ab")  # what another stack has written there stays
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self._file.close()
            raise
        self._file.truncate(0)

    def tell(self, find_server: FolderServer) -> None:
        """Say to other commands where the server answers."""
        self._file.write(json.dumps({"url": find_server.url, "stays": find_server.stays}).encode())
        self._file.flush()

    def close(self) -> None:
        """Let others have the folder."""
        self._file.close()


def is_in_use(folder: Path) -> bool:
    """Whether a stack has locked its folder."""
    try:
        with (folder / FILE).open("rb") as file:
            return _is_held(file)
    except FileNotFoundError:
        return False


def find_server(folder: Path) -> FolderServer | None:
    """The server of a folder; None if no stack is at work there, or it does not say yet where it answers."""
    try:
        with (folder / FILE).open("rb") as file:
            said = json.loads(file.read()) if _is_held(file) else {}
        return FolderServer(said["url"], said["stays"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_held(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
