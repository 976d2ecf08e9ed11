"""A process: its logs, its end in time, its garbage collector, which leaves large plans alone, and computations apart.

The collector looks at new objects, often, and never at all there is: a pass over a plan of 100,000 trials takes
seconds. New objects are few, but left to itself the collector lets them become many: as many objects go as come.

Log files are bounded, and their lines look as `STAGETREE_LOG_FORMAT` says: text, or one JSON object a line. Fields:
`time`, `level`, `logger`, `message`, `error` with a traceback, and the subject of the line where that is known:
`study`, `trial`, `stage`, `chain`, `fence`, `plan`, `slot`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pythonjsonlogger.json import JsonFormatter
import gc
import multiprocessing
import os
import pickle
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from threading import Thread
from time import perf_counter
from typing import Any, TypeVar, cast

EXIT_CODE = 70


def end_within(seconds: float, last: Callable[[], None] = lambda: None) -> None:
    """End this process after so many seconds if it is still there; `last` is called before. Returns at once."""

    def wait() -> None:
        time.sleep(seconds)
        print(f"not at an end {seconds:g} s after it was asked to: ends now", file=sys.stderr, flush=True)
        last()
        os._exit(EXIT_CODE)

    Thread(target=wait, name="grace", daemon=True).start()


Key = TypeVar("Key")
Value = TypeVar("Value")

FULL_EVERY = 20
LONG_SECONDS = 0.02
"""A pass that takes longer delays small requests: no thread runs beside it."""

_passes = count(1)


class TrackedDict(dict[Key, Value]):
    """A large dict of tuples of numbers, of names: what the collector need not look at, all the same.

    A plain dict is left alone as long as nothing in it can be part of a cycle, and is new to the collector, with all
    that is in it, each time that something is put into it which might; so that it is gone through again and again.
    One of a class of its own is looked at from the beginning, and set aside once.
    """


def freeze_survivors() -> None:
    """From here on, what outlives a full pass is not looked at again.

    It is still freed when its last reference goes; only what is in a cycle then stays until the process ends.
    """
    gc.callbacks.append(_freeze)


@contextmanager
def no_long_pass_twice(seconds: float = LONG_SECONDS) -> Iterator[None]:
    """In the block, what outlives a full pass of more than so many seconds is not looked at again.

    For a process that answers many at once: passes that are short may find cycles that are about to be garbage.
    """
    began = [0.0]

    def watch(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            began[0] = perf_counter()
        elif info["generation"] == 2 and perf_counter() - began[0] > seconds:
            gc.freeze()

    gc.callbacks.append(watch)
    try:
        yield
    finally:
        gc.callbacks.remove(watch)


def collect_young() -> None:
    """Free what became garbage since the last time; now and then, since the last full pass."""
    gc.collect(1 if next(_passes) % FULL_EVERY else 2)


def _freeze(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()


# ------------------------------------------------------------------------------------------------ computed elsewhere

Result = TypeVar("Result")


class TooMuch(Exception):
    """A computation took more time or memory than it may; the message is one sentence."""


@dataclass(frozen=True)
class Bounds:
    """Of one computation. seconds: of a processor; on the clock it may take twice as long. bytes: of memory, beyond
    what the code itself needs."""

    seconds: int = 60
    bytes: int = 2 * 2**30


BOUNDS = Bounds()

PRELOADED = ["app.simulation.what_if", "app.search.replay"]
"""Modules that are imported once, for all such processes."""


def compute_apart(do: Callable[..., Result], *given: Any, bounds: Bounds = BOUNDS) -> Result:
    """The result of a pure function of a module, in a process of its own. Raises `TooMuch`, and its exceptions."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, do.__module__])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_compute, args=(theirs, bounds, do, given), daemon=True)
    process.start()
    theirs.close()
    try:
        answer = ours.recv_bytes() if ours.poll(2 * bounds.seconds) else b""
    except EOFError:  # it was ended where it stood
        answer = b""
    finally:
        process.kill()
        process.join()
        ours.close()
    is_good, value = pickle.loads(answer) if answer else (False, TooMuch(_too_much(bounds)))
    if not is_good:
        raise value
    return cast(Result, value)


def _compute(answers: Connection, bounds: Bounds, do: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """In the process that is made for it."""
    with suppress(OSError):  # where there is no /proc, nothing says how much the code itself needs
        limit = _address_space() + bounds.bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (bounds.seconds, bounds.seconds))
    try:
        answer = (True, do(*args))
    except MemoryError:
        answer = (False, TooMuch(_too_much(bounds)))
    except Exception as error:
        answer = (False, error)
    answers.send_bytes(pickle.dumps(answer))


def _address_space() -> int:
    """Bytes that this process has mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _too_much(bounds: Bounds) -> str:
    return f"this takes more than {bounds.seconds} s of a processor, or {bounds.bytes / 2**30:g} GiB of memory"


logger = logging.getLogger(__name__)

MOST_BYTES = 64 * 2**20
HEAD_BYTES, TAIL_BYTES = 2**20, 16 * 2**20
"""A file with more than the most keeps its head and its tail: a loop that prints could fill the disk of the log."""


FIELDS = ("levelname", "name", "message")
RENAMED = {"levelname": "level", "name": "logger", "exc_info": "error", "timestamp": "time"}
CELERYS_OWN = ("data", "task_id", "task_name", "color_message")
"""What libraries add to their records, and no reader looks for."""


def write_json(loggers: Iterable[logging.Logger]) -> None:
    """Give what these loggers write, the form of JSON."""
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        handler.setFormatter(json_lines())


def json_lines() -> JsonFormatter:
    """Times are in UTC, as ISO 8601."""
    from pythonjsonlogger.json import JsonFormatter  # slow to import, and seldom wanted

    skipped = [*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", *CELERYS_OWN]
    return JsonFormatter(FIELDS, rename_fields=RENAMED, timestamp=True, reserved_attrs=skipped)


def shorten(path: Path) -> None:
    """Leave out the middle of a file that is longer than the most. Its writers append, and go on."""
    try:
        if (size := path.stat().st_size) <= MOST_BYTES:
            return
        with path.open("r+b") as file:
            head = file.read(HEAD_BYTES)
            file.seek(size - TAIL_BYTES)
            tail = file.read().partition(b"\n")[2]
            left_out = size - len(head) - len(tail)
            file.seek(len(head))
            file.write(f"\n--- {left_out:,} bytes are left out: {MOST_BYTES:,} are kept at most\n".encode() + tail)
            file.truncate()
    except OSError as problem:
        logger.warning("%s is not shortened: %s", path, problem)


CGROUP = Path("/sys/fs/cgroup/memory.max")
"""What a container may have, in its own view."""


def memory_here() -> int:
    """The bytes of memory of this machine, or of the container that this process is in."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(CGROUP.read_text()))
    except (OSError, ValueError):  # none, or "max"
        return machine


def last_words(log: Path) -> str:
    """What a process said last, to go behind a sentence; nothing of an empty log."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""
