"""The live view of a study in a terminal: progress, savings, and the stage of each slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from app.cli.output import fraction, number, one_line, plural, resting_text, steps_text
from stagetree.text import FINAL, decision_text, duration, rank_text, saved_text, short_hp

Json = dict[str, Any]
NARROW = 60
"""The fewest columns with progress bars."""

COLOURS = {"completed": "green", "failed": "red", "cancelled": "yellow", "paused": "yellow"}


def live(looks: Iterator[Json]) -> None:
    """Update the view in place until the study is over."""
    console = Console(stderr=True, highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as view:
        for study in looks:
            view.update(frame(study, console.height, console.width), refresh=True)
    console.print()


def frame(study: Json, height: int = 24, width: int = 80) -> RenderableType:
    """The view of a study, in at most `height` lines if possible."""
    body = Table.grid(padding=(0, 1), expand=True)
    body.add_column(style="dim", no_wrap=True, width=7)
    body.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for label, text in (("trials", _trials(study)), ("steps", _steps(study))):
        body.add_row(label, text if width < NARROW else _bar(study["progress"][label], text))
    for label, text in _facts(study):
        body.add_row(label, text)
    slots = _slots(study, max(1, height - body.row_count - 2))  # one for the title, and one spare
    return Group(_title(study), body, *slots)


def _title(study: Json) -> Table:
    left = study["progress"]["seconds_left"]
    time = f"{duration(study['wall_seconds'])} elapsed" + (f", about {duration(left)} left" if left else "")
    title = Table.grid(padding=(0, 1), expand=True)
    title.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    title.add_column(justify="right", no_wrap=True)
    name = Text(study["study"], "bold")
    name.append(f" · {study['tuner']} · ", "not bold").append(study["state"], COLOURS.get(study["state"], "cyan"))
    title.add_row(name, Text(time, "dim"))
    return title


def _bar(counts: Json, text: Text) -> Table:
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True, justify="left", min_width=34, overflow="ellipsis")
    total = counts["expected"] or max(counts["done"], 1)
    row.add_row(ProgressBar(total=total, completed=counts["done"]), text)
    return row


def _trials(study: Json) -> Text:
    counts, trials = study["counts"], study["progress"]["trials"]
    text = Text(fraction(trials))
    if counts["failed"]:
        text.append(f"  {counts['failed']} failed", "bold red")
    for state in ("running", "waiting", "cancelled"):
        if counts[state]:
            text.append(f"  {counts[state]} {state}")
    if trials["resting"]:
        text.append(f"  {resting_text(study['progress'])}")
    return text


def _steps(study: Json) -> Text:
    steps = study["progress"]["steps"]
    if not steps["expected"]:
        return Text("none asked for" + ("" if study["state"] in FINAL else " yet"), "dim")
    share = steps["done"] / steps["expected"]
    return Text(f"{steps_text(study).removesuffix(' steps')}  {share:.0%}")


def _facts(study: Json) -> Iterator[tuple[str, Text]]:
    if rungs := study["progress"]["rungs"]:
        yield "rungs", Text("   ".join(_brackets(rungs)))
    yield "saved", _saved_text(study)
    if study["best"]:
        yield "best", _best(study)
    if last := study["progress"]["last"]:
        decision = decision_text(last["kind"], last["trial"], last["steps"])
        yield "last", Text(f"{decision}: {rank_text(last['reason'])}".removesuffix(": "))
    if study["waits"]:
        yield "waits", Text(one_line(study["waits"]), "bold red", no_wrap=False, overflow="fold")
    if study["ending"]:
        yield "ended", Text(one_line(study["ending"]))
    if study["error"]:
        yield "error", Text(one_line(study["error"]), "red")


def _brackets(rungs: list[Json]) -> Iterator[str]:
    """For each bracket, its rungs with their steps, and the trials that arrived and entered."""
    for bracket in sorted({rung["bracket"] for rung in rungs}):
        inside = [rung for rung in rungs if rung["bracket"] == bracket]
        yield " ▸ ".join(f"{rung['steps']}: {rung['arrived']}/{rung['entered']}" for rung in inside)


def _saved_text(study: Json) -> Text:
    cost = study["cost"]
    text = Text(saved_text(cost.get("saved_by_sharing"), cost.get("saved_by_stopping")))
    again = [f"{cost[name]} {name}" for name in ("repeated", "retried", "lost") if cost.get(name)]
    if again:
        text.append(f"   {', '.join(again)}", "yellow")
    return text


def _best(study: Json) -> Text:
    result = study["best"]
    text = Text(f"{one_line(study['metric'])} ").append(number(result["value"]), "bold green")
    text.append(f"  trial {result['trial']} @ {result['steps']}  ")
    return text.append(one_line(short_hp(result["hp"])), "dim")


def _slots(study: Json, room: int) -> list[RenderableType]:
    """A line for each slot that trains for the study, as far as there is room."""
    running = sorted(study["progress"]["running"], key=lambda run: str(run["slot"]))
    if not running:
        return []
    shown = running if len(running) <= room else running[: room - 1]
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(style="cyan", no_wrap=True, min_width=7)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=3, style="dim")
    table.add_column(ratio=1, max_width=30)
    table.add_column(no_wrap=True, justify="right")
    for run in shown:
        bar = ProgressBar(total=max(run["end"] - run["start"], 1), completed=run["step"] - run["start"])
        values = one_line("  ".join(f"{name} {text}" for name, text in run["forms"].items()))
        table.add_row(one_line(run["slot"]), _trials_text(run), values, bar, f"{run['step']}/{run['end']}")
    rest = len(running) - len(shown)
    return [table, *([Text(f"and {plural(rest, 'more slot')}", "dim")] if rest else [])]


def _trials_text(run: Json) -> str:
    """The trials that the stage serves or verifies."""
    if not run["trials"]:
        return "verification" if run.get("proof") else "another study's"
    if run["trial_count"] == 1:
        return f"{'verifies ' if run.get('proof') else ''}trial {run['trials'][0]}"
    if run.get("proof"):
        return f"verifies {plural(run['trial_count'], 'trial')}"
    return f"trial {run['trials'][0]} and {run['trial_count'] - 1} more"
