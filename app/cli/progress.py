"""Following a study: a live view on a terminal, a line now and then elsewhere, or nothing. All on stderr."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from app.cli.standstill import Standstill
from app.cli.text import number, one_line, trials_done
from stagetree.text import FINAL, duration

if TYPE_CHECKING:
    from app.cli.documents import Documents
    from app.cli.store import Store

Json = dict[str, Any]

LOOK_SECONDS = 0.25
SHORTEST_LOOK, LONGEST_LOOK = 0.1, 1.0
"""Looking is work for the machine that trains: with a long way to go, it is done less often."""

FIRST_LINES, LAST_LINES = 5.0, 300.0
"""Seconds between lines: 5 at first, later a twentieth of the time that has passed, and never more than these."""

AWAY_SECONDS = 60.0
"""How long whoever follows a study waits for a server that is away."""

DUMB = ("dumb", "unknown", "")


class Show(StrEnum):
    """How progress is shown."""

    live = "live"
    plain = "plain"
    quiet = "quiet"


def how(plain: bool, quiet: bool) -> Show:
    """What was asked for or, if nothing was, a live view where there is a terminal that can show one."""
    if quiet:
        return Show.quiet
    can = sys.stderr.isatty() and os.environ.get("TERM", "") not in DUMB and not os.environ.get("CI")
    return Show.live if can and not plain else Show.plain


def follow(client: Documents | Store, study: str, show: Show, check: Callable[[], None] = lambda: None) -> Json:
    """Show progress until the study is over; the study with its trials. `check` may raise to end it earlier."""
    looks = _looks(client, study, check)
    if show is Show.live:
        from app.cli.live import live

        live(looks)
    elif show is Show.plain:
        lines(looks)
    else:
        for _ in looks:
            pass
    return client.study(study)


def _looks(client: Documents | Store, study: str, check: Callable[[], None]) -> Iterator[Json]:
    """The study as it stands, again and again, until it is over; `waits` says why it stands still, if it does."""
    standstill = Standstill(client)
    while True:
        found = _look(client, study, check)
        yield found | {"waits": "" if found["state"] in FINAL else standstill.reason(found)}
        if found["state"] in FINAL:
            return
        check()
        time.sleep(_pause(found["progress"]["seconds_left"]))


def _look(client: Documents | Store, study: str, check: Callable[[], None]) -> Json:
    """The study as it stands. A server that is started again is waited for; one that stays away is an error."""
    from stagetree.client import Unreachable

    deadline: float | None = None
    while True:
        try:
            return client.study(study, trials=False)
        except Unreachable:
            check()
            if deadline is None:
                print("The server does not answer; waiting for it ...", file=sys.stderr)
                deadline = time.monotonic() + AWAY_SECONDS
            if time.monotonic() > deadline:
                raise
            time.sleep(LONGEST_LOOK)


def _pause(left: float | None) -> float:
    """Seconds until the next look: the nearer the end, the sooner."""
    return LOOK_SECONDS if left is None else min(max(left / 10, SHORTEST_LOOK), LONGEST_LOOK)


def lines(looks: Iterator[Json]) -> None:
    """A line when the study stands otherwise than before, and not too often."""
    said, waits, said_at, began = "", "", -math.inf, time.monotonic()
    for study in looks:
        if study["waits"] not in ("", waits):
            why = one_line(study["waits"])
            print(f"{study['study']}{_separator(why)}{why}", file=sys.stderr, flush=True)
        waits = study["waits"]
        if not study["progress"]["steps"]["expected"] and study["state"] not in FINAL:
            continue  # its tuner has asked for nothing yet
        line, now = headline(study), time.monotonic()
        wait = min(max((now - began) / 20, FIRST_LINES), LAST_LINES)
        if line != said and (study["state"] in FINAL or now - said_at >= wait):
            print(line, file=sys.stderr, flush=True)
            said, said_at = line, now


def _separator(why: str) -> str:
    """What a slot says of itself is no standstill of all."""
    return ": " if why.startswith("slot ") else " stands still: "


def headline(study: Json) -> str:
    """State, trials, steps, failures, best so far and time left, on one line."""
    progress = study["progress"]
    steps = progress["steps"]
    parts = [f"{study['study']} {study['state']}", trials_done(progress), f"{steps['done']}/{steps['expected']} steps"]
    if study["counts"]["failed"]:
        parts.append(f"{study['counts']['failed']} failed")
    if study["best"]:
        parts.append(f"best {best(study)}")
    if study["ending"]:
        parts.append(one_line(study["ending"]))
    if (left := progress["seconds_left"]) is not None:
        parts.append(f"about {duration(left)} left")
    return separator(sys.stderr).join(parts)


def best(study: Json) -> str:
    """The best value, and where it is from."""
    found = study["best"]
    return f"{one_line(study['metric'])} {number(found['value'])} (trial {found['trial']}, step {found['steps']})"


def separator(stream: Any) -> str:
    """A dot in the middle, where the stream can take one."""
    try:
        "·".encode(getattr(stream, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return " - "
    return " · "
