"""`stagetree replay`: the decisions of a study derived again, or derived under other settings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import DONE, FAILED, NOT_FOUND, USAGE, fail
from app.cli.options import Output, Server, Store, StudyId
from app.cli.output import Format, number, one_line, print_json
from app.cli.service import open_study
from app.cli.study_files import changes_of
from stagetree.text import rank_text

if TYPE_CHECKING:
    from app.domain.events import Event
    from app.search.replay import Replay

Json = dict[str, Any]

PLACE_FIELDS = ("bracket", "rung", "steps")


def replay_with_changes(
    study: str, at: int | None, changes: list[str], log: Path | None, server: str | None, folder: Path | None
) -> Json:
    """Replay the log with changed settings, on this machine."""
    from app.domain.terms import StudyId
    from app.service.html_report import parse
    from app.simulation.what_if import what_if

    changed = changes_of(changes, "--what-if")
    if log:
        text = read_log(log)
    else:
        with open_study(study, server, folder) as (service, study):
            text = service.client.log(study)
    recorded = replay_log(text, study, at, str(log or "the log"))
    study = recorded.study
    events = [event for _, event in islice(parse(text.splitlines()), recorded.events)]
    return what_if(events, StudyId(study), changed)


def replay_log(text: str, study: str, at: int | None, where: str) -> Replay:
    """Replay a log that `export` printed."""
    from app.domain.terms import StudyId
    from app.search.replay import replay
    from app.service.html_report import NotALog, parse

    try:
        events = [event for _, event in parse(text.splitlines())]
    except NotALog as error:
        fail(f"{where}: {error}", USAGE)
    if not events:
        fail(f"{where} is empty: `stagetree export ID` prints a log", USAGE)
    study = _study_in_log(events, study, where)
    return replay(_number_events(events, study), StudyId(study), at=at)


def _study_in_log(events: list[Event], study: str, where: str) -> str:
    """The id of a study in a log, by its id, the beginning of its id, its name, or `last`."""
    from app.domain.events import StudySubmitted

    names = {event.study: event.spec["name"] for event in events if isinstance(event, StudySubmitted)}
    if study == "last" and names:
        return list(names)[-1]
    found = [id for id, name in names.items() if id == study] or [
        id for id, name in names.items() if id.startswith(study) or name == study
    ]
    if len(found) != 1:
        there = f"it has {', '.join(names) or 'none'}"
        fail(f"{where} holds {'no study' if not found else 'several studies'} {study}: {there}", NOT_FOUND)
    return found[0]


def _number_events(events: list[Event], study: str) -> Iterator[tuple[int, Event]]:
    """The events of a plan with their positions in a study, whose submission is 1."""
    from app.domain.events import StudySubmitted

    submissions = [n for n, event in enumerate(events) if isinstance(event, StudySubmitted) and event.study == study]
    return enumerate(events, 1 - next(iter(submissions), 0))


def read_log(path: Path) -> str:
    """The text of an exported log."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path}: {error.strerror if isinstance(error, OSError) else 'is not a log'}", USAGE)


def print_what_if(answer: Json) -> None:
    """Print the outcome of a study with changed settings."""
    print(f"trials     {answer['trials']}")
    print(f"steps      {answer['requested']} that the trials take, {answer['unique']} unique")
    print(f"saved      {answer['saved']} of the steps that the study had")
    print(f"needed     {answer['needed']} steps that were never trained")
    print(f"not known  {answer['not_known']} results")
    if best := answer["best"]:
        print(
            f"best       trial {best['trial']} with {best['value']:.6g} after {best['steps']} steps, by known results"
        )


def print_replay(answer: Json) -> None:
    """Print the decisions about trials with their reasons, and whether all were derived again."""
    for line in answer["history"]:
        if line["kind"] in ("promote", "prioritize", "stop"):
            standing = "  ".join(f"{name} {line[name]}" for name in PLACE_FIELDS if name in line)
            print(
                f"{line['event']:>7}  {line['kind']:<10} trial {line['trial']:<5} {standing}  {_reason(line['reason'])}"
            )
    if answer["identical"]:
        print(f"identical: {answer['decisions']} decisions derived again from {answer['events']} events")
    else:
        difference = answer["difference"]
        print(f"DIFFERENT: {difference['problem']}")
        print(f"  recorded {difference['recorded']}")
        print(f"  derived  {difference['derived']}")


def _reason(reason: dict[str, Any]) -> str:
    if "cut" in reason and (standing := rank_text(reason)):
        return standing
    if {"class", "p", "expected_seconds"} <= reason.keys():
        return _judgement(reason)
    return one_line("  ".join(f"{name}={value}" for name, value in reason.items() if name not in PLACE_FIELDS))


def _judgement(reason: dict[str, Any]) -> str:
    """The class of a trial with its numbers."""
    says = f"p {reason['p']} of {number(reason['target'])}, {number(reason['expected_seconds'])} s expected"
    threshold = reason.get("threshold")
    pool = f"threshold {'none' if threshold is None else threshold}" if "threshold" in reason else ""
    own = f"{reason['own_slots']} of {reason['slots']} slots theirs" if "own_slots" in reason else ""
    at = f"at {number(reason['elapsed'])} s" if "elapsed" in reason else ""
    return "  ".join(filter(None, (f"{reason['class']} after step {reason['steps']}: {says}", pool, own, at)))


def replay(
    id: StudyId,
    at: Annotated[
        int | None, typer.Option("--at", metavar="N", min=1, help="Replay up to the event at this position.")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="FIELD=VALUE",
            help="Decide with this field of the study file changed; may be repeated.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="Replay a file that `stagetree export` wrote, without a server."),
    ] = None,
    server: Server = None,
    dir: Store = None,
    output: Output = Format.table,
) -> None:
    """Derive every decision of a study again from its log, and compare: exit code 1 if one differs.

    \b
    Example:  stagetree replay last --what-if tuner.reduction_factor=4
    """
    if what_if:
        replayed = replay_with_changes(id, at, what_if, log, server, dir)
        print_json(replayed) if output is Format.json else print_what_if(replayed)
        return
    if log:
        replayed = replay_log(read_log(log), id, at, str(log)).to_json()
    else:
        with open_study(id, server, dir) as (service, study):
            replayed = service.client.replay(study, at)
    print_json(replayed) if output is Format.json else print_replay(replayed)
    raise typer.Exit(DONE if replayed["identical"] else FAILED)
