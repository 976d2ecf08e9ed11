"""`stagetree replay`: from a server, or from an exported log with nothing else at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.cli.errors import NOT_FOUND, USAGE, fail
from app.cli.output import Json

STANDING = ("bracket", "rung", "steps")


def from_server(url: str | None, study: str, at: int | None) -> Json:
    """Replayed by the server."""
    from app.cli import stacks

    with stacks.server(url) as service:
        return service.client.replay(study, at)


def from_file(path: Path, study: str, at: int | None) -> Json:
    """Replayed here, from an exported log."""
    from app.domain.ids import StudyId
    from app.events.export import parse
    from app.scheduling.replay import replay

    try:
        with path.open(encoding="utf-8") as file:
            found = replay(parse(file), StudyId(study), at=at)
    except OSError as error:
        fail(f"{path}: {error.strerror}", USAGE)
    if study not in found.plan.studies:
        fail(f"{path} holds no study {study}: it has {', '.join(found.plan.studies) or 'none'}", NOT_FOUND)
    return found.to_json()


def print_replay(found: Json) -> None:
    """The promotions in order with their reasons, and whether all could be derived."""
    for line in found["history"]:
        if line["kind"] in ("promote", "stop"):
            standing = "  ".join(f"{name} {line[name]}" for name in STANDING if name in line)
            print(
                f"{line['event']:>7}  {line['kind']:<8} trial {line['trial']:<5} {standing}  {_reason(line['reason'])}"
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
