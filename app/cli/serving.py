"""`stagetree worker` and `stagetree api`: the processes of a cluster, whatever lies in the working folder.

Celery and uvicorn look there first: where it holds an `app` of its own, `celery -A app.workers` finds that.
"""

from __future__ import annotations

from typing import Annotated

import typer

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The slot, such as gpu0, cpu3 or host-gpu0; or scheduler.")]
Host = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="Where others reach it; it asks nobody who they are.")
]
Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="Where it listens.")]


def worker(queue: Queue) -> None:
    """Be a slot of a cluster, or its scheduler, until it is asked to end. The settings come from the environment.

    \b
    Example:  stagetree worker gpu0
    """
    from app.workers.by_hand import work

    work(queue)


def api(host: Host = "127.0.0.1", port: Port = 8000) -> None:
    """Be the API of a cluster, until it is asked to end. The settings come from the environment.

    \b
    Example:  stagetree api --host 0.0.0.0
    """
    import uvicorn

    uvicorn.run("app.main:create_app", factory=True, host=host, port=port)
