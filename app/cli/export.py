"""`stagetree export`: the log of a study's plan, or the curves of a study."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from app.cli.errors import NOT_FOUND, fail
from app.cli.options import Server, Store, StudyId
from app.cli.service import open_study


def trace_lines(log: str, study: str) -> Iterator[str]:
    """The study's traces, line by line, from a log that `export` printed."""
    from app.domain.evolve import fold
    from app.domain.terms import StudyId
    from app.service.html_report import parse
    from app.simulation.traces import record

    plan = fold(event for _, event in parse(log.splitlines()))
    if study not in plan.studies:
        fail(f"the log holds no study {study}", NOT_FOUND)
    for line in record(plan, plan.studies[StudyId(study)]):
        yield json.dumps(line) + "\n"


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
    with open_study(id, server, dir) as (service, study):
        log = service.client.log(study)
    sys.stdout.writelines(trace_lines(log, study) if curves else [log])
