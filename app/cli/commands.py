"""The commands. Each reads its arguments, calls one thing, and prints."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from app.cli.errors import DONE, FAILED, INTERRUPTED
from app.cli.output import Format, Json, print_json, print_result, print_table, short_hp
from app.cli.striking import strike

if TYPE_CHECKING:
    from app.cli.stacks import Service
    from stagetree.limits import Limits

app = typer.Typer(
    name="stagetree",
    help="Hyper-parameter search that trains what trials share only once.\n\nBegin with: stagetree run study.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="The study file.")]
StudyId = Annotated[str, typer.Argument(metavar="ID", help="The study, as `stagetree studies` lists it.")]
Output = Annotated[Format, typer.Option("-o", "--output", help="Print a table, or one JSON document.")]
Server = Annotated[str | None, typer.Option("--server", envvar="STAGETREE_URL", help="The URL of a running server.")]
Slots = Annotated[int | None, typer.Option("--slots", min=1, help="Slots; by default the GPUs, else the CPU cores.")]
Folder = Annotated[Path | None, typer.Option("--dir", help="Keep the log and the checkpoints there, and reuse them.")]
Trainers = Annotated[list[str] | None, typer.Option("--trainers", help="A Python file with trainers; may be repeated.")]


@app.command()
def run(
    study: StudyFile,
    slots: Slots = None,
    dir: Folder = None,
    trainers: Trainers = None,
    server: Server = None,
    output: Output = Format.table,
) -> None:
    """Run a study, follow it and print its result; on this machine, unless a server is named."""
    from app.cli import stacks
    from app.embedded import default_slots
    from stagetree.spec import StudySpec

    spec = StudySpec.from_file(study, _limits(server))
    if server:
        with stacks.server(server) as service:
            _finish(_run(service, spec.to_json()), output)
    files = stacks.trainer_files(trainers or [], beside=study)
    stacks.check_trainer(spec.trainer, files)
    slots = slots or default_slots()
    print(f"Starting {slots} slot{'s' * (slots > 1)} on this machine ...", file=sys.stderr)
    with stacks.own_stack(slots, dir, files) as service:
        result = _run(service, spec.to_json())
    _finish(result, output)


@app.command()
def preview(
    study: StudyFile,
    slots: Annotated[int, typer.Option("--slots", min=1, help="Slots to plan for.")] = 1,
    output: Output = Format.table,
) -> None:
    """What a study would cost, and save. Runs nothing."""
    from app.scheduling.preview import preview as previewed
    from app.settings import settings
    from stagetree.spec import StudySpec

    found = previewed(StudySpec.from_file(study, _limits()), slots=slots, limits=settings().limits)
    if output is Format.json:
        print_json(found)
        return
    print(f"trials          {found['trials']}")
    print(
        f"steps           {found['requested']} asked for, {found['unique']} different: merge rate {found['merge_rate']}"
    )
    print(f"critical path   {found['critical_path_steps']} steps: no number of slots is faster")
    print(f"makespan        {found['makespan_steps']} steps of time on {slots} slot{'s' * (slots > 1)}")


@app.command()
def up(
    slots: Slots = None,
    dir: Folder = Path(".stagetree"),
    trainers: Trainers = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Where the API listens.")] = 8000,
) -> None:
    """Start the embedded stack and keep it up: API, scheduler and one worker a slot."""
    from app.cli import stacks
    from app.embedded import default_slots

    slots = slots or default_slots()
    with stacks.own_stack(slots, dir, stacks.trainer_files(trainers or []), port=port, await_slots=True) as service:
        url = service.client.url
        print(f"stagetree is up at {url} with {slots} slot{'s' * (slots > 1)}; the log is in {service.folder}.")
        print(f"Submit a study from another terminal: stagetree submit examples/digits/study.yaml --server {url}")
        print(f"The API is described at {url}/docs. Ctrl-C ends everything; nothing is lost.", flush=True)
        try:
            while True:
                service.check()
                time.sleep(1)
        except KeyboardInterrupt:
            print("Stopping ...", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None


@app.command()
def submit(study: StudyFile, server: Server = None, output: Output = Format.table) -> None:
    """Submit a study to a server, and leave it to it."""
    from app.cli import stacks
    from stagetree.spec import StudySpec

    with stacks.server(server) as service:
        found = service.client.submit(StudySpec.from_file(study, limits=None))
    if output is Format.json:
        print_json(found)
    else:
        print(found["study"])
        print(f"Follow it with: stagetree watch {found['study']}", file=sys.stderr)


@app.command()
def watch(id: StudyId, server: Server = None, output: Output = Format.table) -> None:
    """Follow a study until it is over, and print its result."""
    from app.cli import stacks

    with stacks.server(server) as service:
        _finish(_follow(service, id), output)


@app.command()
def studies(server: Server = None, output: Output = Format.table) -> None:
    """List the studies, newest first."""
    from app.cli import stacks

    with stacks.server(server) as service:
        found = list(service.client.studies())
    if output is Format.json:
        print_json(found)
    else:
        rows = [
            (study["study"], study["state"], study.get("name"), _when(study.get("submitted_at"))) for study in found
        ]
        print_table(("study", "state", "name", "submitted"), rows)


@app.command()
def trials(id: StudyId, server: Server = None, output: Output = Format.table) -> None:
    """List the trials of a study."""
    from app.cli import stacks

    with stacks.server(server) as service:
        found = list(service.client.trials(id))
    if output is Format.json:
        print_json(found)
    else:
        rows = [
            (trial["trial"], trial["state"], trial["steps"], trial.get("value"), short_hp(trial["hp"]))
            for trial in found
        ]
        print_table(("trial", "state", "steps", "value", "hyper-parameters"), rows)


@app.command()
def events(
    id: StudyId,
    after: Annotated[int, typer.Option("--after", help="Begin behind this event.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the study is over.")] = False,
    server: Server = None,
    output: Output = Format.table,
) -> None:
    """Show what happened in a study, in order."""
    from app.cli import stacks

    with stacks.server(server) as service:
        found = service.client.follow(id, after) if follow else service.client.events(id, after)
        if output is Format.json:
            print_json(list(found))
            return
        for event in found:
            print(f"{event['position']:>7}  {event['type']:<18} {_brief(event['data'])}", flush=True)


@app.command()
def replay(
    id: StudyId,
    at: Annotated[int | None, typer.Option("--at", min=1, help="Only as far as the event at this position.")] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option("--what-if", help="FIELD=VALUE: decide with another study file; may be repeated."),
    ] = None,
    log: Annotated[Path | None, typer.Option("--log", help="Replay this file, made by `export`; no server.")] = None,
    server: Server = None,
    output: Output = Format.table,
) -> None:
    """Derive every decision of a study again from its log, and compare: exit code 1 if one differs."""
    from app.cli import replaying

    if what_if:
        found = _what_if(id, at, what_if, log, server)
        print_json(found) if output is Format.json else replaying.print_what_if(found)
        return
    found = (
        replaying.from_log(replaying.read(log), id, at, str(log)).to_json()
        if log
        else replaying.from_server(server, id, at)
    )
    print_json(found) if output is Format.json else replaying.print_replay(found)
    raise typer.Exit(DONE if found["identical"] else FAILED)


def _what_if(id: str, at: int | None, changes: list[str], log: Path | None, server: str | None) -> Json:
    """What would have been, worked out here from the log."""
    from app.cli import replaying, stacks
    from app.domain.ids import StudyId
    from app.scheduling.what_if import what_if

    if log:
        text = replaying.read(log)
    else:
        with stacks.server(server) as service:
            text = service.client.log(id)
    known = replaying.from_log(text, id, at, str(log or "the log"))
    return what_if(known.plan, StudyId(id), replaying.changes_of(changes))


@app.command()
def export(
    id: StudyId,
    curves: Annotated[bool, typer.Option("--curves", help="Print the study's curves instead, a trial a line.")] = False,
    server: Server = None,
) -> None:
    """Print the whole log of a study's plan, one event a line; `replay --log` reads it."""
    from app.cli import stacks
    from app.cli.curves import curves as curves_of

    with stacks.server(server) as service:
        log = service.client.log(id)
    sys.stdout.writelines(curves_of(log, id) if curves else [log])


@app.command()
def pause(id: StudyId, server: Server = None, output: Output = Format.table) -> None:
    """Start nothing new for a study until it is resumed; what runs for it alone is stopped, and kept."""
    _change("pause", id, server, output)


@app.command()
def resume(id: StudyId, server: Server = None, output: Output = Format.table) -> None:
    """Go on with a paused study."""
    _change("resume", id, server, output)


@app.command()
def reopen(
    id: StudyId,
    num_trials: Annotated[int, typer.Option("--num-trials", min=1, help="How many trials it has in all from here on.")],
    server: Server = None,
    output: Output = Format.table,
) -> None:
    """Go on with a completed study, with more trials; what was decided stands."""
    _change("reopen", id, server, output, num_trials)


@app.command()
def cancel(id: StudyId, server: Server = None, output: Output = Format.table) -> None:
    """End a study for good; its results so far stay."""
    _change("cancel", id, server, output)


app.command()(strike)


@app.command()
def doctor(server: Server = None, output: Output = Format.table) -> None:
    """Check this installation: what is here, what is missing, and what to do about it."""
    from app.cli.doctor import examine

    findings = examine(server)
    if output is Format.json:
        print_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            print(f"{'ok ' if finding.ok else 'BAD'}  {finding.what:<14} {finding.detail}")
    raise typer.Exit(DONE if all(finding.ok for finding in findings) else FAILED)


def _limits(server: str | None = None) -> Limits | None:
    """How much a study file may ask for here; a server knows its own limits."""
    from app.settings import settings

    return None if server else settings().limits


def _run(service: Service, spec: Json) -> Json:
    return _follow(service, _unfinished(service, spec) or service.client.submit(spec)["study"])


def _unfinished(service: Service, spec: Json) -> str | None:
    """In an embedded stack: the same study, if an earlier run in the folder was interrupted."""
    if service.folder is not None:
        for listed in service.client.studies():
            if listed["state"] in ("running", "paused") and service.client.study(listed["study"])["spec"] == spec:
                print(f"Going on with {listed['study']}, which was interrupted.", file=sys.stderr)
                service.client.resume(listed["study"])
                return str(listed["study"])
    return None


def _follow(service: Service, study: str) -> Json:
    from app.cli.progress import follow

    try:
        return follow(service.client, study, service.check)
    except KeyboardInterrupt:
        _interrupted(service, study)


def _interrupted(service: Service, study: str) -> NoReturn:
    if service.folder is None:
        again = f"stagetree watch {study} --server {service.client.url}"
        print(f"\nStopped watching; study {study} goes on. Watch it again with: {again}", file=sys.stderr)
    else:
        print(f"\nStopped; the slots of study {study} were this command's own and stop with it.", file=sys.stderr)
    raise typer.Exit(INTERRUPTED) from None


def _finish(study: Json, output: Format) -> NoReturn:
    """Print the result and end with the exit code that says how the study ended."""
    if output is Format.json:
        print_json(study)
    else:
        print_result(study)
    raise typer.Exit(DONE if study["state"] == "completed" else FAILED)


def _change(verb: str, id: str, server: str | None, output: Format, *arguments: Any) -> None:
    from app.cli import stacks

    with stacks.server(server) as service:
        found = getattr(service.client, verb)(id, *arguments)
    if output is Format.json:
        print_json(found)
    else:
        print(f"{found['study']} is {found['state']}")


def _when(at: float | None) -> str | None:
    return None if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _brief(data: dict[str, Any]) -> str:
    text = "  ".join(f"{name}={value}" for name, value in data.items() if name != "spec")
    return text if len(text) <= 160 else text[:157] + "..."
