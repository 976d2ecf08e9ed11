"""`stagetree audit`: has all that a finished study shares proven, and prints a verdict that can be cited."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import DONE, FAILED
from app.cli.options import Output, Server, Slots, StudyId, Trainers
from app.cli.output import Format, print_json
from app.cli.text import one_line, plural

if TYPE_CHECKING:
    from app.cli.documents import Documents
    from app.cli.stacks import Service

Json = dict[str, Any]
LOOK_SECONDS = 0.5
"""Between two looks at whether the audit is over."""

OwnStore = Annotated[
    Path | None,
    typer.Option("--dir", metavar="FOLDER", help="The store that has the study; by default .stagetree here."),
]


def audit(
    id: StudyId,
    slots: Slots = None,
    dir: OwnStore = None,
    trainers: Trainers = None,
    server: Server = None,
    output: Output = Format.table,
) -> None:
    """Train again, and compare, every stage of a study that began with a saved state: exit code 1 if a bit differs.

    \b
    Example:  stagetree audit last --trainers trainer.py
    """
    from app.cli import stacks
    from app.cli.finding import server_url
    from app.cli.places import DEFAULT

    url = None if dir or slots or trainers else server_url(server)
    if url:
        with stacks.server(url) as service:
            verdict = _audited(service, id)
    else:
        files = stacks.trainer_files(trainers or [], folder=Path())
        stack = stacks.OwnStack.of(dir or DEFAULT, slots, None, files)
        with stacks.own_stack(stack, await_slots=True) as service:
            verdict = _audited(service, id)
    print_json(verdict) if output is Format.json else _print(verdict)
    raise typer.Exit(FAILED if verdict["verdict"] == "inexact" or not verdict["replay"]["identical"] else DONE)


def _audited(service: Service[Documents], id: str) -> Json:
    """The verdict, once all was compared that can be."""
    from app.cli.finding import study_id
    from app.cli.standstill import Standstill

    study = study_id(service.client, id)
    service.client.audit(study)
    standstill, said = Standstill(service.client), ""
    while (found := service.client.study(study))["exactness"]["audited"]:
        service.check()
        if (reason := standstill.reason(found)) and reason != said:
            print(f"The audit waits: {one_line(reason)}", file=sys.stderr)
            said = reason
        time.sleep(LOOK_SECONDS)
    events = list(service.client.events(study, 0))
    compared = [event["data"] for event in events if event["type"] == "ExactnessTested"]
    plan = service.client.plan(study)
    return {
        "study": study,
        "plan": plan["plan"],
        "trainer": plan["trainer"],
        "trainer_version": plan["trainer_version"],
        **found["exactness"],
        "not_exact": found["not_exact"],
        "compared": len(compared),
        "differ": [test for test in compared if test["difference"]],
        "not_comparable": [test for test in compared if test["unproven"]],
        "devices": sorted({test["device"] for test in compared}),
        "events": len(events),
        "log_sha256": _digest(events),
        "replay": service.client.replay(study),
    }


def _digest(events: list[Json]) -> str:
    """Of what happened in the study, in order: equal for equal logs, wherever they are kept."""
    from app.domain.ids import canonical_json

    facts = hashlib.sha256()
    for event in events:
        facts.update(canonical_json([event["position"], event["type"], event["data"]]).encode())
    return facts.hexdigest()


def _print(found: Json) -> None:
    replay = found["replay"]
    print(f"study     {found['study']}, on {found['plan']}")
    print(f"trainer   {found['trainer']} at version {found['trainer_version']}")
    print(f"verdict   {found['verdict']}: {one_line(found['text'] or found['reason'])}")
    counts = f"{len(found['differ'])} differ, {len(found['not_comparable'])} could not be compared"
    print(f"compared  {plural(found['compared'], 'time')} on {', '.join(found['devices']) or 'nothing'}: {counts}")
    for test in found["differ"]:
        print(f"          step {test['step']}, begun again at {test['begin']}: {one_line(test['difference'])}")
    for reason in dict.fromkeys(test["unproven"] for test in found["not_comparable"]):
        print(f"          not compared: {one_line(reason)}")
    for each in found["not_exact"]:
        print(f"not exact {one_line(each)}")
    print(f"trained   {plural(found['proof_steps'], 'step')} again")
    print(f"replay    {'identical' if replay['identical'] else 'DIFFERS'}, from {plural(found['events'], 'event')}")
    print(f"log       sha256 {found['log_sha256']}")
