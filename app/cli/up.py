"""`stagetree up`: an embedded stack that stays up."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from app.cli.errors import INTERRUPTED
from app.cli.extras import STACK, require
from app.cli.interrupted_studies import report_resumed_studies
from app.cli.options import DEFAULT_DIR, Host, Insecure, Port, Slots, SlotsPerGpu, Trainers
from app.cli.output import plural


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
    require(*STACK)
    from app.cli.own_stack import own_stack, stack_of
    from app.cli.trainer_files import trainer_files

    if insecure:
        os.environ["STAGETREE_ACCESS"] = "open"
    stack = stack_of(dir, slots, slots_per_gpu, trainer_files(trainers or []), host=host, port=port, stays=True)
    with own_stack(stack, await_slots=True) as service:
        url = service.client.url
        print(f"stagetree is up at {url} with {plural(stack.slots, 'slot')}; the log is in {service.folder}.")
        print(f"Submit a study from another terminal: stagetree submit study.yaml --server {url}")
        if service.external_url:
            print(_access_text(service.external_url, service.token))
        elif service.token:
            print(f"Callers here need a token: open {url}/#token={service.token}")
            print(f"in a browser, and set STAGETREE_TOKEN={service.token} for commands.")
        print(f"Open {url} in a browser to watch; the API is described at {url}/docs.")
        print("Ctrl-C stops everything; nothing is lost.", flush=True)
        report_resumed_studies(service)
        try:
            while True:
                service.check()
                time.sleep(1)
        except KeyboardInterrupt:
            print("Stopping ...", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None


def _access_text(url: str, token: str | None) -> str:
    """How other machines reach the stack, and the token they need."""
    if os.environ.get("STAGETREE_ACCESS") == "open":
        return f"Other machines reach it at {url}; it needs no token, so every caller may do everything."
    return (
        f"Other machines reach it at {url}/#token={token}\n"
        f"That address lets its reader do everything. Commands there need STAGETREE_URL={url} and\n"
        f"STAGETREE_TOKEN={token}; `stagetree token create NAME` makes tokens for others, who may do less."
    )
