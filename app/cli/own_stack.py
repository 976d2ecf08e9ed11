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
from app.embedded.interpreter import Interpreter
from app.embedded.machine import default_slots
from app.embedded.stack import Embedded, embedded
from app.settings import settings
from stagetree.errors import ProblemError

if TYPE_CHECKING:
    from stagetree.client import Client


@dataclass(frozen=True)
class OwnStack:
    """The settings of a command's embedded stack."""

    folder: Path | None
    """The folder of its store; None for a temporary one."""

    slots: int
    slots_per_gpu: int
    trainers: Sequence[str]
    host: str = "127.0.0.1"
    port: int = 0
    forking: Interpreter | None = None
    """The process that trainers are forked from, if it has been started."""

    stays: bool = False
    """Whether it runs until the user stops it."""

    to_run: str = ""
    """As in `Embedded`."""

    @classmethod
    def from_options(
        cls, folder: Path | None, slots: int | None, slots_per_gpu: int | None, trainers: Sequence[str]
    ) -> OwnStack:
        """The options, completed by the settings and this machine. Raises `StackFailed`."""
        per_gpu = slots_per_gpu or settings().slots_per_gpu
        return cls(folder, slots or default_slots(per_gpu), per_gpu, trainers)


@contextmanager
def own_stack(
    own: OwnStack, *, await_slots: bool = False, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[Service[Documents]]:
    """Start an embedded stack. A temporary folder is removed on success, or if nothing began.

    meanwhile: called while the stack starts.
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
                documents, others = Documents(client), stack.external_url
                yield Service(documents, stack.check, stack.folder, external_url=others, token=stack.token)
    except BaseException as error:
        if began and not isinstance(error, ProblemError):  # a refused study was not trained
            again = "" if folder == DEFAULT_DIR else f" with --dir {folder}"
            print(f"Trained steps are kept: the same command{again} resumes there.", file=sys.stderr)
        elif own.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        with nullcontext() if began else report_early_interrupt():
            raise
    if own.folder is None:
        shutil.rmtree(folder, ignore_errors=True)


def _client(url: str) -> Client:
    """A client, imported after the start of the stack since the import is slow."""
    from stagetree.client import Client

    return Client(url)
