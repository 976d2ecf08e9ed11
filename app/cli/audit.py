"""`stagetree audit`: train each trial that shares steps again, alone, and print a verdict to cite."""

from __future__ import annotations

import hashlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from app.cli.errors import CONFLICT, DONE, FAILED, INTERRUPTED, TIMEOUT, USAGE, fail
from app.cli.extras import STACK, require
from app.cli.options import DEFAULT_DIR, Output, Server, Slots, StudyId, Timeout, Trainers, is_store
from app.cli.output import Format, one_line, plural, print_json, redact
from app.cli.service import Documents, Service, local_server_url, open_server, server_url, study_id
from app.cli.watch import Standstill

Json = dict[str, Any]
LOOK_SECONDS = 0.5
"""The interval of polling the audit."""

MARKS_SHOWN = 5
"""The number of most frequent marks that are printed; the JSON has all."""

OwnStore = Annotated[
    Path | None,
    typer.Option("--dir", metavar="FOLDER", help="The store that has the study; by default .stagetree here."),
]


def audit(
    id: StudyId,
    slots: Slots = None,
    dir: OwnStore = None,
    trainers: Trainers = None,
    timeout: Timeout = None,
    server: Server = None,
    output: Output = Format.table,
) -> None:
    """Train each trial that shares steps again, alone and without a break, and compare: exit code 1 if a bit differs.

    Once asked for, the audit runs whenever slots are idle, whether or not this command still waits for it.

    \b
    Example:  stagetree audit last --trainers trainer.py
    """
    with _service(server, dir, slots, trainers, id) as service:
        study = study_id(service.client, id)
        service.client.audit(study)
        try:
            audited = _follow_audit(service, study, timeout)
        except KeyboardInterrupt:
            _stop_waiting(service, study, "Stopped", INTERRUPTED)
        if audited is None:
            _stop_waiting(service, study, f"Not over after {timeout:g} seconds", TIMEOUT)
        verdict = _verdict(service, audited)
    print_json(verdict) if output is Format.json else _print(verdict)
    raise typer.Exit(FAILED if verdict["verdict"] == "inexact" or not verdict["replay"]["identical"] else DONE)


@contextmanager
def _service(
    url: str | None, folder: Path | None, slots: int | None, trainers: list[str] | None, study: str
) -> Iterator[Service[Documents]]:
    """A server, or slots of this command on the study's store."""
    from app.cli.own_stack import own_stack, stack_of
    from app.cli.trainer_files import trainer_files

    own = folder or slots or trainers
    if url and own:
        fail(
            "--server is for the slots of a server; --dir, --slots and --trainers are for slots of this command", USAGE
        )
    there = server_url(url) or local_server_url()
    if not own and (there or not is_store(DEFAULT_DIR)):
        with open_server(there) as service:
            yield service
        return
    require(*STACK)
    files = trainer_files(trainers or [], folder=Path())
    _check_here(folder or DEFAULT_DIR, study, files)
    with own_stack(stack_of(folder or DEFAULT_DIR, slots, None, files), await_slots=True) as service:
        yield service


def _check_here(folder: Path, meant: str, files: list[str]) -> None:
    """Exit with a message if this command's slots lack the study's trainer: no other slots would train it."""
    from app.cli.store import Store
    from app.registry import Catalogue

    with Store(folder) as store:
        plan = store.plan(study_id(store, meant))
    name, version, source = plan["trainer"], plan["trainer_version"], Catalogue(files).find(plan["trainer"])
    if source is None:
        fail(f"trainer {name} is not here: give its file with --trainers FILE.py", USAGE)
    if source.version != version:
        text = f"the study was trained with trainer {name} at version {version}, and {source.path} has {source.version}"
        fail(f"{text}: an audit needs the file as it was then", CONFLICT)


def _follow_audit(service: Service[Documents], study: str, timeout: float | None) -> Json | None:
    """The study when nothing is left to compare; None after the timeout. Prints why it waits."""
    deadline = None if timeout is None else time.monotonic() + timeout
    standstill, last_reason = Standstill(service.client), ""
    told = _report_waiting_studies(service, study, frozenset())
    document: Json
    while (document := service.client.study(study, trials=False))["exactness"]["audited"]:
        service.check()
        told = _report_waiting_studies(service, study, told)
        if (reason := standstill.reason(document)) and reason != last_reason:
            print(f"{study}: {one_line(reason)}", file=sys.stderr, flush=True)
            last_reason = reason
        if deadline is not None and time.monotonic() >= deadline:
            return None
        time.sleep(LOOK_SECONDS)
    return dict(service.client.study(study))


def _report_waiting_studies(service: Service[Documents], study: str, told: frozenset[str]) -> frozenset[str]:
    """Report once why each other study in the folder waits; returns all reported studies.

    A server has slots for other studies as well, so nothing is reported then.
    """
    if service.folder is None:
        return told
    running = [each["study"] for each in service.client.studies(state=("running",))]
    for other in [name for name in running if name != study and name not in told]:
        if waits := service.client.study(other, trials=False).get("waits_for"):
            print(
                f"Beside the audit, {other} of this folder stands still: {one_line('; '.join(waits))}.", file=sys.stderr
            )
            told |= {other}
    return told


def _stop_waiting(service: Service[Documents], study: str, how: str, code: int) -> NoReturn:
    """Exit while the audit stays requested. For this command's slots, `own_stack` prints how to resume."""
    if service.folder is None:
        again = f"stagetree audit {study} {redact(service.place)}"
        print(f"\n{how}; the audit of {study} is still running. Wait for it again with: {again}", file=sys.stderr)
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the stack ends, which handles it again
        print(f"\n{how}; the audit of {study} stops with the slots of this command.", file=sys.stderr)
    raise typer.Exit(code) from None


def _verdict(service: Service[Documents], document: Json) -> Json:
    """The study's exactness, with the versions, devices and events behind it."""
    study = document["study"]
    events = list(service.client.events(study, 0))
    tested = [event["data"] for event in events if event["type"] == "ExactnessTested"]
    compared = [test for test in tested if not test["goes_on"]]
    plan = service.client.plan(study)
    marks = {trial["trial"]: trial.get("exactness", "") for trial in service.client.trials(study)}
    return {
        "study": study,
        "plan": plan["plan"],
        "trainer": plan["trainer"],
        "trainer_version": plan["trainer_version"],
        **document["exactness"],
        "not_exact": document["not_exact"],
        "trials": len(marks),
        "marked": [{"trial": number, "exactness": mark} for number, mark in marks.items() if mark],
        "compared": len(compared),
        "differ": [test for test in compared if test["difference"]],
        "not_comparable": [test for test in compared if test["unproven"]],
        "devices": sorted({test["device"] for test in compared}),
        "events": len(events),
        "log_sha256": _digest(events),
        "replay": service.client.replay(study),
    }


def _digest(events: list[Json]) -> str:
    """The hash of the study's events in order, equal for equal logs in any store."""
    from app.domain.terms import canonical_json

    facts = hashlib.sha256()
    for event in events:
        facts.update(canonical_json([event["position"], event["type"], event["data"]]).encode())
    return facts.hexdigest()


def _print(verdict: Json) -> None:
    replay = verdict["replay"]
    print(f"study     {verdict['study']}, on {verdict['plan']}")
    print(f"trainer   {verdict['trainer']} at version {verdict['trainer_version']}")
    print(f"verdict   {one_line(verdict['text'] or verdict['verdict'])}")
    counts = f"{len(verdict['differ'])} differ, {len(verdict['not_comparable'])} could not be compared"
    print(f"compared  {plural(verdict['compared'], 'time')} on {', '.join(verdict['devices']) or 'nothing'}: {counts}")
    for test in verdict["differ"]:
        print(f"          step {test['step']}, begun again at {test['begin']}: {one_line(test['difference'])}")
    for reason in dict.fromkeys(test["unproven"] for test in verdict["not_comparable"]):
        print(f"          not compared: {one_line(reason)}")
    for each in verdict["not_exact"]:
        print(f"not exact {one_line(each)}")
    if marked := verdict["marked"]:
        print(f"marked    {len(marked)} of {plural(verdict['trials'], 'trial')}")
    for mark, count in Counter(trial["exactness"] for trial in marked).most_common(MARKS_SHOWN):
        print(f"          {count}: {one_line(mark)}")
    print(f"trained   {plural(verdict['proof_steps'], 'verification step')}")
    print(f"replay    {'identical' if replay['identical'] else 'DIFFERS'}, from {plural(verdict['events'], 'event')}")
    print(f"log       sha256 {verdict['log_sha256']}")
