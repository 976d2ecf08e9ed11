"""`stagetree studies`: the list of studies with their progress, best result and savings."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from app.cli.errors import FAILED, NOT_FOUND, USAGE, error_text, exit_code, fail
from app.cli.options import ListOutput, Server, Store
from app.cli.output import ListFormat, fraction, one_line, print_list
from app.cli.service import open_service
from stagetree.text import mark_word, saved_text

Json = dict[str, Any]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="List at most N.")]

States = Annotated[
    list[str] | None, typer.Option("--state", metavar="STATE", help="List only this state; may be repeated.")
]

Tagged = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="List only studies with this tag; may be repeated.")
]

MOST_SUMMARIES = 50
"""The number of newest studies with their best result, which takes a read of each log."""

UNATTENDED = "interrupted"
"""The displayed state of a running study in a store without a stack; in JSON it is running."""

IDLE = "No process trains an interrupted study: `stagetree run` with the same study file resumes it."
HEADER = ["study", "state", "name", "tuner", "trials", "best", "saved", "submitted"]


def studies(
    state: States = None,
    tag: Tagged = None,
    limit: Limit = None,
    server: Server = None,
    dir: Store = None,
    output: ListOutput = ListFormat.table,
) -> None:
    """List the studies, newest first: the best result of each, and what sharing and early stopping saved.

    \b
    Example:  stagetree studies --state running
    """
    from app.domain.terms import StudyState

    check_states(state, tuple(StudyState))
    chosen = set(tag or ())
    with open_service(server, dir) as service:
        is_attended = service.client.is_attended
        every = service.client.studies(state=state or ())
        listed = [dict(study) for study in every if chosen <= set(study.get("tags", ()))][:limit]
        for study in listed[:MOST_SUMMARIES]:
            study.update(_read_summary(service.client, study["study"]))
    more = [name for name in ("mark", "due", "tags", "begins") if any(_more(study, name) for study in listed)]
    header = [*HEADER, *({"begins": "begins from"}.get(name, name) for name in more)]
    rows = [[*_row(study, is_attended), *(_more(study, name) for name in more)] for study in listed]
    print_list(listed, output, header, rows)
    if output is not ListFormat.table:
        return
    for study in (each for each in listed if each.get("mark")):
        print(f"{study['study']}: {one_line(study['mark'])}")
    if sys.stdout.isatty() and not is_attended and any(study["state"] == "running" for study in listed):
        print(IDLE)  # for people: a program that reads the list finds nothing but the list
    if len(listed) > MOST_SUMMARIES:
        print(f"best results are shown for the newest {MOST_SUMMARIES} studies only", file=sys.stderr)


def _read_summary(client: Any, id: str) -> Json:
    """A study's further columns. An unreadable study is reported, and the others are still listed."""
    try:
        return _summary(client.study(id, trials=False))
    except Exception as error:
        if exit_code(error) not in (FAILED, NOT_FOUND):
            raise
        print(f"{id}: {one_line(error_text(error))}", file=sys.stderr)
        return {}


def _summary(study: Json) -> Json:
    """The further columns of a study."""
    named = {name: study.get(name) for name in ("tuner", "metric", "mode")}
    best, cost = study["best"] or {}, study["cost"]
    saved = {name: cost.get(name) for name in ("saved_by_sharing", "saved_by_stopping")}
    result = {"best": best.get("value"), "best_trial": best.get("trial")}
    known = {name: study["exactness"][name] for name in ("verdict", "mark")}
    return {**named, "trials": fraction(study["progress"]["trials"]), **result, **saved, **known}


def _row(study: Json, is_attended: bool) -> list[Any]:
    state = UNATTENDED if study["state"] == "running" and not is_attended else study["state"]
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(study["submitted_at"]))
    if "tuner" not in study:
        return [study["study"], state, study["name"], *[None] * 4, at]
    saved = saved_text(study["saved_by_sharing"], study["saved_by_stopping"])
    own = [study["tuner"], study["trials"], _best(study), saved]
    return [study["study"], state, study["name"], *own, at]


def _best(study: Json) -> str | None:
    if study["best"] is None:
        return None
    end = "lowest" if study["mode"] == "min" else "highest"
    return f"{study['metric']} {study['best']:.6g} ({end}, trial {study['best_trial']})"


def _more(study: Json, name: str) -> Any:
    """The value of an optional column, which is left out if no study has one."""
    if name == "mark":
        return mark_word(study.get("mark", "")) or None
    if name == "due":
        slots = study["slots"]
        return slots["due"] and f"{slots['used']} of {slots['due']:.3g} slots"
    return " ".join(study.get("tags", ())) if name == "tags" else study.get("begins") or None


def check_states(states: list[str] | None, names: tuple[str, ...]) -> None:
    """Exit with a message if a state is unknown."""
    from stagetree.sequences import did_you_mean

    for state in states or ():
        if state not in names:
            fail(f"--state: must be one of {', '.join(names)}, got {state}{did_you_mean(state, names)}", USAGE)
