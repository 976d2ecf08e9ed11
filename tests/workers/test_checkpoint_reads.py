"""A checkpoint to begin with is waited for, and is given up only when the store says again and again that it is bad."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn, cast

import pytest
from faulty import Clock

from app.domain.chain_assignment import ResumePoint
from app.storage.object_store import StoreUnavailable
from app.workers.slot.checkpoint_store import (
    TRIES_BEFORE_NOTE,
    CheckpointReader,
    CheckpointStore,
    CheckpointUnreadable,
    ReadOnce,
)
from app.workers.slot.retry import RetryPolicy
from app.workers.slot.slot_status import SlotStatus
from app.workers.state import State

AWAY, BAD, FULL = StoreUnavailable("no route"), CheckpointUnreadable("it is not there"), OSError("no memory")
STRIKE = 30.0


class Reading:
    """A store that raises one error after the other, and returns the state at last."""

    def __init__(self, *errors: Exception) -> None:
        self.clock, self.notes, self.said = Clock(), SlotStatus(), list[str | None]()
        self._errors = iter(errors)
        patience = RetryPolicy(self.clock.wait)
        self.reader = CheckpointReader(cast(CheckpointStore, self), patience, self.notes, self.clock.now, STRIKE)

    def read(self, key: str, sha256: str, parts: object = ()) -> State:
        self.said.append(self.notes.text)
        if (error := next(self._errors, None)) is not None:
            raise error
        return State.from_bytes(b"state")

    def run(self) -> State:
        return self.reader.read(ResumePoint(node="n", step=4, key="key", sha256=""), lambda: None)


@pytest.mark.parametrize("error", [AWAY, FULL, BAD])
def test_temporary_outages_are_waited_for_and_reported_once(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    reading = Reading(*[error] * 6)
    reading.run().close()
    assert caplog.messages == [f"waiting for a checkpoint: {error}"]
    waits = f"waits for the store: {error}"
    assert reading.said == [None] * TRIES_BEFORE_NOTE + [waits] * (7 - TRIES_BEFORE_NOTE)
    assert reading.notes.text is None


def seconds_until_it_is_given_up(errors: Iterable[Exception]) -> float:
    reading = Reading(*errors)
    begun_at = reading.clock.now()
    with pytest.raises(CheckpointUnreadable):
        reading.run()
    return reading.clock.now() - begun_at


def test_lasting_failures_are_given_up() -> None:
    assert STRIKE <= seconds_until_it_is_given_up([BAD] * 100) < 2 * STRIKE


def test_whoever_was_ill_in_between_is_believed_after_that_while_anew() -> None:
    ill = [BAD] * 8 + [AWAY] + [BAD] * 100
    assert seconds_until_it_is_given_up(ill) > seconds_until_it_is_given_up([BAD] * 8 + [BAD] * 100)


def test_unneeded_states_are_not_waited_for() -> None:
    class Unwanted(Exception):
        pass

    def check() -> NoReturn:
        raise Unwanted

    reading = Reading(*[AWAY] * 1000)
    with pytest.raises(Unwanted):
        reading.reader.read(ResumePoint(node="n", step=4, key="key", sha256=""), check)
    assert reading.said == []


def test_a_shared_first_state_is_read_once_and_held_until_all_began() -> None:
    read = list[State]()

    class Reader:
        def read(self, resume: ResumePoint, check: Callable[[], None]) -> State:
            read.append(State.from_bytes(resume.key.encode()))
            return read[-1]

    reader = ReadOnce(Reader())
    states = [reader.read(ResumePoint("n", 4, key, ""), lambda: None) for key in ("one", "two", "one")]
    assert [bytes(state.view()) for state in states] == [b"one", b"two", b"one"]
    reader.close()
    assert [state.fd for state in read] == [-1, -1]
    for state in states:
        state.close()
