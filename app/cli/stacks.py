"""Which service a command talks to: a server that was named, or an embedded stack for as long as the command runs."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from app.cli.errors import USAGE, fail
from app.embedded import Embedded, embedded
from app.registry import describe
from stagetree.client import Client

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Service:
    """A client of a running service; `check` raises if the service has died; `folder` is that of an embedded one."""

    client: Client
    check: Callable[[], None]
    folder: Path | None = None


@contextmanager
def server(url: str | None) -> Iterator[Service]:
    """The service at a URL."""
    with Client(url) as client:
        yield Service(client, lambda: None)


@contextmanager
def own_stack(
    slots: int, folder: Path | None, trainers: Sequence[str], *, port: int = 0, await_slots: bool = False
) -> Iterator[Service]:
    """An embedded stack. A temporary folder is removed when all went well, and named when not."""
    where = folder or Path(tempfile.mkdtemp(prefix="stagetree-"))
    try:
        stack = Embedded(where, slots, trainers, port)
        with _ended_in_order(), embedded(stack, await_slots=await_slots), Client(stack.url) as client:
            yield Service(client, stack.check, stack.folder)
    except BaseException:
        if (where / "stagetree.db").exists():
            print(f"What was trained is kept: the same command with --dir {where} goes on from there.", file=sys.stderr)
        elif folder is None:
            shutil.rmtree(where, ignore_errors=True)
        raise
    if folder is None:
        shutil.rmtree(where, ignore_errors=True)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """`kill`, or a terminal that is closed, ends the block like an exception, so that nothing is left behind."""

    def end(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def trainer_files(given: Sequence[str], beside: Path | None = None) -> list[str]:
    """The files to register: those given, `trainer.py` beside the study file, and the examples of this checkout.

    A file that nobody named is left out if it repeats a trainer's name. Raises `TrainerFileError`.
    """
    files, names = list(given), set(describe(given))
    implied = [beside.parent / "trainer.py"] if beside else []
    for path in [*implied, *sorted(EXAMPLES.glob("*/trainer.py"))]:
        if path.exists() and not names & (found := describe([str(path)])).keys():
            files.append(str(path))
            names |= found.keys()
    return files


def check_trainer(name: str, files: Sequence[str]) -> None:
    """End with a sentence if no file has the trainer."""
    known = describe(files)
    if name not in known:
        fail(
            f"trainer: must be one of {', '.join(sorted(known))}, got {name!r}; register yours with --trainers FILE.py",
            USAGE,
        )
