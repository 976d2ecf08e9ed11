from __future__ import annotations

from threading import Event as Flag

import pytest
from stacks import wait_for

from app.workers import threads as module
from app.workers.threads import Notifier


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last words are waited for, however long they take."""
    monkeypatch.setattr(module, "CLOSE_SECONDS", 60.0)


def telling() -> tuple[Notifier, list[int], Flag]:
    """A notifier in the middle of its first message, its messages, and the event that lets it end one."""
    told, may_end = list[int](), Flag()

    def tell() -> None:
        told.append(1)
        may_end.wait(60)

    notifier = Notifier(tell)
    notifier.notify()
    wait_for("the first word", lambda: told)
    return notifier, told, may_end


def test_many_calls_while_it_tells_are_one_more() -> None:
    notifier, told, may_end = telling()
    for _ in range(100):
        notifier.notify()
    may_end.set()
    wait_for("the second word", lambda: len(told) == 2)
    notifier.close()
    assert len(told) == 3  # the last words


def test_the_last_words_come_also_where_it_is_closed_while_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.0)
    notifier, told, may_end = telling()
    notifier.close()
    may_end.set()
    wait_for("the last words", lambda: len(told) == 2)


def test_the_notifier_survives_any_error() -> None:
    told = list[int]()

    def tell() -> None:
        told.append(1)
        raise ValueError("strange")

    notifier = Notifier(tell)
    for count in (1, 2):
        notifier.notify()
        wait_for("another word", lambda count=count: len(told) == count)
    notifier.close()


def test_the_slot_does_not_wait_for_a_hanging_broker() -> None:
    never = Flag()
    notifier = Notifier(lambda: never.wait(60) and None)
    notifier.notify()
    notifier.notify()  # returns
    never.set()
    notifier.close()
