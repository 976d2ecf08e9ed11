"""The embedded stack that a command starts for itself."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.errors import exit_on_signals, report_early_interrupt
from app.cli.options import DEFAULT_DIR
from app.cli.service import Documents, Service
from app.cli.sinks import study_sinks
from app.embedded.machine import default_slots
from app.embedded.stack import Embedded, embedded
from app.settings import settings
from stagetree.errors import ProblemError

if TYPE_CHECKING:
    from stagetree.client import Client


def stack_of(
    folder: Path | None, slots: int | None, slots_per_gpu: int | None, trainers: Sequence[str], **more: Any
) -> Embedded:
    """The stack of a command's options, completed by the settings and this machine. Raises `StackFailed`.

    folder: None for a temporary one. more: further fields of `Embedded`.
    """
    per_gpu = slots_per_gpu or settings().slots_per_gpu
    slots = slots or default_slots(per_gpu)
    where = folder or Path(tempfile.mkdtemp(prefix="stagetree-"))
    return Embedded(where, slots, trainers, slots_per_gpu=per_gpu, say=partial(print, file=sys.stderr), **more)


@contextmanager
def own_stack(
    stack: Embedded,
    *,
    is_temporary: bool = False,
    await_slots: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[Service[Documents]]:
    """Start an embedded stack. is_temporary: its folder is removed on success, or if nothing began.

    meanwhile: called while the stack starts.
    """
    folder, began = stack.folder, False
    try:
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
        elif is_temporary:
            shutil.rmtree(folder, ignore_errors=True)
        with nullcontext() if began else report_early_interrupt():
            raise
    if is_temporary:
        shutil.rmtree(folder, ignore_errors=True)


def _client(url: str) -> Client:
    """A client, imported after the start of the stack since the import is slow."""
    from stagetree.client import Client

    return Client(url)
