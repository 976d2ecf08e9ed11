"""Following a study: a live view on a terminal, a line every few seconds elsewhere. Both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from app.cli.output import Json, duration
from stagetree.client import Client

LOOK_SECONDS = 0.25
SHORTEST_LOOK, LONGEST_LOOK = 0.1, 1.0
"""Looking is work for the machine that trains: with a long way to go, it is done less often."""

LINE_SECONDS = 5.0
FINAL = ("completed", "failed", "cancelled")


def follow(client: Client, study: str, check: Callable[[], None] = lambda: None) -> Json:
    """Show progress until the study is over; the study with its trials. `check` may raise to end it earlier."""
    show = _live if sys.stderr.isatty() else _lines
    show(_looks(client, study, check))
    return client.study(study)


def _looks(client: Client, study: str, check: Callable[[], None]) -> Iterator[Json]:
    """The study as it stands, again and again, until it is over."""
    while True:
        check()
        found = client.study(study, trials=False)
        yield found
        if found["state"] in FINAL:
            return
        time.sleep(_pause(seconds_left(found)))


def _pause(left: float | None) -> float:
    """Seconds until the next look: the nearer the end, the sooner."""
    return LOOK_SECONDS if left is None else min(max(left / 10, SHORTEST_LOOK), LONGEST_LOOK)


def _lines(looks: Iterator[Json]) -> None:
    said, said_at = "", 0.0
    for study in looks:
        line = headline(study)
        over = study["state"] in FINAL
        if line != said and (over or time.monotonic() - said_at >= LINE_SECONDS):
            print(line, file=sys.stderr, flush=True)
            said, said_at = line, time.monotonic()


def _live(looks: Iterator[Json]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        for study in looks:
            live.update(Text("\n".join([_bar(study), headline(study), *slot_lines(study)])), refresh=True)


def headline(study: Json) -> str:
    """Steps done of unique, steps saved, best so far, time left, on one line."""
    steps = study["steps"]
    parts = [
        f"{study['study']} {study['state']}",
        f"{done_steps(study)}/{steps['unique']} steps",
        f"{steps['requested'] - steps['unique']} of {steps['requested']} saved",
    ]
    if study.get("best"):
        parts.append(f"best {study['metric']} {study['best']['value']:.6g} (trial {study['best']['trial']})")
    if (left := seconds_left(study)) is not None:
        parts.append(f"{duration(left)} left")
    return " · ".join(parts)


def slot_lines(study: Json) -> list[str]:
    """What each slot does for the study."""
    return [
        f"  {run['slot']}  steps {run['start']} to {run['end']}, at {run['step']}"
        for run in sorted(study["progress"]["running"], key=lambda run: str(run["slot"]))
    ]


def done_steps(study: Json) -> int:
    """Steps that are trained, those of stages under way included."""
    under_way = sum(max(0, run["step"] - run["start"]) for run in _running(study))
    return min(study["steps"]["executed"] + under_way, study["steps"]["unique"])


def seconds_left(study: Json) -> float | None:
    """An estimate from the pace so far; None while there is none."""
    executed, running = study["steps"]["executed"], _running(study)
    if not executed or not running:
        return None
    return float((study["steps"]["unique"] - done_steps(study)) * study["gpu_seconds"] / executed / len(running))


def _running(study: Json) -> list[dict[str, Any]]:
    return list(study["progress"]["running"])


def _bar(study: Json, width: int = 40) -> str:
    done = done_steps(study) / max(1, study["steps"]["unique"])
    full = round(done * width)
    return "━" * full + "╌" * (width - full) + f" {done:4.0%}"
