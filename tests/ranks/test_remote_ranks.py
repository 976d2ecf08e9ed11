"""Ranks on other machines, started by their workers: the same bits, a common end, and only callers with the secret.

A thread with its own warm interpreter and connections plays the other machine; `tests/e2e/test_gangs_of_hosts.py` has
whole workers.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread, Timer
from types import SimpleNamespace
from typing import Any

import pytest
from test_trainer_group import ADDED, HP, PATIENT, build, state, train_until

from app.domain.chain_assignment import ChainAssignment
from app.domain.events import Stage
from app.events.memory import MemoryRecords
from app.registry import TrainerSource
from app.workers.remote_ranks import RankListener, RemoteWire, connect_rank, interface_of, listen
from app.workers.slot.lending import Lending
from app.workers.slot.retry import RetryPolicy, monotonic
from app.workers.state import State
from app.workers.trainer_group import TrainerGroup
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm
from stagetree.runtime.checkpoints.weight_files import join_parts
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.wire import HEAD
from stagetree.system.files import anonymous_file
from tests.runtime.moods import are_gone

SECRET, CHAIN = "they know", "chain"
DIGITS = str(Path(ADDED).with_name("in_shards.py"))
FILES = {"added": TrainerSource(ADDED, "1"), "in_shards": TrainerSource(DIGITS, "1")}


class Machine:
    """Slot `b-gpu0` of another machine, which is lent to the chain of `a-gpu0`. started: its ranks, in order."""

    def __init__(self, address: str, trainer: str = "added") -> None:
        self.records, self.retry, self._warm = MemoryRecords(), RetryPolicy(), Warm()
        self.started = list[TrainerProcess]()
        self.sources = FILES
        for slot in ("a-gpu0", "b-gpu0"):
            with self.records.write() as rows:
                rows.slots.take(slot, "its", instead_of=None, device="cpu", host="here", pid=1, kind="cpu")
        work = {"plan": "p", "trainer": trainer, "trainer_version": "1", "trainer_args": {}, "seed": 0}
        stage = Stage(node="n", start=0, end=9, study="s")  # type: ignore[arg-type]
        work |= {"study": "s", "trial": 0, "hp": HP, "stages": (stage,), "resume": None, "members": ("b-gpu0",)}
        meeting = {"address": address, "secret": SECRET}
        with self.records.write() as rows:
            rows.chains.assign(CHAIN, "p", "a-gpu0", ChainAssignment(**work, meeting=meeting), 60.0)
        given = SimpleNamespace(records=self.records, start=self._start, sources=lambda: self.sources, clock=monotonic)
        self.ended = 0
        trainer = SimpleNamespace(end_process=self._end, close=self._end)
        me = SimpleNamespace(slot="b-gpu0", owner="its")
        slot = SimpleNamespace(me=me, dependencies=given, trainer=trainer, retry=self.retry)
        self.lending = Lending(slot, lambda: False, lambda: None)  # type: ignore[arg-type]
        self._thread = Thread(target=self.lending.serve, args=[CHAIN])
        self._thread.start()

    def _end(self) -> None:
        self.ended += 1

    def _start(self, *, rank: dict[str, Any]) -> TrainerProcess:
        self.started.append(TrainerProcess.start(self._warm, rank=rank))
        return self.started[-1]

    def take_back(self) -> None:
        """End the chain."""
        with self.records.write() as rows:
            rows.chains.end(CHAIN)

    def is_free(self) -> bool:
        self._thread.join(60.0)
        return not self._thread.is_alive()

    def close(self) -> None:
        self.retry.close()
        assert self.is_free()
        self._warm.close()


@pytest.fixture
def door() -> RankListener:
    return RankListener("127.0.0.1")


@pytest.fixture
def machine(door: RankListener) -> Iterator[Machine]:
    machine = Machine(door.address)
    yield machine
    machine.close()


def group(warm: Warm, door: RankListener) -> TrainerGroup:
    return TrainerGroup.start(
        warm, ranks=2, late_seconds=60.0, far=door.accept_ranks(SECRET, ["b-gpu0"]), host=door.host
    )


@pytest.mark.slow
def test_a_remote_rank_has_the_same_bits_twice(warm: Warm, door: RankListener, machine: Machine) -> None:
    with TrainerProcess.start(warm) as one:
        end = train_until(build(one), 9)
    with group(warm, door) as first:
        build(first)
        first.train(HP, 4, deadline=PATIENT)
        saved = first.save(deadline=PATIENT)
        assert first.call(PATIENT).evaluate().metrics["world"] == 2
    with group(warm, door) as second:  # its worker has connected again
        build(second).call(PATIENT).load(fds=saved.lend(), hp=HP, step=4)
        saved.close()
        second.train(HP, 9, deadline=PATIENT)
        assert state(second) == end
    assert len(machine.started) == 2
    assert are_gone(*(each.pid for each in machine.started))


@pytest.mark.slow
def test_divided_states_travel_to_a_remote_machine_and_back(warm: Warm, door: RankListener) -> None:
    """A single process resumes from them with the same bits."""
    hp, how = {"lr": 0.01, "bs": 30}, {"args": {}, "seed": 0, "shards": 4, "parallel": "fsdp"}
    machine, saved = Machine(door.address, "in_shards"), State.from_bytes(b"")
    with TrainerProcess.start(warm) as one:
        one.call(PATIENT).build(file=DIGITS, name="in_shards", **how)
        one.train(hp, 6, deadline=PATIENT)
        with closing(one.save(deadline=PATIENT)) as alone:
            expected = b"".join(join_parts([each.view() for each in alone.images]))
        try:
            for until in (3, 5):
                with group(warm, door) as both:
                    both.call(PATIENT).build(file=DIGITS, name="in_shards", **how)
                    if until > 3:
                        both.call(PATIENT).load(fds=saved.lend(), hp=hp, step=3)
                    both.train(hp, until, deadline=PATIENT)
                    saved.close()
                    saved = both.save(deadline=PATIENT)
                    assert len(saved.parts) == 1
        finally:
            machine.take_back()
            machine.close()
        one.call(PATIENT).load(fds=saved.lend(), hp=hp, step=5)
        saved.close()
        one.train(hp, 6, deadline=PATIENT)
        with closing(one.save(deadline=PATIENT)) as alone:
            assert b"".join(join_parts([each.view() for each in alone.images])) == expected


@pytest.mark.slow
def test_a_machine_that_is_lost_while_parts_are_saved_leaves_no_state(warm: Warm, door: RankListener) -> None:
    hp, how = {"lr": 0.01, "bs": 30}, {"args": {}, "seed": 0, "shards": 4, "parallel": "fsdp"}
    machine = Machine(door.address, "in_shards")
    try:
        with group(warm, door) as both:
            both.call(PATIENT).build(file=DIGITS, name="in_shards", **how)
            both.train(hp, 2, deadline=PATIENT)
            os.kill(machine.started[0].pid, signal.SIGSTOP)  # so that the leader completes its part first
            killing = Timer(1.0, os.kill, (machine.started[0].pid, signal.SIGKILL))
            killing.start()
            with pytest.raises(TrainerFailed) as failed:
                both.save(deadline=PATIENT)
            assert failed.value.kind == "rank"
            killing.join()
    finally:
        machine.take_back()
        machine.close()


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_all(warm: Warm, door: RankListener, machine: Machine) -> None:
    with group(warm, door) as both:
        build(both)
        os.kill(machine.started[0].pid, signal.SIGKILL)
        with pytest.raises(TrainerFailed, match="rank") as failed:
            both.train(HP, 10**9, deadline=PATIENT)
        assert failed.value.kind == "rank", failed.value.error
    assert are_gone(both.leader.pid)


@pytest.mark.slow
def test_a_users_error_on_a_remote_rank_is_reported_by_the_leader(
    warm: Warm, door: RankListener, machine: Machine
) -> None:
    with group(warm, door) as both:
        build(both, mishap="raise", call="train", who=1)
        with pytest.raises(TrainerFailed, match="the user's own") as failed:
            both.train(HP, 9, deadline=PATIENT)
        assert (failed.value.kind, "In rank 1 of 2" in failed.value.error) == ("exception", True)
    assert are_gone(machine.started[0].pid)


@pytest.mark.slow
def test_the_end_of_a_chain_ends_its_remote_rank(warm: Warm, door: RankListener, machine: Machine) -> None:
    """Even while the other side keeps its connection."""
    with group(warm, door) as both:
        build(both)
        machine.take_back()
        assert machine.is_free()
        assert are_gone(machine.started[0].pid)


def test_a_message_that_comes_too_late_ends_no_process(machine: Machine) -> None:
    """Between two stages the slot has the model of another chain."""
    machine.take_back()
    assert machine.is_free()
    before = machine.ended
    machine.lending.serve(CHAIN)
    assert machine.ended == before


@pytest.mark.slow
def test_a_worker_with_other_code_is_no_rank(warm: Warm, door: RankListener, machine: Machine) -> None:
    machine.sources = {"added": TrainerSource(ADDED, "2")}
    with group(warm, door) as both, pytest.raises(TrainerFailed) as failed:
        build(both)
    assert failed.value.kind == "rank"
    assert machine.is_free()


def test_the_wait_for_a_missing_rank_is_bounded(door: RankListener) -> None:
    with pytest.raises(TrainerFailed, match=r"slot b-gpu0 did not come to 127\.0\.0\.1:\d+ within 0 s") as failed:
        door.accept_ranks(SECRET, ["b-gpu0"], seconds=0.2)
    assert failed.value.kind == "rank"


def test_only_callers_with_the_secret_are_accepted(door: RankListener) -> None:
    host, _, port = door.address.rpartition(":")
    noise = socket.create_connection((host, int(port)))
    noise.sendall(b"GET / HTTP/1.1\r\n\r\n")
    noise.close()
    strangers = [connect_rank(door.address, "a guess", "b-gpu0"), connect_rank(door.address, SECRET, "c-gpu0")]
    mine = connect_rank(door.address, SECRET, "b-gpu0")
    (rank,) = door.accept_ranks(SECRET, ["b-gpu0"], seconds=30.0)
    assert rank.slot == "b-gpu0"
    for wire in (wire for pair in (*strangers, mine) for wire in pair):
        wire.close()
    rank.close(0.0)


@pytest.mark.parametrize(("host", "bound"), [("127.0.0.1", "127.0.0.1"), ("192.0.2.7", "0.0.0.0")])
def test_the_door_listens_on_the_local_interface_of_its_address(host: str, bound: str) -> None:
    with listen(host) as sock:
        assert sock.getsockname()[0] == bound


@pytest.mark.parametrize(("length", "files"), [(2**31, 0), (10, 1)])
def test_a_stranger_can_store_nothing(door: RankListener, length: int, files: int) -> None:
    host, _, port = door.address.rpartition(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(HEAD.pack(length, files) + b"x" * 100)
        with pytest.raises(TrainerFailed, match="did not come"):
            door.accept_ranks(SECRET, ["b-gpu0"], seconds=0.5)
        assert stranger.recv(1) == b"", "it was disconnected at once"


@pytest.mark.parametrize("size", [0, 1, 2**16 + 7, 5 * 2**20])
def test_a_file_is_sent_with_its_content(size: int) -> None:
    one, other = (RemoteWire(sock) for sock in tcp_pair())
    content = os.urandom(size)
    fd = anonymous_file(0)
    os.write(fd, content)
    sender = Thread(target=lambda: [one.send({"n": n}, fd, fd, timeout=30.0) for n in range(2)])
    sender.start()
    for number in range(2):
        arrived = other.receive(30.0)
        assert arrived is not None and arrived[0] == {"n": number}
        for found in arrived[1]:
            with open(found, "rb") as file:
                assert file.read() == content
    sender.join()
    os.close(fd)
    one.close()
    with pytest.raises(EOFError):
        other.receive(30.0)
    other.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


@pytest.mark.parametrize(("host", "found"), [("127.0.0.1", "lo"), ("192.0.2.7", ""), ("no.such.host.invalid", "")])
def test_the_interface_of_a_host_is_known_by_its_address(host: str, found: str) -> None:
    assert interface_of(host) == found
