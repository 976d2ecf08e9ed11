"""The embedded stack: which processes it starts, in which order, and how it ends."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from app.domain.slots import SCHEDULER
from app.embedded import machine
from app.embedded.interpreters import Interpreters, import_path
from app.embedded.machine import (
    PRIVATE,
    StackFailed,
    defer_interrupts,
    private_files,
    slot_names,
)
from app.process.folder_lock import FolderLock, FolderServer, find_server
from app.process.logs import last_line, shorten
from stagetree.atomic_file import remove_partial
from stagetree.runtime.failures import SAME_ORDER, STACK
from stagetree.system.processes import end_with_parent

START_SECONDS = 180.0
"""Imports take a minute on a slow machine or disk; a process that ends meanwhile is noticed at once."""

STOP_SECONDS = 120.0
"""For the slots to save their states when the stack ends, unless the environment says otherwise."""

LOOK_SECONDS = 0.05

NOTICE_SECONDS = 2.0
"""After this time the user sees that the end waits for saves."""

BUDGET = "20GiB"
"""For all checkpoints, unless the environment says otherwise."""


@dataclass
class Embedded:
    """A running stack.

    folder: of its log and checkpoints.
    slots_per_gpu: how many slots share a GPU.
    say: shows the user a sentence while the stack ends.
    token: of its user, if other machines can reach it or all callers need one.
    interpreters: which its processes are forked from, if they were started before.
    processes: all others, by the names of their logs.
    stays: runs until it is stopped, so that other commands can send it studies.
    to_run: the only trainer file that it will train, if known; then only its imports are made beforehand.
    """

    folder: Path
    slots: int
    trainers: Sequence[str]
    port: int = 0
    host: str = "127.0.0.1"
    slots_per_gpu: int = 1
    say: Callable[[str], None] = lambda sentence: None
    token: str | None = None
    interpreters: Interpreters | None = None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    stays: bool = False
    to_run: str = ""
    _lock: FolderLock | None = None
    _reserved: Any = None  # the hold on the port

    @property
    def url(self) -> str:
        """The URL at which this machine reaches it."""
        return machine.url(self.host, self.port)

    @property
    def external_url(self) -> str | None:
        """Where other machines reach it; None if they cannot."""
        return machine.external_url(self.host, self.port)

    def start(self, *, await_slots: bool = False, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Start everything; return when the API answers, or with `await_slots` when every slot is ready. Raises
        `StackFailed`.

        Slots import torch, which takes seconds; a study may be submitted before.
        meanwhile: called while all processes start.
        """
        if find_spec("celery") is None:  # raised here, where the CLI says what to install, and not in a child process
            raise ModuleNotFoundError("No module named 'celery'", name="celery")
        try:
            with private_files():
                self._prepare_folder()
            self.port, self._reserved = machine.reserve(self.host, self.port)
            with private_files():
                self._spawn_all()
            meanwhile()
            with private_files():
                self._release_workers()
            self._await_ready(self.slots if await_slots else 0)
            assert self._lock is not None
            self._lock.tell(FolderServer(self.url, self.stays))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process. The log stays; a stage under way is trained again from its last checkpoint.

        An interrupt skips waiting for the slots' saves.
        """
        with defer_interrupts() as interrupted:
            try:
                if "workers" in self.processes:
                    self._await_saves(self.processes["workers"], interrupted)
            finally:
                self._end()

    def _end(self) -> None:
        for process in self.processes.values():
            machine.kill(process)
        self.processes.clear()
        for held in filter(None, (self.interpreters, self._reserved, self._lock)):
            held.close()
        self.interpreters = None

    def check(self) -> None:
        """Raises `StackFailed` if one of the processes has ended by itself."""
        for name in ("api", "trainers"):
            shorten(self.folder / "logs" / f"{name}.log")
        for name, process in self.processes.items():
            log = self.folder / "logs" / f"{name}.log"
            shorten(log)
            if process.poll() is not None:
                raise StackFailed(f"{name} ended with exit code {process.returncode}{last_line(log)}")

    def environment(self) -> dict[str, str]:
        """The settings of the child processes."""
        return {
            "STAGETREE_CHECKPOINT_BUDGET": BUDGET,
            "STAGETREE_STOP_SECONDS": str(STOP_SECONDS),
            **(machine.LOCAL_SETTINGS if self.external_url is None else {}),
            **SAME_ORDER,
            **os.environ,
            STACK: self._scratch,
            "STAGETREE_SLOTS_PER_GPU": str(self.slots_per_gpu),
            "STAGETREE_LOCKS": f"{self._scratch}/locks",
            "STAGETREE_WARM": self.interpreters.trainers.address if self.interpreters else "",
            "STAGETREE_DATABASE_URL": f"sqlite:///{self.folder / 'stagetree.db'}",
            "STAGETREE_BROKER_URL": f"redis+socket://{self._scratch}/redis.sock",
            "STAGETREE_CHECKPOINTS": str(self.folder / "checkpoints"),
            "STAGETREE_HOSTS": os.environ.get("STAGETREE_HOSTS") or f"{socket.gethostname()},{socket.getfqdn()}",
            "STAGETREE_LOGS": str(self.folder / "logs"),
            "STAGETREE_TRAINERS": ",".join(self._trainer_files()),
            "PYTHONPATH": import_path(),
        }

    @property
    def _needs_token(self) -> bool:
        """Whether this user needs a token, too."""
        return self.environment().get("STAGETREE_ACCESS") == "always"

    @property
    def _scratch(self) -> str:
        return self.interpreters.folder if self.interpreters else ""

    def _trainer_files(self) -> list[str]:
        return [str(Path(path).resolve()) for path in self.trainers]

    # ------------------------------------------------------------------------------------------------ starting

    def _prepare_folder(self) -> None:
        self.folder = self.folder.resolve()
        try:
            (self.folder / "logs").mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self.folder)
        except BlockingIOError:
            raise StackFailed(_folder_in_use_message(self.folder)) from None
        except OSError as error:
            raise StackFailed(f"the folder {self.folder} cannot be written: {error.strerror}") from None
        remove_partial(self.folder / "checkpoints")

    def _spawn_all(self) -> None:
        self.interpreters = self.interpreters or Interpreters()
        logs = self.folder / "logs"
        with machine.open_log(logs / "trainers.log") as log:
            self.interpreters.trainers.tell([self.to_run] if self.to_run else self._trainer_files(), log)
        with machine.open_log(logs / "workers.log") as log:
            settings = {**self.environment(), "TMPDIR": self._scratch}
            self.interpreters.workers.tell(self.queues, logs, settings, log, api=(self.host, self.port))
        self.processes["workers"] = self.interpreters.workers.process
        self._spawn("redis", machine.redis_command(self._scratch))
        machine.open_log(logs / "api.log").close()

    def _release_workers(self) -> None:
        """Let the workers run once the database is ready, and create the user's token if a caller needs one."""
        assert self.interpreters is not None
        workers = self.interpreters.workers
        try:
            problem = workers.await_database(START_SECONDS)
        except TimeoutError:
            raise self._not_ready() from None
        except EOFError:
            raise StackFailed(f"workers ended{workers.last_words(self.folder / 'logs' / 'workers.log')}") from None
        if problem:
            raise StackFailed(problem)
        if self.external_url is not None or self._needs_token:
            self.token = machine.user_token(self.folder / "token", self.environment()["STAGETREE_DATABASE_URL"])
        workers.release()

    @property
    def queues(self) -> list[str]:
        """The queues of its workers."""
        return [SCHEDULER, *slot_names(self.slots, self.slots_per_gpu)]

    def _await_saves(self, workers: subprocess.Popen[bytes], interrupted: threading.Event) -> None:
        """Ask the slots to end, and wait while they save, for example the last trials' states."""
        began, is_told = time.monotonic(), False
        limit = float(self.environment()["STAGETREE_STOP_SECONDS"])
        workers.terminate()
        while workers.poll() is None and not interrupted.is_set():
            if (waited := time.monotonic() - began) > limit:
                return
            if waited > NOTICE_SECONDS and not is_told:
                self.say("Saving the last checkpoints; Ctrl-C ends without them ...")
                is_told = True
            interrupted.wait(LOOK_SECONDS)

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        with machine.open_log(self.folder / "logs" / f"{name}.log") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                umask=PRIVATE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us to handle
                preexec_fn=partial(end_with_parent, os.getpid()),
            )

    def _await_ready(self, slots: int) -> None:
        from stagetree.client import Client, StagetreeError
        from stagetree.client.http import OWN_TOKENS

        if self._needs_token and self.token is not None:
            OWN_TOKENS[self.url] = self.token
        deadline = time.monotonic() + START_SECONDS
        with Client(self.url, retries=0) as client:
            while time.monotonic() < deadline:
                self.check()
                with contextlib.suppress(StagetreeError):
                    if len(client.slots()) >= slots:
                        return
                time.sleep(0.05)
        raise self._not_ready()

    def _not_ready(self) -> StackFailed:
        return StackFailed(f"the stack was not ready after {START_SECONDS:.0f} seconds; see {self.folder / 'logs'}")


def _folder_in_use_message(folder: Path) -> str:
    """Says that another stack uses the folder, and what to do."""
    other = find_server(folder)
    here = f"another stagetree is at work in {folder}"
    if other is not None and other.stays:
        return f"{here}: send it the study with --server {other.url}, or choose another folder with --dir"
    return f"{here}; wait for it, or choose another folder with --dir"


@contextlib.contextmanager
def embedded(
    stack: Embedded, *, await_slots: bool = False, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[Embedded]:
    """A stack that runs inside the block. meanwhile: called while it starts."""
    stack.start(await_slots=await_slots, meanwhile=meanwhile)
    try:
        yield stack
    finally:
        stack.stop()
