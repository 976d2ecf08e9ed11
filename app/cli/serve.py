"""Commands that run a cluster: the API, workers, sinks, tokens, and backups; and one that opens a store."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from app.cli.backup import backup, restore
from app.cli.open import open
from app.cli.options import Host, Insecure, Port, Server
from app.cli.output import without_secrets
from app.cli.slurm import queue_of, workers
from app.cli.tokens import app as token

__all__ = ["api", "backup", "open", "restore", "sinks", "token", "worker", "workers"]

Queue = Annotated[
    str, typer.Argument(metavar="QUEUE", help="A slot, such as gpu0, gpu0a, cpu3 or host-gpu0; or scheduler; or slurm.")
]


def worker(queue: Queue) -> None:
    """Run a slot of a cluster, or its scheduler, until it is stopped. The settings come from the environment.

    With `slurm`, run the slot of the GPU that this task of a Slurm job was given.

    \b
    Example:  stagetree worker gpu0
    """
    from app.workers.prefork import work

    if queue == "slurm":
        queue = queue_of(os.environ)
        os.environ.setdefault("STAGETREE_ADDRESS", os.environ["SLURMD_NODENAME"])
    work(queue)


def api(host: Host = "127.0.0.1", port: Port = 8000, insecure: Insecure = False) -> None:
    """Run the API of a cluster until it is stopped. The settings come from the environment.

    \b
    Example:  stagetree api --host 0.0.0.0
    """
    import uvicorn

    if insecure:
        os.environ["STAGETREE_ACCESS"] = "open"
    uvicorn.run("app.main:create_app", factory=True, host=host, port=port, proxy_headers=False)


def sinks(server: Server = None) -> None:
    """Write the results of studies to the sinks that their study files name, until it is stopped.

    Folders are made here, and .stagetree/sinks here records what was written: restart it in the same folder.

    \b
    Example:  stagetree sinks --server http://gpu-box:8000
    """
    from app.cli import stacks
    from app.cli.sinks import StudySinks
    from app.settings import settings
    from stagetree.sinks.addresses import POSITIONS

    with stacks.server(server) as service, stacks.ended_in_order():
        print(
            f"Writing the sinks of the studies at {without_secrets(service.client.url)}. Ctrl-C stops it.", flush=True
        )
        runner = StudySinks(service.client.url, POSITIONS, settings().sinks)
        try:
            runner.run()
        finally:
            runner.end()
