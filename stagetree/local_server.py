"""A complete service on this machine, for the lifetime of a program or a notebook.

    with stagetree.local(slots=2) as server:
        study = server.create(trainer=Digits, metric="val_accuracy", mode="max", space=..., tuner=...).wait()
        print(study.best)

It runs the processes of `stagetree up` as children of a separate interpreter. That one does not import the calling
program, so a script needs no `if __name__ == "__main__"`. The processes end with this one, even if it is killed. The
folder keeps everything that was trained.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagetree.client import Client
from stagetree.client.http import OWN_TOKENS
from stagetree.errors import StagetreeError
from stagetree.study import Study

if TYPE_CHECKING:
    from stagetree.spec import StudySpec
    from stagetree.trainer import Trainer

STOP_SECONDS = 150.0
"""Longer than slots need to save their state."""

_RUNNING: dict[Path, LocalServer] = {}
"""The servers of this process, by folder."""


def local(
    slots: int | None = None, *, dir: str | Path = ".stagetree", trainers: Iterable[str | Path] = ()
) -> LocalServer:
    """Start a service on this machine, and return when every slot is ready. Raises `StagetreeError`.

    Args:
        slots: how many trials are trained at once; by default one for each GPU, else for each CPU core.
        dir: where the log and the checkpoints are kept. What an earlier service trained there is not trained again.
        trainers: Python files with trainers, beside the trainers that are defined here.

    A service that this process has on the folder already is stopped first, so a cell can be run again.
    """
    if slots is not None and slots < 1:
        raise StagetreeError(f"slots: must be at least 1, got {slots}")
    folder = Path(dir).resolve()
    if folder in _RUNNING:
        _RUNNING[folder].stop()
    return LocalServer(slots, folder, [str(Path(path).resolve()) for path in trainers])


class LocalServer:
    """A running service; see `local`. It stops when the `with` block or this process ends."""

    def __init__(self, slots: int | None, folder: Path, trainers: list[str]) -> None:
        self._folder = folder
        options = json.dumps({"slots": slots, "folder": str(folder), "trainers": [*trainers, str(folder / "trainers")]})
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "app.cli.local_stack", options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process to handle
        )
        try:
            self.url, self.slots = self._wait_until_started()
        except BaseException:
            self._end()
            raise
        self.client = Client(self.url)
        _RUNNING[folder] = self
        atexit.register(self.stop)

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop all its processes. The next time, training resumes from the last checkpoints. `close` is the same."""
        atexit.unregister(self.stop)
        if _RUNNING.get(self._folder) is self:
            del _RUNNING[self._folder]
            self.client.close()
        self._end()

    close = stop

    def create(
        self,
        spec: StudySpec | Mapping[str, Any] | None = None,
        /,
        *,
        trainer: type[Trainer] | str | None = None,
        **fields: Any,
    ) -> Study:
        """Submit a study, as `Study.create` does; its trainer may be a class of this program."""
        if isinstance(trainer, type):
            fields = fields if spec else {"name": getattr(trainer, "name", trainer.__name__), **fields}
            trainer = self.register(trainer)
        return Study.create(spec, url=self.url, **(fields if trainer is None else {**fields, "trainer": trainer}))

    def open(self, study: str) -> Study:
        """Open a study by its id, its name or as `last`, also one of an earlier run. Raises `NotFound`."""
        return Study.open(study, url=self.url)

    def register(self, trainer: type[Trainer]) -> str:
        """Register a trainer of this program, and return the name that studies use for it.

        The name holds a hash of its source: a changed class is another trainer, and the earlier one stays registered.
        Raises `StagetreeError` if the source cannot be read, or needs objects that cannot be written to a file.
        """
        from stagetree.source.cells import source_of

        source = source_of(trainer)
        source.write(self._folder / "trainers")
        return source.name

    def __repr__(self) -> str:
        state = "stopped" if self._process.poll() is not None else f"at {self.url}, slots: {self.slots}"
        return f"<LocalServer {state}, in {self._folder}>"

    def _wait_until_started(self) -> tuple[str, int]:
        """Wait until the other process reports that all its parts are running."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the service ended while it was started"}
        if "error" in answer:
            raise StagetreeError(answer["error"])
        if answer["token"]:
            OWN_TOKENS[answer["url"]] = answer["token"]
        return answer["url"], answer["slots"]

    def _end(self) -> None:
        """Closing its input stops the other process. It is killed if that takes too long."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process.stdout.close()
