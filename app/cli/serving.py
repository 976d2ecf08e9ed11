"""`stagetree worker`, `workers`, `api` and `sinks`: the processes of a cluster, whatever lies in the working folder.

Celery and uvicorn look there first: where it holds an `app` of its own, `celery -A app.workers` finds that.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from app.cli.options import Server
from app.cli.text import without_secrets
from app.domain.slots import MOST_SHARES

Queue = Annotated[
    str, typer.Argument(metavar="QUEUE", help="The slot, as gpu0, gpu0a, cpu3 or host-gpu0; or scheduler; or slurm.")
]
Host = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="Where others reach it; it asks nobody who they are.")
]
Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="Where it listens.")]


def worker(queue: Queue) -> None:
    """Be a slot of a cluster, or its scheduler, until it is asked to end. The settings come from the environment.

    As `slurm`, it is the slot of the GPU that a task of a Slurm job was given.

    \b
    Example:  stagetree worker gpu0
    """
    from app.cli.slurm import queue_of
    from app.workers.prefork import work

    work(queue_of(os.environ) if queue == "slurm" else queue)


def workers(
    slurm: Annotated[bool, typer.Option("--slurm", help="As tasks of a Slurm job.")] = False,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="Nodes of the job.")] = 1,
    gpus: Annotated[
        int,
        typer.Option("--gpus-per-node", metavar="N", min=0, help="Tasks of a node, with a GPU each; 0: one without."),
    ] = 1,
    slots_per_gpu: Annotated[
        int,
        typer.Option("--slots-per-gpu", metavar="N", min=1, max=MOST_SHARES, help="So many tasks share each GPU."),
    ] = 1,
    cpus: Annotated[int, typer.Option("--cpus-per-task", metavar="N", min=1, help="Cores of a task.")] = 4,
    early: Annotated[
        int,
        typer.Option("--signal", metavar="SECONDS", min=1, help="So long before its end, work is saved."),
    ] = 120,
) -> None:
    """Print a script that starts workers, one for each GPU or more.

    \b
    Example:  stagetree workers --slurm --nodes 2 --gpus-per-node 8 | sbatch --time=12:00:00
    """
    from app.cli.errors import USAGE, fail
    from app.cli.slurm import script

    if not slurm:
        fail("say for what: --slurm", USAGE)
    print(script(nodes, gpus, cpus, early, slots_per_gpu), end="")


def api(host: Host = "127.0.0.1", port: Port = 8000) -> None:
    """Be the API of a cluster, until it is asked to end. The settings come from the environment.

    \b
    Example:  stagetree api --host 0.0.0.0
    """
    import uvicorn

    uvicorn.run("app.main:create_app", factory=True, host=host, port=port)


def sinks(server: Server = None) -> None:
    """Write what studies measure to the sinks that their files name, until it is asked to end.

    Folders are made here, and .stagetree/sinks here notes what was written: start it in the same folder again.

    \b
    Example:  stagetree sinks --server http://gpu-box:8000
    """
    from app.cli import stacks
    from app.cli.study_sinks import StudySinks
    from stagetree.sinks.opening import POSITIONS

    with stacks.server(server) as service, stacks.ended_in_order():
        print(f"Writing the sinks of the studies at {without_secrets(service.client.url)}. Ctrl-C ends it.", flush=True)
        found = StudySinks(service.client.url, POSITIONS)
        try:
            found.run()
        finally:
            found.end()
