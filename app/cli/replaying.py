"""`stagetree replay`: from a server, or from an exported log with nothing else at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.errors import NOT_FOUND, USAGE, fail
from app.cli.output import Json

if TYPE_CHECKING:
    from app.scheduling.replay import Replay

STANDING = ("bracket", "rung", "steps")


def from_server(url: str | None, study: str, at: int | None) -> Json:
    """Replayed by the server."""
    from app.cli import stacks

    with stacks.server(url) as service:
        return service.client.replay(study, at)


def from_log(text: str, study: str, at: int | None, where: str) -> Replay:
    """Replayed here, from a log that `export` printed."""
    from app.domain.ids import StudyId
    from app.events.export import parse
    from app.scheduling.replay import replay

    found = replay(parse(text.splitlines()), StudyId(study), at=at)
    if study not in found.plan.studies:
        fail(f"{where} holds no study {study}: it has {', '.join(found.plan.studies) or 'none'}", NOT_FOUND)
    return found


def read(path: Path) -> str:
    """The text of an exported log."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path}: {error.strerror if isinstance(error, OSError) else 'is not a log'}", USAGE)


def changes_of(given: list[str]) -> Json:
    """What `--what-if tuner.reduction_factor=3` says, by dotted path; values are JSON, or else strings."""
    found: Json = {}
    for each in given:
        path, separator, value = each.partition("=")
        if not separator or not path:
            fail(f"--what-if: must be FIELD=VALUE, such as tuner.reduction_factor=3, got {each!r}", USAGE)
        try:
            found[path] = json.loads(value)
        except ValueError:
            found[path] = value
    return found


def print_what_if(found: Json) -> None:
    """What the study would have been with changes."""
    print(f"trials     {found['trials']}")
    print(f"steps      {found['requested']} asked for, {found['unique']} different")
    print(f"saved      {found['saved']} of the steps that the study had")
    print(f"needed     {found['needed']} steps that nobody has trained")
    if best := found["best"]:
        print(
            f"best       trial {best['trial']} with {best['value']:.6g} after {best['steps']} steps, as far as is known"
        )


def print_replay(found: Json) -> None:
    """The decisions about trials in order with their reasons, and whether all could be derived."""
    for line in found["history"]:
        if line["kind"] in ("promote", "prioritize", "stop"):
            standing = "  ".join(f"{name} {line[name]}" for name in STANDING if name in line)
            print(
                f"{line['event']:>7}  {line['kind']:<10} trial {line['trial']:<5} {standing}  {_reason(line['reason'])}"
            )
    if found["identical"]:
        print(f"identical: {found['decisions']} decisions derived again from {found['events']} events")
    else:
        difference = found["difference"]
        print(f"DIFFERENT at event {difference['event']}:")
        print(f"  recorded {difference['recorded']}")
        print(f"  derived  {difference['derived']}")


def _reason(reason: dict[str, Any]) -> str:
    if {"rank", "cut", "of"} <= reason.keys():
        return f"rank {reason['rank']} of {reason['of']}, the best {reason['cut']} go on"
    return "  ".join(f"{name}={value}" for name, value in reason.items())
