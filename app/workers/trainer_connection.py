"""The connection to a trainer's process: commands, their answers, deadlines, and how its end is noticed.

A process that hangs, holds the interpreter lock, breaks its device or leaks memory is killed, and a fresh one
continues.

Runs on: the thread that trains; `kill` on any.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import Any

from app.workers.warm import ForkRequest
from stagetree.runtime.commands import NOTHING, Json, read_reply
from stagetree.runtime.failures import TrainerFailed, ending
from stagetree.runtime.wire import Message, Wire, WireTimeout
from stagetree.system.files import anonymous_file

POLL_SECONDS = 0.1
"""How often the slot runs its own checks while a trainer is silent."""

SEND_SECONDS = 10.0
FORK_SECONDS = 30.0
"""A template only has to fork, which takes milliseconds."""

CLOSE_SECONDS = 1.0
"""How long a process that is no longer needed may take to end."""

KILL_SECONDS = 10.0
"""A killed process is gone in milliseconds, unless it waits for a driver or a disk."""

END_SECONDS = 5.0
"""How long a process may take, on a busy machine, from closing its connection to reporting its exit code."""

STACK_SECONDS = 1.0
LONGEST_STACK = 2**16


STEP_SECONDS = 60.0
"""Every step after the first may take this long, however short the others were."""


@dataclass(slots=True)
class Deadline:
    """Learned from earlier calls of the same kind: `factor` times the longest one, but at least `floor`.

    floor, longest: seconds.
    first: before anything was measured; by default as the floor.
    """

    floor: float
    factor: float = 10.0
    longest: float = 0.0
    first: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.floor, self.factor * self.longest if self.longest else self.first)

    def limit_steps(self, *, is_patient: bool) -> Deadline:
        """Use measurements of earlier steps. is_patient: each step may take as long as the first."""
        self.first = self.first or self.floor
        self.floor = self.first if is_patient else min(STEP_SECONDS, self.first)
        return self

    def observe(self, seconds: float) -> None:
        """A message came after this time."""
        self.longest = max(self.longest, seconds)


Look = Callable[[], None]


def nothing() -> None:
    """The default of `Look`."""


class TrainerKilled(Exception):
    """`kill` ended the process during a call."""


class TrainerConnection:
    """One process and the two wires to it. All calls but `kill` come from one thread.

    Every call raises `TrainerFailed` of kind `exception`, `out_of_memory` or `device` for the trainer's code, `hang`
    when nothing was heard within `deadline`, `crash` when the process ended, and `internal` for our own faults. After
    `hang` and `crash` the process is gone. Every call raises `TrainerKilled` after `kill`.

    pid: of the process, and of its process group.
    stacks: the file for the stacks of its threads.
    step: the last reported step of the model.
    left: what earlier trials left in the process before the model was built: see
        `stagetree.runtime.exactness.held_values`.
    not_exact: operations without a deterministic form that the model has used since it was built.
    on_hang: kills the process after a command has had no answer for some seconds, and returns the error.
    reports_free_memory: whether it measures free memory beside its training.
    """

    reports_free_memory = True

    def __init__(self, connection: Wire, lifeline: Wire, pid: int) -> None:
        self.pid, self.step = pid, 0
        self.left, self.not_exact, self._uses = list[str](), tuple[str, ...](), list[Message]()
        self._connection, self._lifeline = connection, lifeline
        self.stacks = anonymous_file(0)
        self.on_hang: Callable[[str, float], Exception] = self._hung
        self._number = 0  # of the command whose reply is awaited
        self._ahead = ""  # the command that was sent behind that one
        self._is_asked = False  # whether a reply is awaited
        self._end: int | str | None = None
        self._is_killed = False
        self._reading_end = RLock()  # reentrant: a signal handler may run in the same thread
        self._poll = select.poll()
        for wire in (connection, lifeline):
            self._poll.register(wire, select.POLLIN)

    def kill(self) -> None:
        """End the process and all its children now. Safe from any thread, and in a signal handler."""
        self.begin_to_kill()
        if not self.await_end(KILL_SECONDS) or isinstance(self._end, str):  # nothing else ends it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def begin_to_kill(self) -> None:
        """Have the process killed, without waiting for that."""
        self._is_killed = True
        self._lifeline.finish()

    def close(self, patience: float = 5.0) -> None:
        """Let the process end by itself, kill it after `patience` seconds, and free its resources here."""
        if self.stacks < 0:
            return
        self.ask_to_end()
        self.await_end(patience)
        self.kill()
        for wire in (self._connection, self._lifeline):
            wire.close()
        os.close(self.stacks)
        self.stacks = -1

    def request_fork(self) -> ForkRequest:
        """Ask a template for a fork. Raises OSError."""
        return ForkRequest.send(self._connection, FORK_SECONDS)

    def ask_to_end(self) -> None:
        """Let the process end by itself; `close` must still be called."""
        with contextlib.suppress(TrainerFailed, TrainerKilled):
            self.send("exit")

    def relay(self, far: Wire, lifeline: Wire, adapt: Callable[[Message], Message], look: Callable[[], None]) -> None:
        """Serve another machine: pass commands to the process and its answers back, until it has ended.

        adapt: translates each command for this machine.
        look: called regularly; its errors end the relay.
        Raises EOFError and ConnectionError when the other side is gone.
        """
        for wire in (far, lifeline):
            self._poll.register(wire, select.POLLIN)
        while True:
            look()
            self.wait()
            lifeline.receive()
            _forward(far, self._connection, adapt)
            has_ended = self.await_end(0.0)  # checked first, so that its last messages are still forwarded
            try:
                _forward(self._connection, far, dict)
            except EOFError:
                has_ended = self.await_end(END_SECONDS)
            if has_ended:
                lifeline.send({"ended": self._end if isinstance(self._end, int) else -signal.SIGKILL})
                return

    @property
    def uses(self) -> dict[str, list[Any]]:
        """The files that were `read` and `written`, see `stagetree.runtime.reads.file_reads`."""
        return {kind: [file for each in self._uses for file in each[kind]] for kind in ("read", "written")}

    def take_uses(self) -> dict[str, list[Any]]:
        """The uses since the last call."""
        uses = self.uses
        self._uses.clear()
        return uses

    # ------------------------------------------------------------------------------------------------ talking

    def ask(self, do: str, given: Json, deadline: Deadline, look: Look = nothing) -> Any:
        """The reply to one of `stagetree.runtime.commands`. look: called several times a second meanwhile."""
        self.send(do, given)
        return self.await_reply(do, deadline, look)

    def send(self, do: str, given: Json = NOTHING, ahead: str = "", given_ahead: Json = NOTHING) -> None:
        """Send a command, which ends the one before.

        ahead, given_ahead: the next command, which the process carries out at once after this one, and whose reply
            comes with this one's. To send it again only turns to its reply; any other command abandons it.
        """
        was_sent, self._ahead = self._ahead, ahead
        self._number += 1
        if do == was_sent:  # with the arguments of that time
            return
        self._number += bool(was_sent)
        if not ahead:
            self._tell({"do": do, "number": self._number, **given})
            return
        self._connection.hold({"do": do, "number": self._number, "has_next": True, **given})
        self._tell({"do": ahead, "number": self._number + 1, **given_ahead})

    def is_sent(self, do: str) -> bool:
        """Whether this command is on its way already. Arguments that are given to it now are ignored."""
        return self._ahead == do

    def tell(self, do: str, given: Json = NOTHING) -> None:
        """Send a message without a reply, also during another command."""
        self._tell({"do": do, "number": self._number, **given})

    def tell_before_next(self, do: str, given: Json = NOTHING) -> None:
        """As `tell`, but between two commands it is sent together with the next one. Takes over the descriptors."""
        message = {"do": do, "number": self._number, **given}
        fds = message.pop("fds", ())
        if not self._is_asked:
            self._connection.hold(message, *fds)
            return
        try:
            self.tell(do, given)
        finally:
            _close(fds)

    def _tell(self, message: Message) -> None:
        do = message["do"]
        fds = message.pop("fds", ())
        try:
            self._connection.send(message, *fds, timeout=SEND_SECONDS)
        except ConnectionError:
            raise self._end_error() from None
        except WireTimeout:
            raise self.on_hang(f"take the command to {do}", SEND_SECONDS) from None

    def await_reply(self, do: str, deadline: Deadline, look: Look = nothing) -> Any:
        """Wait for the reply to the command, and fail when nothing is heard within the deadline."""
        self._is_asked = True
        try:
            return self._await_reply(do, deadline, look)
        finally:
            self._is_asked = False

    def _await_reply(self, do: str, deadline: Deadline, look: Look) -> Any:
        heard_at = time.monotonic()
        while True:
            heard = self.hear()
            now = time.monotonic()
            if heard is None:
                if now - heard_at > deadline.seconds:
                    raise self.on_hang(do, now - heard_at)
                look()
                self.wait()
                continue
            deadline.observe(now - heard_at)
            heard_at, (message, fds) = now, heard
            if "done" in message:
                return read_reply(do, message, fds)
            look()

    def wait(self) -> None:
        """Wait until something arrives, or for `POLL_SECONDS`."""
        self._poll.poll(1000 * POLL_SECONDS)

    def hear(self) -> tuple[Message, list[int]] | None:
        """The next message about the command, if one has arrived. Updates `step`, `left` and `not_exact`."""
        while True:
            has_ended = self.await_end(0.0)  # checked first, so that its last messages are still read
            arrived = self._receive()
            if arrived is None:
                if has_ended:
                    raise self._end_error()
                return None
            message, fds = arrived
            if message["number"] < self._number:  # answers an abandoned command
                _close(fds)
                continue
            self.step, self.left = message["step"], message.get("left", self.left)
            self.not_exact = tuple(message.get("not_exact", self.not_exact))
            self._uses += [message["uses"]] if "uses" in message else []
            if "failed" in message:
                how = {"may_divide": message.get("may_divide", False)}
                raise TrainerFailed(message["failed"], message["error"], self.step, message["signature"], **how)
            return message, fds

    def _receive(self) -> tuple[Message, list[int]] | None:
        try:
            return self._connection.receive()
        except EOFError:
            raise self._end_error() from None

    # ------------------------------------------------------------------------------------------------ its end

    def await_end(self, seconds: float) -> bool:
        """Whether the process has ended, or ends within the time."""
        with self._reading_end:
            if self._end is None:
                end = self._read_end(seconds)
                self._end = end if self._end is None else self._end  # a signal's handler may have been faster
            return self._end is not None

    def _read_end(self, seconds: float) -> int | str | None:
        """The exit code, or why it is unknown; None while the process runs."""
        try:
            arrived = self._lifeline.receive(seconds)
        except EOFError:
            return "the interpreter that it was forked from has ended, and the trainer's process with it"
        return int(arrived[0]["ended"]) if arrived else None

    def _end_error(self) -> Exception:
        """The exception for a process that is gone or has closed its connection."""
        has_ended = self.await_end(END_SECONDS)
        if self._is_killed:
            return TrainerKilled("the trainer's process was ended on purpose")
        if not has_ended:
            self.kill()
            return TrainerFailed("crash", "the trainer's process closed its connection, so it was ended", self.step)
        if isinstance(self._end, str):
            return TrainerFailed("internal", self._end, self.step)
        return TrainerFailed(
            "crash", f"{_format_stack(self._stack())}the trainer's process {ending(self._end)}", self.step
        )

    def _hung(self, do: str, seconds: float) -> TrainerFailed:
        """Kill the process; the exception has its stacks."""
        where = self.describe_place()
        self.kill()
        text = f"nothing was heard from the trainer for {seconds:.1f} s (last command: {do}), so it was ended"
        return TrainerFailed("hang", where + text, self.step)

    def describe_place(self) -> str:
        """The stacks of the process, if it can still print them."""
        begin = os.fstat(self.stacks).st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        ends, before = time.monotonic() + STACK_SECONDS, ""
        while (stack := self._stack(begin)) != before or (not stack and time.monotonic() < ends):
            before = stack
            time.sleep(0.02)
        return _format_stack(stack)

    def _stack(self, begin: int = 0) -> str:
        """The stacks that the process wrote when it crashed or got the signal for it."""
        return os.pread(self.stacks, LONGEST_STACK, begin).decode("utf-8", "backslashreplace")


def _format_stack(stack: str) -> str:
    """The stacks, formatted to precede the error message, as in a traceback."""
    frames = stack.partition("\nExtension modules:")[0].strip()
    return f"The trainer was here:\n{frames}\n" if frames else ""


def _forward(one: Wire, other: Wire, adapt: Callable[[Message], Message]) -> None:
    """Forward all messages that have arrived."""
    while (arrived := one.receive()) is not None:
        message, fds = arrived
        try:
            other.send(adapt(message), *fds, timeout=SEND_SECONDS)
        finally:
            _close(fds)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
