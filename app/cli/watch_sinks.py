"""What `stagetree watch --to` does beside the watching: sinks follow the study in a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagetree.sinks import Sink


@contextmanager
def writing_to(sinks: Sequence[str], study: str, server: str | None, dir: Path | None) -> Iterator[Callable[[], None]]:
    """Write what happens in a study to sinks, in the background; what is given raises if that has failed.

    At the end of the block, it is waited for until all is written. A block that is left by an error leaves the sinks
    where they are: they go on from there the next time. Raises `SinkError`.
    """
    following = SinksThread([_opened(address) for address in sinks], study, server, dir)
    if not sinks:
        yield following.check
        return
    following.start()
    yield following.check
    following.join()
    following.check()


def _opened(address: str) -> Sink:
    """The sink of an option. Raises `SinkError`."""
    from stagetree.sinks import SinkError, open_sink

    try:
        return open_sink(address)
    except SinkError as error:
        raise SinkError(f"--to: {error}") from None


class SinksThread(threading.Thread):
    """A thread that ends with the study, or with the first error; the end of the process does not wait for it."""

    def __init__(self, sinks: Sequence[Sink], study: str, server: str | None, dir: Path | None) -> None:
        super().__init__(name="sinks", daemon=True)
        self._sinks, self._study, self._place = sinks, study, (server, dir)
        self._error: BaseException | None = None

    def run(self) -> None:
        """Follow the study over a connection of its own."""
        from app.cli import stacks
        from stagetree.sinks import follow

        try:
            with stacks.reading(*self._place) as service:
                follow(service.client, self._study, self._sinks)
        except BaseException as error:  # `check` raises it where it can be told
            self._error = error

    def check(self) -> None:
        """Raises what ended the thread, if something went wrong."""
        if self._error is not None:
            raise self._error
