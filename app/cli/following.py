"""A study under way in the terminal: followed to its end, its result printed, and what to type next."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from app.cli.errors import DONE, FAILED, INTERRUPTED, TRIALS_FAILED
from app.cli.output import Format, print_json
from app.cli.text import memory, without_secrets

if TYPE_CHECKING:
    from app.cli.documents import Documents
    from app.cli.progress import Show
    from app.cli.stacks import Service
    from app.cli.store import Store as LocalStore

    AnyService = Service[Documents | LocalStore]

Json = dict[str, Any]


def until_end(service: AnyService, study: str, show: Show) -> Json:
    """The study at its end, or where Ctrl-C ended the command: then the exit code says so."""
    from app.cli.progress import follow

    try:
        return follow(service.client, study, show, service.check)
    except KeyboardInterrupt:
        _interrupted(service, study)


def checked(service: AnyService, check: Callable[[], None]) -> AnyService:
    """The service with one more check."""

    def both() -> None:
        service.check()
        check()

    return replace(service, check=both)


def _interrupted(service: AnyService, study: str) -> NoReturn:
    if service.folder is None:
        again = f"stagetree watch {study} {without_secrets(service.place)}"
        print(f"\nStopped watching; study {study} goes on. Watch it again with: {again}", file=sys.stderr)
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # on the way to the stack's end, which listens to it again
        print(f"\nStopped; the slots of study {study} were this command's own and stop with it.", file=sys.stderr)
    raise typer.Exit(INTERRUPTED) from None


def finish(service: AnyService, study: Json, output: Format, *, is_strict: bool) -> NoReturn:
    """Print the result and end with the exit code that says how the study ended."""
    raise typer.Exit(print_study(service, study, output, is_strict=is_strict))


def print_study(service: AnyService, study: Json, output: Format, *, is_strict: bool) -> int:
    """Print the result; the exit code."""
    from app.cli.result import print_failures, print_result

    if output is Format.json:
        print_json(study)
    else:
        print_result(study)
        failed = next((trial["trial"] for trial in study["trials"] if trial["state"] == "failed"), None)
        first = None if failed is None else service.client.trial(study["study"], failed)
        print_failures(study, first, _where(service))
    return code_of(study, is_strict=is_strict)


def code_of(study: Json, *, is_strict: bool) -> int:
    """0 if the study was completed, with at least one trial that worked. is_strict: only where none failed."""
    if study["state"] != "completed" or not study["best"]:
        return FAILED
    return TRIALS_FAILED if is_strict and study["counts"]["failed"] else DONE


def say_what_is_kept(service: Service[Documents]) -> None:
    """Where the results of an embedded stack lie, if they stay, and how to look at them again."""
    from app.cli import places

    folder = service.folder
    if folder is None or not places.is_store(folder):
        return
    size = memory(places.size(folder))
    print(f"\nKept in {_typed(folder)} ({size}). Look again: stagetree trials last{_where(service)}", file=sys.stderr)


def _where(service: AnyService) -> str:
    """What tells another command where the study is: nothing for the store that is here."""
    from app.cli import places

    if service.folder is None:
        return f" {without_secrets(service.place)}" if service.place else ""
    return "" if service.folder == places.DEFAULT.resolve() else f" --dir {_typed(service.folder)}"


def _typed(folder: Path) -> Path:
    """The folder as one would type it here."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
