"""The lock of a stack's folder. The lock file also has the address of the stack's server."""

from __future__ import annotations

import fcntl
import json
from dataclasses import dataclass
from pathlib import Path
from typing import IO

FILE = "lock"


@dataclass(frozen=True)
class FolderServer:
    """The server of a folder in use. stays: until the user stops it, not only for one study."""

    url: str
    stays: bool


class FolderLock:
    """Held by one stack at a time. The kernel releases it when the process ends."""

    def __init__(self, folder: Path) -> None:
        """Raises `BlockingIOError` if another stack has it, and `OSError` if the folder cannot be written."""
        self._file: IO[bytes] = (folder / FILE).open("ab")  # what another stack has written there stays
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self._file.close()
            raise
        self._file.truncate(0)

    def tell(self, find_server: FolderServer) -> None:
        """Publish the server's address to other commands."""
        self._file.write(json.dumps({"url": find_server.url, "stays": find_server.stays}).encode())
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def is_in_use(folder: Path) -> bool:
    """Whether a stack has locked the folder."""
    try:
        with (folder / FILE).open("rb") as file:
            return _is_held(file)
    except FileNotFoundError:
        return False


def find_server(folder: Path) -> FolderServer | None:
    """The server of a folder; None if no stack runs there or its server is not ready."""
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
