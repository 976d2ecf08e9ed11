"""Commands that run studies, here or on a server, and follow them."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import INTERRUPTED, TIMEOUT, USAGE, fail, said_if_interrupted
from app.cli.options import (
    DEFAULT_DIR,
    Changes,
    Host,
    Insecure,
    Output,
    Plain,
    Port,
    Quiet,
    Server,
    Sinks,
    Slots,
    SlotsPerGpu,
    Store,
    Strict,
    StudyFile,
    StudyId,
    Timeout,
    Trainers,
)
from app.cli.output import Format, plural, print_json, without_secrets
from app.cli.study_files import print_advice, print_afterthoughts, print_doubts, submitted
from app.cli.watch import checked, code_of, finish, print_study, say_what_is_kept, until_end

if TYPE_CHECKING:
    from app.cli.stacks import OwnStack, Service
    from app.cli.study_lookup import Documents
    from app.cli.watch import AnyService, Show
    from app.registry import TrainerSource
    from stagetree.spec import StudySpec

Json = dict[str, Any]
Keep = Annotated[
    Path | None,
    typer.Option("--dir", metavar="FOLDER", help="The folder for results and weights; by default .stagetree here."),
]

Discard = Annotated[bool, typer.Option("--discard", help="Keep nothing: work in a temporary folder.")]


def run(
    study: StudyFile,
    slots: Slots = None,
    slots_per_gpu: SlotsPerGpu = None,
    dir: Keep = None,
    discard: Discard = False,
    trainers: Trainers = None,
    server: Server = None,
    changes: Changes = None,
    plain: Plain = False,
    quiet: Quiet = False,
    strict: Strict = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not check the trainer first.")] = False,
    output: Output = Format.table,
) -> None:
    """Run a study, follow it and print its result: on this machine, unless a server is named.

    What was trained is kept in .stagetree here, and the next study reuses it. `stagetree trials last` lists the trials.

    \b
    Example:  stagetree run study.yaml --slots 2 --set tuner.max_steps=20
    """
    with ExitStack() as early:
        with said_if_interrupted():
            from app.cli import study_files
            from app.cli.study_lookup import server_url
            from app.cli.watch import how

            local = {"--slots": slots, "--slots-per-gpu": slots_per_gpu, "--dir": dir, "--discard": discard}
            own = [name for name, given in (local | {"--trainers": trainers}).items() if given]
            if server and own:
                where = "is for a run on this machine, and --server sends the study elsewhere"
                fail(f"{own[0]} {where}: leave one out", USAGE)
            if dir and discard:
                fail("--dir keeps the results and --discard keeps nothing: leave one out", USAGE)
            url, show = None if own else server_url(server), how(plain, quiet)
            if not url:
                from app.embedded import Interpreter

                forking = early.enter_context(closing(Interpreter()))  # before anything is read: it has most to import
            spec = study_files.load_to_run(study, changes or (), is_here=not url, is_checked=not no_check)
        if url:
            raise typer.Exit(_run_there(url, spec, show, output, is_named=server is not None, is_strict=strict))
        with said_if_interrupted():
            from app.cli import stacks

            files = stacks.trainer_files(trainers or [], folder=study.parent)
            source = stacks.check_trainer(spec, files, study.parent)
            stack = stacks.OwnStack.of(None if discard else dir or DEFAULT_DIR, slots, slots_per_gpu, files)
        raise typer.Exit(_run_here(replace(stack, forking=forking), spec, source, show, output, is_strict=strict))


def _run_there(url: str, spec: StudySpec, show: Show, output: Format, *, is_named: bool, is_strict: bool) -> int:
    """Run a study on a server; the exit code."""
    from app.cli import stacks
    from app.cli.watch import Show

    if show is not Show.quiet:
        print_advice(spec)
    if not is_named:
        print(f"Sending the study to {without_secrets(url)}, the server of STAGETREE_URL.", file=sys.stderr)
    with stacks.server(url) as service:
        return _run_and_print(service, spec, show, output, is_strict=is_strict)


def _run_here(
    stack: OwnStack, spec: StudySpec, source: TrainerSource, show: Show, output: Format, *, is_strict: bool
) -> int:
    """Run a study on a stack of its own, which starts while advice is thought of; the exit code."""
    from app.cli import stacks
    from app.cli.watch import Show

    def advise() -> None:
        if show is not Show.quiet:
            print_advice(spec)
            print_doubts(spec, source)

    if show is not Show.quiet:
        print(f"Starting {plural(stack.slots, 'slot')} on this machine ...", file=sys.stderr)
    with stacks.own_stack(replace(stack, to_run=source.path), meanwhile=advise) as service:
        code = _run_and_print(service, spec, show, output, is_strict=is_strict)
    if show is not Show.quiet:
        say_what_is_kept(service)
    return code


def _run_and_print(service: Service[Documents], spec: StudySpec, show: Show, output: Format, *, is_strict: bool) -> int:
    """Run the study and print its result, with advice; the exit code."""
    from app.cli.watch import Show

    document = _run(service, spec.to_json(), show)
    code = print_study(service, document, output, is_strict=is_strict)
    if show is not Show.quiet:
        print_afterthoughts(spec, document)
    return code


def up(
    slots: Slots = None,
    slots_per_gpu: SlotsPerGpu = None,
    dir: Annotated[Path, typer.Option("--dir", metavar="FOLDER", help="Folder of results and weights.")] = DEFAULT_DIR,
    trainers: Trainers = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    insecure: Insecure = False,
) -> None:
    """Start the embedded stack and keep it up: API, scheduler and one worker per slot.

    \b
    Example:  stagetree up --slots 4 --trainers trainer.py
    """
    from app.cli import stacks
    from app.cli.resume_run import tell_others

    if insecure:
        os.environ["STAGETREE_ACCESS"] = "open"
    stack = stacks.OwnStack.of(dir, slots, slots_per_gpu, stacks.trainer_files(trainers or []))
    with stacks.own_stack(replace(stack, host=host, port=port, stays=True), await_slots=True) as service:
        url = service.client.url
        print(f"stagetree is up at {url} with {plural(stack.slots, 'slot')}; the log is in {service.folder}.")
        print(f"Submit a study from another terminal: stagetree submit study.yaml --server {url}")
        if service.external_url:
            print(_said_to_others(service.external_url, service.token))
        print(f"Open {url} in a browser to watch; the API is described at {url}/docs.")
        print("Ctrl-C stops everything; nothing is lost.", flush=True)
        tell_others(service)
        try:
            while True:
                service.check()
                time.sleep(1)
        except KeyboardInterrupt:
            print("Stopping ...", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None


def _said_to_others(url: str, token: str | None) -> str:
    """Where other machines reach a stack, and what they need."""
    if os.environ.get("STAGETREE_ACCESS") == "open":
        return f"Other machines reach it at {url}; it needs no token, so every caller may do everything."
    return (
        f"Other machines reach it at {url}/#token={token}\n"
        f"That address lets its reader do everything. Commands there need STAGETREE_URL={url} and\n"
        f"STAGETREE_TOKEN={token}; `stagetree token create NAME` makes tokens for others, who may do less."
    )


def submit(
    study: StudyFile,
    server: Server = None,
    changes: Changes = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="P", help="The study's project; by default that of your token.")
    ] = None,
    output: Output = Format.table,
) -> None:
    """Submit a study to a server, and return at once.

    \b
    Example:  stagetree submit study.yaml --server http://gpu-box:8000
    """
    from app.cli import stacks, study_files

    spec = study_files.load(study, changes or (), None)
    with stacks.server(server) as service:
        document = service.client.submit(spec, project=project)
    if output is Format.json:
        print_json(document)
    else:
        print(submitted(document))
        where = f" {without_secrets(service.place)}" if server else ""
        print(f"Follow it with: stagetree watch {document['study']}{where}", file=sys.stderr)


def watch(
    id: StudyId,
    server: Server = None,
    dir: Store = None,
    to: Sinks = None,
    plain: Plain = False,
    quiet: Quiet = False,
    strict: Strict = False,
    output: Output = Format.table,
) -> None:
    """Follow a study until it is over, and print its result.

    \b
    Example:  stagetree watch last --to tensorboard:runs
    """
    from app.cli import stacks
    from app.cli.sinks import writing_to
    from app.cli.watch import how

    with stacks.reading_study(id, server, dir) as (service, study):
        with writing_to(to or (), study, server, dir) as check:
            document = until_end(checked(service, check), study, how(plain, quiet))
        finish(service, document, output, is_strict=strict)


def wait(
    id: StudyId,
    timeout: Timeout = None,
    strict: Strict = False,
    server: Server = None,
    dir: Store = None,
) -> None:
    """Wait until a study is over. Exit codes: 0 completed, 1 failed or cancelled, 124 timed out.

    With --strict, the code is 5 if the study completed and some of its trials failed.

    \b
    Example:  stagetree wait last --timeout 3600 && stagetree trials last -o csv > trials.csv
    """
    from app.cli import stacks
    from app.cli.watch import Show, follow

    with stacks.reading_study(id, server, dir) as (service, study):
        document = follow(service.client, study, Show.quiet, _until(timeout, service))
        raise typer.Exit(code_of(document, is_strict=strict))


def _until(timeout: float | None, service: AnyService) -> Any:
    """A check that ends the command when its time is over."""
    deadline = None if timeout is None else time.monotonic() + timeout

    def check() -> None:
        service.check()
        if deadline is not None and time.monotonic() >= deadline:
            raise typer.Exit(TIMEOUT)

    return check


def _run(service: Service[Documents], spec: Json, show: Show) -> Json:
    from app.cli.resume_run import tell_others, unfinished
    from app.cli.watch import Show

    study = unfinished(service, spec) or submitted(service.client.submit(spec), is_quiet=show is Show.quiet)
    if show is not Show.quiet:
        print(f"In a browser: {without_secrets(service.client.url)}/#/studies/{study}", file=sys.stderr)
        tell_others(service, study)
    return until_end(service, study, show)
