"""Commands about what happened: events, the log, and decisions derived again."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.errors import DONE, FAILED, USAGE, fail
from app.cli.options import ListOutput, Output, Server, Store, StudyId
from app.cli.output import Format, ListFormat, harmless, one_line, print_csv, print_json, short

Json = dict[str, Any]
WIDEST = 160
FILMS = ("svg", "gif", "png")
HIDDEN = ("spec", "hp", "path", "sha256", "key", "environment", "stages", "at", "study")
COUNTED_FROM_0 = ("trial", "index")


def events(
    id: StudyId,
    after: Annotated[
        int, typer.Option("--after", metavar="N", min=0, help="Begin after the event at this position.")
    ] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the events until the study is over.")] = False,
    type: Annotated[
        list[str] | None, typer.Option("--type", metavar="NAME", help="Only events of this type; may be repeated.")
    ] = None,
    server: Server = None,
    dir: Store = None,
    output: ListOutput = ListFormat.table,
) -> None:
    """Show what happened in a study, in order.

    \b
    Example:  stagetree events last --type TrialExtended
    """
    from app.cli import stacks

    with stacks.reading_study(id, server, dir) as (service, study):
        read = service.client.follow if follow else service.client.events
        matching = (event for event in read(study, after) if not type or event["type"] in type)
        if output is ListFormat.json:
            print_array(matching)
        elif output is ListFormat.csv:
            print_csv(matching)
        else:
            for event in matching:
                at = time.strftime("%H:%M:%S", time.localtime(event["at"]))
                by = f"by {harmless(event['by'])}  " if event.get("by") else ""
                print(f"{event['position']:>7}  {at}  {event['type']:<18} {by}{brief(event['data'])}", flush=True)


def environment(id: StudyId, server: Server = None, dir: Store = None, output: Output = Format.table) -> None:
    """Show what a study is trained with: packages, driver, and the commit and the changes of the trainer's repository.

    \b
    Example:  stagetree environment last
    """
    from app.cli import stacks

    with stacks.reading_study(id, server, dir) as (service, study):
        answer = service.client.environment(study)
    if output is Format.json:
        print_json(answer)
        return
    for about in answer["devices"]:
        print_environment(about)


def print_environment(about: Json) -> None:
    """What trains on one kind of device."""
    trainer, packages = about.get("trainer", {}), about.get("packages", {})
    print(f"device    {one_line(about['device'])}" + (f", driver {about['driver']}" if about.get("driver") else ""))
    print(f"python    {about.get('python')} on {one_line(str(about.get('platform')))}")
    print(f"torch     {about.get('torch')}")
    if commit := trainer.get("commit"):
        print(f"commit    {commit}{', changed since' if trainer['is_changed'] else ''}")
    print(f"trainer   {one_line(str(trainer.get('file')))}")
    for name, version in packages.items():
        print(f"package   {one_line(f'{name} {version}')}")
    if diff := trainer.get("diff"):
        print(f"\n{harmless(diff).rstrip()}")


def print_array(items: Any) -> None:
    """One JSON document, each item of it as soon as it is there."""
    sys.stdout.write("[")
    for number, item in enumerate(items):
        sys.stdout.write((",\n " if number else "\n ") + json.dumps(item))
        sys.stdout.flush()
    sys.stdout.write("\n]\n")


def brief(data: Json) -> str:
    """What an event says, in a line; of a traceback, its end. Nothing is said of a field that is empty, or 0."""
    parts = []
    for name, value in data.items():
        if name == "error":
            value = str(value).strip().rsplit("\n", 1)[-1]
        if name in ("node", "chain"):
            value = str(value)[:8]
        if name not in HIDDEN and (value or (value == 0 and name in COUNTED_FROM_0)):
            parts.append(f"{name}={_value(value)}")
    text = one_line("  ".join(parts))
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."


def _value(value: Any) -> str:
    if not isinstance(value, dict):
        return short(value)
    return "(" + ", ".join(f"{name} {_value(inner)}" for name, inner in value.items()) + ")"


def report(
    id: StudyId,
    into: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The file to write; by default ID.html here.")
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Leave out paths, hosts, addresses and names of people.")
    ] = False,
    url: Annotated[
        str, typer.Option("--url", metavar="URL", help="Where it will be: also write the picture that links show.")
    ] = "",
    server: Server = None,
    dir: Store = None,
) -> None:
    """Write a study as one HTML file: the page with all its views, to look at without a server or a network.

    Links to it are shown with its title and what came of it. With --url, also with a picture, which is written beside
    the file, has to be put beside it, and needs Pillow.

    \b
    Example:  stagetree report last --public --url https://example.org/study.html
    """
    from app.cli import stacks

    with stacks.reading_study(id, server, dir) as (service, name):
        beside = _picture_beside(url, name)
        picture = service.client.film(name, "png", public=public) if beside else b""
        text = service.client.report(name, public=public, url=url)
    path = into or Path(f"{name}.html")
    _write(path, text.encode())
    if beside:
        _write(path.parent / beside, picture)


def _picture_beside(url: str, study: str) -> str:
    """The name of the file; none without an address."""
    from app.service.html_report import picture_beside
    from app.service.services import InvalidField

    try:
        return picture_beside(url, study)[1] if url else ""
    except InvalidField as error:
        fail(f"--{error}", USAGE)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    print(path)


def film(
    id: StudyId,
    into: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The .svg, .gif or .png to write; by default ID.svg here."),
    ] = None,
    server: Server = None,
    dir: Store = None,
) -> None:
    """Write a film of ten seconds of a study: its rung tree grows, with the work of the slots below.

    An SVG plays in a browser, and is sharp at any size. A GIF also plays in mails and chats, and a PNG is the end
    of the film as one picture; both need Pillow.

    \b
    Example:  stagetree film last -o film.gif
    """
    from app.cli import stacks

    kind = "svg" if into is None else into.suffix.removeprefix(".").lower()
    if kind not in FILMS:
        fail(f"-o: a film is a .svg or a .gif, and its end a .png, got {into}", USAGE)
    with stacks.reading_study(id, server, dir) as (service, name):
        content = service.client.film(name, kind)
    _write(into or Path(f"{name}.svg"), content)


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
    from app.cli import replay

    if what_if:
        replayed = replay.imagined(id, at, what_if, log, server, dir)
        print_json(replayed) if output is Format.json else replay.print_what_if(replayed)
        return
    if log:
        replayed = replay.from_log(replay.read(log), id, at, str(log)).to_json()
    else:
        replayed = replay.from_service(id, at, server, dir)
    print_json(replayed) if output is Format.json else replay.print_replay(replayed)
    raise typer.Exit(DONE if replayed["identical"] else FAILED)


def export(
    id: StudyId,
    curves: Annotated[
        bool, typer.Option("--curves", help="Print the study's curves instead, one trial per line.")
    ] = False,
    server: Server = None,
    dir: Store = None,
) -> None:
    """Print the whole log of a study's plan, one event per line; `replay --log` reads it.

    \b
    Example:  stagetree export last > log.jsonl
    """
    from app.cli import stacks
    from app.cli.replay import curves as curves_of

    with stacks.reading_study(id, server, dir) as (service, study):
        log = service.client.log(study)
    sys.stdout.writelines(curves_of(log, study) if curves else [log])
