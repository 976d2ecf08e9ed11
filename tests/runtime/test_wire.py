"""Messages arrive whole, in order, with the files that belong to them; and no reader waits for ever."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from stagetree.runtime.wire import Wire, WireTimeout, pair

Ends = tuple[Wire, Wire]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = (Wire(sock) for sock in pair())
    yield one, other
    one.close()
    other.close()


def test_files_come_with_the_message_that_they_were_sent_with(ends: Ends) -> None:
    files = [os.memfd_create(name) for name in "abc"]
    for number, fd in enumerate(files):
        os.write(fd, str(number).encode())
        ends[0].send({"before": number})
        ends[0].send({"number": number}, fd)
        os.close(fd)
    for number in range(3):
        assert ends[1].receive() == ({"before": number}, [])
        message, (fd,) = ends[1].receive() or ({}, [-1])
        assert message == {"number": number} and os.pread(fd, 9, 0) == str(number).encode()
        os.close(fd)
    assert ends[1].receive() is None


def test_a_held_message_arrives_before_the_next_one_with_its_own_files(ends: Ends) -> None:
    fds = [os.memfd_create(name) for name in "abcde"]
    for number, fd in enumerate(fds):
        os.write(fd, str(number).encode())
    ends[0].hold({"do": "log"}, fds[0], fds[1])
    assert ends[1].receive() is None
    ends[0].send({"do": "train"})
    ends[0].hold({"do": "log"}, fds[2])
    ends[0].send({"do": "load"}, *fds[3:])
    expected = [("log", ["0", "1"]), ("train", []), ("log", ["2"]), ("load", ["3", "4"])]
    for do, contents in expected:
        message, files = ends[1].receive() or ({}, [])
        assert (message["do"], [os.pread(fd, 9, 0).decode() for fd in files]) == (do, contents)
        for fd in files:
            os.close(fd)
    for fd in fds[:3]:  # the wire has closed the files that it was given
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)
    for fd in fds[3:]:
        os.close(fd)


def test_a_message_larger_than_the_buffers_arrives_complete(ends: Ends) -> None:
    text = "\udcff ü" * 2**20
    sender = threading.Thread(target=lambda: ends[0].send({"text": text}, timeout=30.0))
    sender.start()
    assert ends[1].receive(30.0) == ({"text": text}, [])
    sender.join()


def test_sending_to_a_stuck_reader_times_out(ends: Ends) -> None:
    with pytest.raises(WireTimeout, match="did not take a message"):
        ends[0].send({"text": "x" * 2**24}, timeout=0.05)


def test_silence_is_none_and_a_closed_wire_an_error(ends: Ends) -> None:
    assert ends[1].receive(0.01) is None
    ends[0].send({"last": "words"})
    ends[0].finish()
    assert ends[1].receive() == ({"last": "words"}, [])
    with pytest.raises(EOFError):
        ends[1].receive(None)
    ends[1].send({"still": "answered"})
    assert ends[0].receive() == ({"still": "answered"}, [])
    ends[1].close()
    with pytest.raises(ConnectionError):
        ends[0].send({})
    ends[0].finish()
