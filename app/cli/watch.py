"""`stagetree watch` and `wait`: a study under way in the terminal, why nothing happens, and its result."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from app.cli import options
from app.cli.errors import DONE, FAILED, INTERRUPTED, TIMEOUT, TRIALS_FAILED
from app.cli.options import Output, Plain, Quiet, Server, Sinks, Store, Strict, StudyId, Timeout
from app.cli.output import Format, memory, number, one_line, print_answer, print_json, redact, steps_text, trials_text
from app.cli.result import print_check_output, print_failures, print_result
from app.cli.service import Documents, Service, open_study
from stagetree.text import FINAL, duration, mark_word
from stagetree.time_left import TimeLeft

if TYPE_CHECKING:
    from app.cli.service import AnyService, StudyReader

Json = dict[str, Any]
ASK_SECONDS = 10.0


class Standstill:
    """Finds out why a followed study makes no progress."""

    def __init__(self, client: StudyReader, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._before: Json = {}
        self._since, self._reason = clock(), ""

    def reason(self, study: Json) -> str:
        """Why the study makes no progress; empty while it does, or if the service is ready, since a step may take long.

        Notes of waiting slots are reported at once.
        """
        if waits := study.get("waits_for"):
            return "; ".join(waits)
        now, happened = self._clock(), study["progress"] | {"seconds_left": None, "state": study["state"]}
        if happened != self._before:
            self._before, self._since, self._reason = happened, now, ""
        elif now - self._since >= ASK_SECONDS:
            self._since, self._reason = now, self._ask()
        return self._reason

    def _ask(self) -> str:
        from stagetree.errors import ProblemError, Unreachable

        try:
            self._client.ready()
        except ProblemError as problem:
            return str(problem)
        except Unreachable:
            return ""  # the follower waits for the server anyway
        return ""


LOOK_SECONDS = 0.25
SHORTEST_LOOK, LONGEST_LOOK, LONGEST_UNSEEN = 0.1, 1.0, 2.0
"""Polling costs time of the training machine, so it is rarer for long studies and without a live view."""
PASSED_SHARE = 0.05
"""The longest time between two looks, as a share of the time that has passed: a target may end a study at any time."""

FIRST_LINES, LAST_LINES = 5.0, 300.0
"""Seconds between lines: 5 at first, later a twentieth of the time that has passed, and never more than these."""

MOST_STOPPING_SECONDS = 10.0
"""How long to wait for slots that still train a study that is over. A slot stops after its current step."""

AWAY_SECONDS = 60.0
"""How long a follower waits for an unavailable server."""

DUMB = ("dumb", "unknown", "")


class Show(StrEnum):
    """How progress is shown."""

    live = "live"
    plain = "plain"
    quiet = "quiet"


def choose_display(plain: bool, quiet: bool) -> Show:
    """The display by the options or, by default, a live view if the terminal can show one."""
    if quiet:
        return Show.quiet
    can = sys.stderr.isatty() and os.environ.get("TERM", "") not in DUMB and not os.environ.get("CI")
    return Show.live if can and not plain else Show.plain


def follow(client: StudyReader, study: str, show: Show, check: Callable[[], None] = lambda: None) -> Json:
    """Show progress until the study is over; the study with its trials. `check` may raise to end it earlier."""
    looks = _looks(client, study, check, LONGEST_LOOK if show is Show.live else LONGEST_UNSEEN)
    if show is Show.live:
        from app.cli.live_view import live

        live(looks)
    elif show is Show.plain:
        lines(looks)
    else:
        for _ in looks:
            pass
    return client.study(study)


def _looks(client: StudyReader, study: str, check: Callable[[], None], longest: float) -> Iterator[Json]:
    """The study's document every `longest` seconds or sooner, until it is over; `waits`: why it makes no progress."""
    standstill, left, was_running, began = Standstill(client), TimeLeft(), False, time.monotonic()
    while True:
        document = _look(client, study, check)
        waits = "" if document["state"] in FINAL else standstill.reason(document)
        seconds = left.next(document["progress"]["seconds_left"]) if document["state"] == "running" else None
        yield document | {"waits": waits, "progress": document["progress"] | {"seconds_left": seconds}}
        if document["state"] in FINAL:
            if was_running:
                with suppress(KeyboardInterrupt):  # the study is over, and its result follows
                    _await_slots(client, document, check)
            return
        was_running = True
        check()
        seconds = document["progress"]["seconds_left"]
        soon = LOOK_SECONDS if seconds is None else seconds / 6  # the nearer the end, the sooner
        time.sleep(max(min(soon, longest, PASSED_SHARE * (time.monotonic() - began)), SHORTEST_LOOK))


def _await_slots(client: StudyReader, study: Json, check: Callable[[], None]) -> None:
    """Wait for the study's last stages and proofs to stop, which makes its slot time final."""
    deadline = time.monotonic() + MOST_STOPPING_SECONDS
    while any(run["study"] == study["study"] for run in study["progress"]["running"]) and time.monotonic() < deadline:
        check()
        time.sleep(SHORTEST_LOOK)
        study = _look(client, study["study"], check)


def _look(client: StudyReader, study: str, check: Callable[[], None]) -> Json:
    """The study's document. Waits for a server that restarts; a longer outage is an error."""
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


def lines(looks: Iterator[Json]) -> None:
    """Print a line when the study has changed, at most every few seconds."""
    printed, waits, printed_at, began = "", "", -math.inf, time.monotonic()
    for study in looks:
        if study["waits"] not in ("", waits):
            why = one_line(study["waits"])
            stands = ":" if why.startswith("slot ") else " stands still:"  # others may train while one slot waits
            print(f"{study['study']}{stands} {why}", file=sys.stderr, flush=True)
        waits = study["waits"]
        if not study["progress"]["steps"]["expected"] and study["state"] not in FINAL:
            continue  # its tuner has requested nothing yet
        line, now = headline(study), time.monotonic()
        wait = min(max((now - began) / 20, FIRST_LINES), LAST_LINES)
        if line != printed and (study["state"] in FINAL or now - printed_at >= wait):
            print(line, file=sys.stderr, flush=True)
            printed, printed_at = line, now


def headline(study: Json) -> str:
    """State, trials, steps, failures, the best result and the time left, on one line."""
    progress, parts = study["progress"], [f"{study['study']} {study['state']}"]
    if study["state"] != "failed" or progress["steps"]["expected"]:  # else nothing was trained
        parts += [trials_text(progress), steps_text(study)]
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
    """The best value, its trial and step, and its mark as one word."""
    result = study["best"]
    where = [f"trial {result['trial']}", f"step {result['steps']}", mark_word(result.get("exactness", ""))]
    return f"{one_line(study['metric'])} {number(result['value'])} ({', '.join(filter(None, where))})"


def separator(stream: Any) -> str:
    """A middle dot, if the stream can encode it."""
    try:
        "·".encode(getattr(stream, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return " - "
    return " · "


def watch_until_end(service: AnyService, study: str, show: Show) -> Json:
    """Follow the study to its end. Ctrl-C exits with a message and its own code."""
    try:
        return follow(service.client, study, show, service.check)
    except KeyboardInterrupt:
        if service.folder is None:
            again = f"stagetree watch {study} {redact(service.place)}"
            print(f"\nStopped watching; study {study} is still running. Watch it again with: {again}", file=sys.stderr)
        else:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the stack ends, which handles it again
            print(f"\nStopped; the slots of study {study} belonged to this command and stop with it.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def print_study(service: AnyService, study: Json, output: Format, *, is_strict: bool) -> int:
    """Print the result, and return the exit code."""
    if output is Format.json:
        print_json(study)
    else:
        print_result(study, where := _place_options(service))
        failed = next((trial["trial"] for trial in study["trials"] if trial["state"] == "failed"), None)
        if failed is not None and not study["best"]:
            print_failures(study, service.client.trial(study["study"], failed), where)
        if (tried := study.get("failed_check")) is not None:
            print_check_output(study, service.client.trial_log(study["study"], tried), where)
    return study_exit_code(study, is_strict=is_strict)


def study_exit_code(study: Json, *, is_strict: bool) -> int:
    """0 if the study was completed, and a trial has a result. is_strict: only if no trial failed."""
    if study["state"] != "completed" or not study["best"]:
        return FAILED
    return TRIALS_FAILED if is_strict and study["counts"]["failed"] else DONE


def print_result_commands(service: Service[Documents]) -> None:
    """Print where an embedded stack keeps its results, and the commands that show them."""
    folder = service.folder
    if folder is None or not options.is_store(folder):
        return
    size = memory(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
    print(
        f"\nKept in {_relative(folder)} ({size}). Look again: stagetree trials last{_place_options(service)}",
        file=sys.stderr,
    )
    there = "" if folder == options.DEFAULT_DIR.resolve() else f" {_relative(folder)}"
    print(f"In a browser: stagetree open{there}", file=sys.stderr)


def _place_options(service: AnyService) -> str:
    """The options that lead another command to the study; empty for the store here."""
    if service.folder is None:
        return f" {redact(service.place)}" if service.place else ""
    return "" if service.folder == options.DEFAULT_DIR.resolve() else f" --dir {_relative(service.folder)}"


def _relative(folder: Path) -> Path:
    """The folder relative to the current one, if it is inside."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def watch(
    id: StudyId,
    server: Server = None,
    dir: Store = None,
    sink: Sinks = None,
    plain: Plain = False,
    quiet: Quiet = False,
    strict: Strict = False,
    output: Output = Format.table,
) -> None:
    """Follow a study until it is over, and print its result.

    \b
    Example:  stagetree watch last --sink tensorboard:runs
    """
    from app.cli.sinks import write_to_sinks

    with open_study(id, server, dir) as (service, study):
        with write_to_sinks(sink or (), study, server, dir) as check:

            def check_both() -> None:
                service.check()
                check()

            document = watch_until_end(replace(service, check=check_both), study, choose_display(plain, quiet))
        raise typer.Exit(print_study(service, document, output, is_strict=strict))


def wait(
    id: StudyId,
    timeout: Timeout = None,
    strict: Strict = False,
    server: Server = None,
    dir: Store = None,
    output: Output = Format.table,
) -> None:
    """Wait until a study is over, and print its state. Exit codes: 0 completed, 1 failed or cancelled, 124 timed out.

    With --strict, the code is 5 if the study completed and some of its trials failed.

    \b
    Example:  stagetree wait last --timeout 3600 && stagetree trials last -o csv > trials.csv
    """
    with open_study(id, server, dir) as (service, study):
        try:
            document = follow(service.client, study, Show.quiet, _deadline_check(timeout, service))
            code = study_exit_code(document, is_strict=strict)
        except TimeIsUp:
            document, code = service.client.study(study), TIMEOUT
        print_answer(document, output, f"{study} is {document['state']}")
        raise typer.Exit(code)


class TimeIsUp(Exception):
    """The `--timeout` of a command has passed."""


def _deadline_check(timeout: float | None, service: AnyService) -> Callable[[], None]:
    """A check that raises `TimeIsUp` when the command's time is over."""
    deadline = None if timeout is None else time.monotonic() + timeout

    def check() -> None:
        service.check()
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeIsUp

    return check
