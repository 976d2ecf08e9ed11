"""Templates: trainer processes that have imported the file and built the trainer, from which chains are forked.

A fork starts in milliseconds, with an untrained model. `stagetree.runtime.template` lists what makes a process unfit to
be a template.

Runs on: the thread that trains.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from app.registry import TrainerSource
from app.workers.trainer_connection import CLOSE_SECONDS, FORK_SECONDS
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import ForkRequest, WarmFailed
from stagetree.runtime.failures import TrainerFailed

logger = logging.getLogger(__name__)

MAX_TEMPLATES = 2
"""Templates of one slot; the least recently used ones end."""

MAX_REFUSED = 64
"""How many trainers that cannot be templates are remembered."""

Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class TemplateKey:
    """Identifies what a template was built from: a chain may be forked from it if all fields are equal."""

    source: TrainerSource
    trainer: str
    args: str
    seed: int
    determinism: str
    shards: int
    parallel: str


class Fork(TrainerProcess):
    """A process forked from a template. printed: the output of the template's build."""

    printed, reports_free_memory = b"", False

    @classmethod
    def from_template(cls, template: Template, request: ForkRequest) -> Fork:
        """Raises `WarmFailed`, `TrainerFailed`, EOFError, OSError."""
        fork = cls(*request.answer(FORK_SECONDS))
        fork.printed, fork._uses = template.printed, [template.uses]
        try:
            fork.tell("take_over", {"fds": [fork.stacks]})
        except BaseException:
            fork.kill()
            fork.close()
            raise
        return fork


class Template:
    """A process that serves forks, one of which is always ready.

    printed: the output of the build.
    uses: the files that the build opened.
    files: the paths that the build read.
    """

    def __init__(self, process: TrainerProcess, printed: bytes, files: Iterable[str]) -> None:
        self.process, self.printed, self.uses = process, printed, process.take_uses()
        self._stamps = {path: file_stamp(path) for path in files}
        self._next: ForkRequest | None = None

    @property
    def is_outdated(self) -> bool:
        """Whether a file that the build read has changed: a process built now would read the new one."""
        return any(file_stamp(path) != stamp for path, stamp in self._stamps.items())

    def fork(self) -> Fork:
        """A process with an untrained model. Raises `WarmFailed`, `TrainerFailed`, EOFError, OSError."""
        request, self._next = self._next or self.process.request_fork(), None
        fork = Fork.from_template(self, request)
        with suppress(OSError):  # the template has died meanwhile, which the next chain meets
            self._next = self.process.request_fork()  # made while this one trains
        return fork

    def close(self) -> None:
        """Kill it: it has trained nothing, so nothing needs an orderly end."""
        if self._next is not None:
            self._next.close()
        self.process.kill()
        self.process.close()


class Templates:
    """A slot's templates, in order of their last use."""

    def __init__(self) -> None:
        self._templates: dict[TemplateKey, Template] = {}
        self._refused: dict[TemplateKey, str] = {}
        self._ending: tuple[Fork, float] | None = None  # and when it should have ended

    def can_be_built(self, key: TemplateKey) -> bool:
        """Whether a template may be tried: none was refused for this key."""
        return key not in self._refused

    def fork(self, key: TemplateKey) -> Fork | None:
        """A process with an untrained model; None if there is no template."""
        self._end([other for other in self._templates if other.trainer == key.trainer and other.source != key.source])
        template = self._templates.get(key)
        if template is None:
            return None
        if template.is_outdated:
            self._end([key])
            return None
        try:
            fork = template.fork()
        except (WarmFailed, TrainerFailed, EOFError, OSError) as problem:
            logger.warning("the template of trainer %r is built again: it has ended (%s)", key.trainer, problem)
            self._end([key])
            return None
        self._templates[key] = self._templates.pop(key)
        return fork

    def add(self, key: TemplateKey, process: TrainerProcess, printed: bytes, files: Iterable[str]) -> None:
        """Let a process serve forks from now on. printed, files: as for `Template`."""
        self._end(list(self._templates)[: max(0, len(self._templates) + 1 - MAX_TEMPLATES)])
        self._templates[key] = Template(process, printed, files)

    def refuse(self, key: TemplateKey, reason: str) -> None:
        """Record that this trainer cannot be a template. reason: words that follow "it"."""
        logger.warning("each chain of trainer %r builds it in a process of its own: it %s", key.trainer, reason)
        self._refused = dict([*self._refused.items(), (key, reason)][-MAX_REFUSED:])

    def drop(self, key: TemplateKey) -> None:
        """End a template after the user's code failed in one of its forks."""
        self._end([key])

    def end(self, fork: Fork) -> None:
        """Let a fork end by itself while the next chain begins in another one."""
        self.await_ending_fork()
        fork.ask_to_end()
        self._ending = fork, time.monotonic() + CLOSE_SECONDS

    def kill_late_fork(self) -> None:
        """Kill the fork that is late to end. Called while the next chain trains."""
        if self._ending is not None and time.monotonic() > self._ending[1]:
            self.await_ending_fork()

    def close(self) -> None:
        self.await_ending_fork()
        self._end(list(self._templates))

    def await_ending_fork(self) -> None:
        """Wait until the ending fork is gone."""
        if self._ending is not None:
            (fork, ends), self._ending = self._ending, None
            fork.close(max(0.0, ends - time.monotonic()))

    def _end(self, keys: Iterable[TemplateKey]) -> None:
        for key in keys:
            if (template := self._templates.pop(key, None)) is not None:
                template.close()


def file_stamp(path: str) -> Stamp | None:
    """Changes whenever the file does; None if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
