"""`stagetree sinks`, and the threads that write studies to sinks for `run`, `up` and `watch --to`."""

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
"""How long until a sink that failed is tried again."""

LAST_SECONDS = 60.0
"""How long a command waits at its end for what its studies measured last."""

PAGE = 1000

OPEN = ("running", "paused")

Say = Callable[[str], None]


def print_to_stderr(sentence: str) -> None:
    """Say it where progress is said."""
    print(sentence, file=sys.stderr, flush=True)


@contextmanager
def study_sinks(url: str, positions: Path, configured: str, say: Say = print_to_stderr) -> Iterator[None]:
    """In the block, what studies measure is written to the sinks that they name.

    At its end, what studies that are over have measured is waited for. A block that is left by an error leaves the
    sinks where they are. configured: as STAGETREE_SINKS.
    """
    runner = StudySinks(url, positions, configured, say)
    runner.start()
    try:
        yield
        runner.finish(LAST_SECONDS)
    finally:
        runner.end()


class StudySinks(threading.Thread):
    """Looks for studies that name sinks, until it is ended; the end of the process does not wait for it.

    positions: the folder in which it is noted what was written to sinks that are no folders. configured: as
    STAGETREE_SINKS. Raises `SinkError`.
    """

    def __init__(self, url: str, positions: Path, configured: str, say: Say = print_to_stderr) -> None:
        from stagetree.sinks.addresses import Configured

        super().__init__(name="study sinks", daemon=True)
        self._configured = Configured.of(configured)
        self._url, self._positions, self._say = url, positions, say
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._named: dict[str, tuple[str, ...]] = {}
        self._open: set[str] = set()
        self._following: dict[tuple[str, str], SinkThread] = {}

    def run(self) -> None:
        """Look now and then. A server that is away is asked again; that it was away is said once."""
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
        """Have every sink followed that a study names, and that has not got all."""
        with self._lock:
            listed = list(client.studies(limit=PAGE))
            for study in listed:
                for address in self._sinks_of(client, study.study):
                    self._follow(study.study, address, is_open=study.state in OPEN)
            self._open = {study.study for study in listed if study.state in OPEN}

    def _sinks_of(self, client: Client, study: str) -> tuple[str, ...]:
        """The sinks that a study names; none while it cannot be looked at: it is struck, or just deleted."""
        from stagetree.client import ProblemError

        if study not in self._named:
            try:
                with closing(client.events(study, limit=1)) as events:  # else a signal may be lost
                    submitted = next(events, None)
            except ProblemError:
                return ()
            spec = {} if submitted is None else submitted.data["spec"]
            self._named[study] = tuple(dict.fromkeys(self._allowed(study, spec.get("sinks", ()))))
        return self._named[study]

    def _allowed(self, study: str, named: Sequence[str]) -> Iterator[str]:
        """The addresses of the sinks that are configured here; the others are reported."""
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
        """Wait for so long for sinks of studies that are over, and say which have not got all."""
        from stagetree.client import Client, StagetreeError
        from stagetree.sinks.addresses import shown

        deadline = time.monotonic() + seconds
        try:
            with Client(self._url) as client:
                self.look(client)
        except StagetreeError as error:
            self._say(f"The sinks of studies may be incomplete: {error}")
        for (study, address), following in self._following.items():
            if study not in self._open and not following.wait(max(deadline - time.monotonic(), 0)):
                name = shown(address)
                self._say(f"{name} lacks a part of {study}: stagetree watch {study} --to {name} sends the rest")

    def end(self) -> None:
        """Nothing is tried again."""
        self._ended.set()


class SinkThread(threading.Thread):
    """Follows one study for one sink until it is over, over a connection of its own."""

    def __init__(self, url: str, study: str, address: str, positions: Path, say: Say, ended: threading.Event) -> None:
        from stagetree.sinks.addresses import shown

        super().__init__(name=f"{shown(address)} of {study}", daemon=True)
        self._url, self._study, self._address, self._positions = url, study, address, positions
        self._say, self._ended = say, ended
        self._is_written = False
        self._has_tried = threading.Event()

    def run(self) -> None:
        """Try until all is written, the study is deleted, or nobody wants it any more."""
        from stagetree.client import NotFound, StagetreeError

        reported = ""
        for _ in PAUSES.attempts(wait=self._ended.wait):
            if self._ended.is_set():
                return
            self._has_tried.clear()  # an earlier failure is none at the end
            try:
                self._write()
                self._is_written = True
            except NotFound:
                self._is_written = True  # deleted: nobody asks for it
            except Exception as error:  # whatever the sink's library raises, only this sink has it
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
        """Whether it was written up to the end at which the study is now."""
        from stagetree.sinks.addresses import noted_in
        from stagetree.sinks.follower import completed_at, path_in

        noted = completed_at(path_in(noted_in(self._address, self._positions), self._study))
        over: Any = client.study(self._study, trials=False).finished_at
        return noted is not None and noted == over

    def wait(self, seconds: float) -> bool:
        """Wait until it has written all or has failed, for so long; whether it has written all."""
        self._has_tried.wait(seconds)
        return self._is_written


@contextmanager
def write_to_sinks(
    sinks: Sequence[str], study: str, server: str | None, dir: Path | None
) -> Iterator[Callable[[], None]]:
    """Write what happens in a study to sinks, in the background; what is given raises if that has failed.

    At the end of the block, it is waited for until all is written. A block that is left by an error leaves the sinks
    where they are: they go on from there the next time. Raises `SinkError`.
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
    """A thread that ends with the study, or with the first error; the end of the process does not wait for it."""

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
        except BaseException as error:  # `check` raises it where it can be told
            self._error = error

    def check(self) -> None:
        """Raises what ended the thread, if something went wrong."""
        if self._error is not None:
            raise self._error


def sinks(server: Server = None) -> None:
    """Write the results of studies to the sinks that their study files name, until it is stopped.

    Folders are made here, and .stagetree/sinks here records what was written: restart it in the same folder.

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
