"""The commands of a trainer process. `stagetree.runtime.child.Child` carries them out, and has their arguments.

A command is sent as a JSON object of the arguments that are not None, a reply as JSON. Descriptors travel beside it:
the argument `fds`, which stay the sender's, and the field `fd` of a reply, which is the receiver's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from stagetree.runtime.wire import Message

Json = Mapping[str, Any]
Metrics = dict[str, float | None]
NOTHING: Mapping[Any, Any] = {}


class Trained(NamedTuple):
    """passed: the metrics of steps that it passed after the request to stop.

    peak_bytes: the most memory since the model was built or trained last, see `stagetree.runtime.machine.peak_bytes`;
        of a group's first rank.
    free_bytes: of the device, beside everything on it; 0 if unknown or if other slots share it.
    """

    step: int
    passed: Mapping[int, Metrics] = NOTHING
    peak_bytes: int = 0
    free_bytes: int = 0


class Evaluation(NamedTuple):
    """changed: the state leaves that the evaluation changed, if it was watched."""

    metrics: Metrics
    changed: Sequence[str] = ()


class Saved(NamedTuple):
    """fd: the file of the image; None if a rank has no part of the state. buffer: its number."""

    fd: int | None = None
    size: int = 0
    buffer: int = 0


class PackTrained(NamedTuple):
    """failed: the lanes that failed in the last step, with kind, error and signature of each.

    unpackable_reason: why the lanes were trained one after the other; empty if they were packed.
    evicted: lanes that were trained alone because a packed pass failed.
    profile: the costs of packs if they were measured, as fields of `PackingProfiled`; empty if the models cannot be
        packed.
    passed, peak_bytes: as for `Trained`, of a single lane.
    """

    steps: int
    failed: Mapping[int, tuple[str, str, str]] = NOTHING
    unpackable_reason: str = ""
    evicted: Sequence[int] = ()
    profile: Json | None = None
    passed: Mapping[int, Metrics] = NOTHING
    peak_bytes: int = 0


class Compared(NamedTuple):
    """difference: the first leaf that differs; empty if all are equal.

    elsewhere: how the recorded state was made on another machine, in words that follow "made under".
    stray: other objects held by the trainers that differ.
    """

    difference: str
    elsewhere: Sequence[str] = ()
    stray: Sequence[str] = ()


class Seen(NamedTuple):
    """unread: hyper-parameters that the trainer has not read in any step. files: the data files that it read."""

    unread: Sequence[str] = ()
    files: Sequence[Any] = ()


class Command(NamedTuple):
    """ranks: which processes of a group carry it out. reply: the type, if it is none of JSON.

    others: the form of the command for ranks that do not lead.
    """

    ranks: Literal["all", "leader", "none"]
    reply: type[Any] | None = None
    others: str = ""


COMMANDS = {
    "start": Command("all"),
    "build": Command("all"),
    "become_template": Command("leader"),
    "begin": Command("all"),
    "load": Command("all"),
    "train": Command("all", Trained),
    "evaluate": Command("all", Evaluation),
    "save": Command("all", Saved, others="save_part"),
    "save_part": Command("all", Saved),
    "compare": Command("leader", Compared),
    "seen": Command("leader", Seen),
    # of packs, several trials on one device
    "join": Command("none"),
    "train_together": Command("none", PackTrained),
    "measure": Command("none"),
    "leave": Command("none"),
}


class _Caller:
    def __init__(self, ask: Callable[[str, Json], Any]) -> None:
        self._ask = ask

    def __getattr__(self, do: str) -> Callable[..., Any]:
        return lambda **given: self._ask(do, {name: each for name, each in given.items() if each is not None})


def call_with(ask: Callable[[str, Json], Any]) -> Any:
    """The commands as methods, as of `Child`, each of which calls `ask` with its name and arguments."""
    return _Caller(ask)


def read_reply(do: str, message: Message, fds: Sequence[int]) -> Any:
    reply: Any
    kind, reply = COMMANDS[do].reply, message.get("reply")
    reply = reply if kind is None else kind(*reply)
    return reply._replace(fd=fds[0]) if fds else reply
