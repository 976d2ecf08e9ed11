"""The embedded stack that a command starts for itself."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.errors import exit_on_signals, report_early_interrupt
from app.cli.options import DEFAULT_DIR
from app.cli.service import Documents, Service
from app.cli.sinks import study_sinks
from app.embedded import Embedded, Interpreter, default_slots, embedded
from app.settings import settings
from stagetree.errors import ProblemError

if TYPE_CHECKING:
    from stagetree.client import Client


@dataclass(frozen=True)
class OwnStack:
    """The embedded stack that a command has for itself. folder: where it keeps what it makes; None for nowhere.

    forking: what its trainers are forked from, where that has begun. stays: until the user ends it.
    to_run: as of `Embedded`.
    """

    folder: Path | None
    slots: int
    slots_per_gpu: int
    trainers: Sequence[str]
    host: str = "127.0.0.1"
    port: int = 0
    forking: Interpreter | None = None
    stays: bool = False
    to_run: str = ""

    @classmethod
    def of(cls, folder: Path | None, slots: int | None, slots_per_gpu: int | None, trainers: Sequence[str]) -> OwnStack:
        """As it was asked for, or else as the settings and this machine have it. Raises `StackFailed`."""
        per_gpu = slots_per_gpu or settings().slots_per_gpu
        return cls(folder, slots or default_slots(per_gpu), per_gpu, trainers)


@contextmanager
def own_stack(
    own: OwnStack, *, await_slots: bool = False, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[Service[Documents]]:
    """An embedded stack. A temporary folder is removed when all went well or nothing began, and named when not.

    meanwhile: done while it starts.
    """
    folder = own.folder or Path(tempfile.mkdtemp(prefix="stagetree-"))
    began = False
    try:
        say = partial(print, file=sys.stderr)
        place = (own.port, own.host, own.slots_per_gpu)
        stack = Embedded(
            folder, own.slots, own.trainers, *place, say=say, forking=own.forking, stays=own.stays, to_run=own.to_run
        )
        starting = embedded(stack, await_slots=await_slots, meanwhile=meanwhile)
        with exit_on_signals(), starting, _client(stack.url) as client:
            began = True
            with study_sinks(stack.url, stack.folder / "sinks", stack.environment().get("STAGETREE_SINKS", "")):
                documents, others = Documents(client), stack.url_for_others
                yield Service(documents, stack.check, stack.folder, url_for_others=others, token=stack.token)
    except BaseException as error:
        if began and not isinstance(error, ProblemError):  # what is refused was not trained
            again = "" if folder == DEFAULT_DIR else f" with --dir {folder}"
            print(f"What was trained is kept: the same command{again} resumes there.", file=sys.stderr)
        elif own.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        with nullcontext() if began else report_early_interrupt():
            raise
    if own.folder is None:
        shutil.rmtree(folder, ignore_errors=True)


def _client(url: str) -> Client:
    """Imported when the stack has started: it is slow to import."""
    from stagetree.client import Client

    return Client(url)
