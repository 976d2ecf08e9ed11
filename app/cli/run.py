"""`stagetree run` and `submit`. The same `run` again resumes the study that was interrupted."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import study_files
from app.cli.errors import USAGE, fail, report_early_interrupt
from app.cli.extras import STACK, require
from app.cli.interrupted_studies import report_changed_trainer, report_resumed_studies, resume_interrupted
from app.cli.options import (
    DEFAULT_DIR,
    Changes,
    Output,
    Plain,
    Quiet,
    Server,
    Slots,
    SlotsPerGpu,
    Strict,
    StudyFile,
    Trainers,
)
from app.cli.output import Format, plural, print_json, redact
from app.cli.service import Documents, Service, open_server, server_url
from app.cli.study_files import print_final_advice, report_submission
from app.cli.watch import Show, choose_display, print_result_commands, print_study, watch_until_end

if TYPE_CHECKING:
    from app.embedded.stack import Embedded
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

    Results and states are kept in .stagetree here, and the next study reuses them.

    `stagetree trials last` lists the trials.

    \b
    Example:  stagetree run study.yaml --slots 2 --set tuner.max_steps=20
    """
    with ExitStack() as early:
        with report_early_interrupt():
            local = {"--slots": slots, "--slots-per-gpu": slots_per_gpu, "--dir": dir, "--discard": discard}
            own = [name for name, given in (local | {"--trainers": trainers}).items() if given]
            if server and own:
                where = "is for a run on this machine, and --server sends the study elsewhere"
                fail(f"{own[0]} {where}: leave one out", USAGE)
            if dir and discard:
                fail("--dir keeps the results and --discard keeps nothing: leave one out", USAGE)
            url, show = None if own else server_url(server), choose_display(plain, quiet)
            if not url:
                require(*STACK)
                from app.embedded.interpreters import Interpreters

                started = early.enter_context(closing(Interpreters()))  # first, since their imports take longest
            spec = study_files.load_to_run(study, changes or (), is_here=not url, is_checked=not no_check)
        if url:
            raise typer.Exit(_run_on_server(url, spec, show, output, is_named=server is not None, is_strict=strict))
        with report_early_interrupt():
            from app.cli.own_stack import stack_of
            from app.cli.trainer_files import check_trainer, trainer_files

            files = trainer_files(trainers or [], folder=study.parent)
            source = check_trainer(spec, files, study.parent)
            stack = stack_of(None if discard else dir or DEFAULT_DIR, slots, slots_per_gpu, files, interpreters=started)
        raise typer.Exit(_run_on_stack(stack, discard, spec, source, show, output, is_strict=strict))


def _run_on_server(url: str, spec: StudySpec, show: Show, output: Format, *, is_named: bool, is_strict: bool) -> int:
    """Run a study on a server, and return the exit code."""
    if not is_named:
        print(f"Sending the study to {redact(url)}, the server of STAGETREE_URL.", file=sys.stderr)
    with open_server(url) as service:
        return _run_and_print(service, spec, show, output, is_strict=is_strict)


def _run_on_stack(
    stack: Embedded,
    is_temporary: bool,
    spec: StudySpec,
    source: TrainerSource,
    show: Show,
    output: Format,
    *,
    is_strict: bool,
) -> int:
    """Run a study on a stack of its own, print advice while that starts, and return the exit code."""
    from app.cli.own_stack import own_stack

    stack.to_run = source.path

    def advise() -> None:
        if show is not Show.quiet:
            study_files.print_advice(study_files.trainer_advice(spec, source))

    if show is not Show.quiet:
        print(f"Starting {plural(stack.slots, 'slot')} on this machine ...", file=sys.stderr)
    with own_stack(stack, is_temporary=is_temporary, meanwhile=advise) as service:
        code = _run_and_print(service, spec, show, output, is_strict=is_strict)
    if show is not Show.quiet:
        print_result_commands(service)
    return code


def _run_and_print(service: Service[Documents], spec: StudySpec, show: Show, output: Format, *, is_strict: bool) -> int:
    """Run the study, print its result with advice, and return the exit code."""
    is_quiet = show is Show.quiet
    study = resume_interrupted(service, spec.to_json()) or report_submission(
        service.client.submit(spec.to_json()), is_quiet=is_quiet
    )
    if not is_quiet:
        print(f"In a browser: {redact(service.client.url)}/#/studies/{study}", file=sys.stderr)
        report_resumed_studies(service, study)
        report_changed_trainer(service, study)
    document = watch_until_end(service, study, show)
    code = print_study(service, document, output, is_strict=is_strict)
    if not is_quiet:
        print_final_advice(spec, document)
    return code


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
    spec = study_files.load(study, changes or (), None)
    with open_server(server) as service:
        document = service.client.submit(spec, project=project)
    if output is Format.json:
        print_json(document)
    else:
        print(report_submission(document))
        where = f" {redact(service.place)}" if server else ""
        print(f"Follow it with: stagetree watch {document['study']}{where}", file=sys.stderr)
