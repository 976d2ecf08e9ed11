"""`stagetree sinks`, and the threads that write studies to sinks for `run`, `up` and `watch --sink`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.errors import exit_on_signals
from app.cli.options import Server
from app.cli.output import redact
from app.cli.service import open_server, open_service
from stagetree.backoff import Backoff

if TYPE_CHECKING:
    from stagetree.client import Client
    from stagetree.sinks import Sink
    from stagetree.sinks.follower import Onlooker

LOOK_SECONDS = 2.0

PAUSES = Backoff(2.0, 300.0, spread=0.0)
"""The pauses before a failed sink is tried again."""

LAST_SECONDS = 60.0
"""How long a command waits at its end for the last results to be written."""

PAGE = 1000

OPEN = ("running", "paused")

Say = Callable[[str], None]


def print_to_stderr(sentence: str) -> None:
    """Print a sentence with the progress."""
    print(sentence, file=sys.stderr, flush=True)


@contextmanager
def study_sinks(url: str, positions: Path, configured: str) -> Iterator[None]:
    """Write studies' results to their sinks within the block.

    At its end, wait until completed studies are written, unless an error ends the block. configured: as
    STAGETREE_SINKS.
    """
    runner = StudySinks(url, positions, configured)
    runner.start()
    try:
        yield
        runner.finish(LAST_SECONDS)
    finally:
        runner.end()


class StudySinks(threading.Thread):
    """Finds studies with sinks until it is ended. A daemon thread.

    positions: the folder that records the progress of sinks that are not folders. configured: as STAGETREE_SINKS.
    Raises `SinkError`.
    """

    def __init__(self, url: str, positions: Path, configured: str, say: Say = print_to_stderr) -> None:
        from stagetree.sinks.addresses import Configured

        super().__init__(name="study sinks", daemon=True)
        self._configured = Configured.parse(configured)
        self._url, self._positions, self._say = url, positions, say
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._named: dict[str, tuple[str, ...]] = {}
        self._open: set[str] = set()
        self._following: dict[tuple[str, str], SinkThread] = {}

    def run(self) -> None:
        """Poll the server. An outage is reported once."""
        from stagetree.client import Client, StagetreeError

        was_away = False
        with Client(self._url, retries=0) as client:
            while not self._ended.wait(LOOK_SECONDS):
                try:
                    self.look(client)
                    was_away = False
                except StagetreeError as error:
                    if not was_away:
                        self._say(f"The sinks of studies wait: {error}")
                    was_away = True

    def look(self, client: Client) -> None:
        """Start a thread for each sink of a study that is not fully written."""
        with self._lock:
            listed = list(client.studies(limit=PAGE))
            for study in listed:
                for address in self._sinks_of(client, study.study):
                    self._follow(study.study, address, is_open=study.state in OPEN)
            self._open = {study.study for study in listed if study.state in OPEN}

    def _sinks_of(self, client: Client, study: str) -> tuple[str, ...]:
        """The study's sinks; none if it cannot be read, since it is struck or just deleted."""
        from stagetree.client import ProblemError

        if study not in self._named:
            try:
                with closing(client.events(study, limit=1)) as events:  # else a signal may be lost
                    submitted = next(events, None)
            except ProblemError:
                return ()
            spec = {} if submitted is None else submitted.data["spec"]
            self._named[study] = tuple(dict.fromkeys(self._allowed_sinks(study, spec.get("sinks", ()))))
        return self._named[study]

    def _allowed_sinks(self, study: str, named: Sequence[str]) -> Iterator[str]:
        """The addresses of the sinks that are configured here; other names are reported."""
        from stagetree.sinks import SinkError

        for sink in named:
            try:
                yield self._configured.address(sink)
            except SinkError as error:
                self._say(f"{sink} of {study} is not written: it {error}")

    def _follow(self, study: str, address: str, *, is_open: bool) -> None:
        before = self._following.get((study, address))
        if before is None or (is_open and not before.is_alive()):
            following = self._following[study, address] = SinkThread(
                self._url, study, address, self._positions, self._say, self._ended
            )
            following.start()

    def finish(self, seconds: float) -> None:
        """Wait at most `seconds` for the sinks of completed studies, and report incomplete ones."""
        from stagetree.client import Client, StagetreeError
        from stagetree.sinks.addresses import redact_address

        deadline = time.monotonic() + seconds
        try:
            with Client(self._url) as client:
                self.look(client)
        except StagetreeError as error:
            self._say(f"The sinks of studies may be incomplete: {error}")
        for (study, address), following in self._following.items():
            if study not in self._open and not following.wait(max(deadline - time.monotonic(), 0)):
                name = redact_address(address)
                self._say(f"{name} lacks a part of {study}: stagetree watch {study} --sink {name} sends the rest")

    def end(self) -> None:
        """Stop without further attempts."""
        self._ended.set()


class SinkThread(threading.Thread):
    """Writes one study to one sink, over a connection of its own."""

    def __init__(self, url: str, study: str, address: str, positions: Path, say: Say, ended: threading.Event) -> None:
        from stagetree.sinks.addresses import redact_address

        super().__init__(name=f"{redact_address(address)} of {study}", daemon=True)
        self._url, self._study, self._address, self._positions = url, study, address, positions
        self._say, self._ended = say, ended
        self._is_written = False
        self._has_tried = threading.Event()

    def run(self) -> None:
        """Retry until everything is written, the study is deleted, or the thread is ended."""
        from stagetree.client import NotFound, StagetreeError

        reported = ""
        for _ in PAUSES.attempts(wait=self._ended.wait):
            if self._ended.is_set():
                return
            self._has_tried.clear()  # an earlier failure does not count
            try:
                self._write()
                self._is_written = True
            except NotFound:
                self._is_written = True  # the study was deleted
            except Exception as error:  # a sink's library may raise anything; other sinks continue
                is_sentence = isinstance(error, StagetreeError | OSError)
                text = str(error) if is_sentence else f"{type(error).__name__}: {error}"
                if text != reported and not self._ended.is_set():
                    self._say(f"{self.name} is tried again: {text}")
                reported = text
            self._has_tried.set()
            if self._is_written:
                return

    def _write(self) -> None:
        from stagetree.client import Client
        from stagetree.sinks import follow, open_sink

        with Client(self._url) as client:
            if not self._has_got_all(client):
                follow(client, self._study, [open_sink(self._address, self._positions)], self._say)

    def _has_got_all(self, client: Client) -> bool:
        """Whether the study was written up to its present end."""
        from stagetree.sinks.addresses import progress_folder
        from stagetree.sinks.follower import end_time, ledger_path

        noted = end_time(ledger_path(progress_folder(self._address, self._positions), self._study))
        over: Any = client.study(self._study, trials=False).finished_at
        return noted is not None and noted == over

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` until an attempt ends, and return whether everything is written."""
        self._has_tried.wait(seconds)
        return self._is_written


@contextmanager
def write_to_sinks(
    sinks: Sequence[str], study: str, server: str | None, dir: Path | None
) -> Iterator[Callable[[], None]]:
    """Write a study to sinks in the background; yields a check that raises a sink's error.

    The end of the block waits until everything is written, unless an error ends it. Raises `SinkError`.
    """
    following = [SinksThread(_open_option(address), study, server, dir) for address in sinks]

    def check() -> None:
        for each in following:
            each.check()

    for each in following:
        each.start()
    yield check
    for each in following:
        each.join()
    check()


def _open_option(address: str) -> Sink | Onlooker:
    """The sink of an option. Raises `SinkError`."""
    from stagetree.sinks import SinkError, open_sink

    try:
        return open_sink(address)
    except SinkError as error:
        raise SinkError(f"--to: {error}") from None


class SinksThread(threading.Thread):
    """A daemon thread that ends with the study or with the first error."""

    def __init__(self, sink: Sink | Onlooker, study: str, server: str | None, dir: Path | None) -> None:
        super().__init__(name="sink", daemon=True)
        self._sink, self._study, self._place = sink, study, (server, dir)
        self._error: BaseException | None = None

    def run(self) -> None:
        """Follow the study over a connection of its own."""
        from stagetree.sinks import follow

        try:
            with open_service(*self._place) as service:
                follow(service.client, self._study, [self._sink], print_to_stderr)
        except BaseException as error:  # raised by `check`
            self._error = error

    def check(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self._error is not None:
            raise self._error


def sinks(server: Server = None) -> None:
    """Write the results of studies to the sinks that their study files name, until it is stopped.

    Folders are made here, and .stagetree/sinks here lists the written records: restart it in the same folder.

    \b
    Example:  stagetree sinks --server http://gpu-box:8000
    """
    from app.settings import settings
    from stagetree.sinks.addresses import POSITIONS

    with open_server(server) as service, exit_on_signals():
        print(f"Writing the sinks of the studies at {redact(service.client.url)}. Ctrl-C stops it.", flush=True)
        runner = StudySinks(service.client.url, POSITIONS, settings().sinks)
        try:
            runner.run()
        finally:
            runner.end()
