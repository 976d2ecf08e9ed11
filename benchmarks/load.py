"""What others feel of a user's load: `python benchmarks/load.py [--subscribers N] [--clients N] [--trials N]`.

The embedded stack with one slot. First some followers of a study in which nothing happens: the CPU time that the API
takes for them, which should be under 5 % of a core. Then some clients that ask for all trials of one large study,
again and again, and beside them another user, who lists the studies: how long that takes, with and without them.
How long the scheduler looks at a thousand plans is in `benchmarks/tick.py --shapes plans`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from app.embedded.stack import Embedded, embedded
from stagetree.client import Client

TRAINER = Path(__file__).parent / "small_study.py"
BATCH = 500
EXTERNAL = {"name": "load", "trainer": "nothing", "metric": "score", "mode": "max", "tuner": {"kind": "external"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subscribers", type=int, default=100)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, embedded(stack(Path(folder))) as running:
        with Client(running.url) as client:
            study = client.submit(EXTERNAL).study
            asyncio.run(followed(running, study, arguments.subscribers, arguments.seconds))
            fill(client, study, arguments.trials)
        asyncio.run(beside(running, study, arguments.clients, arguments.seconds))


def stack(folder: Path) -> Embedded:
    return Embedded(folder, slots=1, trainers=[str(TRAINER)])


def fill(client: Client, study: str, trials: int) -> None:
    """This many trials, long enough to be under way the whole time."""
    for start in range(0, trials, BATCH):
        asked = [{"hp": {"lr": 1 + number}, "steps": 10**6} for number in range(start, min(start + BATCH, trials))]
        client.ask_trials(study, asked)


async def followed(running: Embedded, study: str, subscribers: int, seconds: float) -> None:
    api = next(each for each in psutil.Process().children() if "uvicorn" in each.cmdline())
    feeds = [asyncio.create_task(feed(running, study)) for _ in range(subscribers)]
    await asyncio.sleep(2.0)
    with spending(api) as spent:
        await asyncio.sleep(seconds)
    print(
        f"{subscribers} followers of a quiet study: {100 * spent[0] / seconds:.1f} % of a core; budget 5 %", flush=True
    )
    for task in feeds:
        task.cancel()


@contextmanager
def spending(process: psutil.Process) -> Iterator[list[float]]:
    """The CPU seconds of a process within the block."""
    spent, before = [0.0], process.cpu_times()
    yield spent
    after = process.cpu_times()
    spent[0] = after.user + after.system - before.user - before.system


async def beside(running: Embedded, study: str, clients: int, seconds: float) -> None:
    quiet = await lists(running, seconds)
    asking = [
        asyncio.create_task(asked_again(running, f"/api/v1/studies/{study}/trials?limit=1000")) for _ in range(clients)
    ]
    loaded = await lists(running, seconds)
    for task in asking:
        task.cancel()
    print(f"another user's list: {quiet}; beside {clients} clients of a large plan: {loaded}", flush=True)


async def lists(running: Embedded, seconds: float) -> str:
    """How long a list of studies takes, asked for some seconds."""
    took, end = list[float](), time.monotonic() + seconds
    while time.monotonic() < end:
        before = time.monotonic()
        await get(running, "/api/v1/studies")
        took.append(1e3 * (time.monotonic() - before))
        await asyncio.sleep(0.05)
    return f"median {statistics.median(took):.0f} ms, p99 {sorted(took)[int(0.99 * len(took))]:.0f} ms"


async def asked_again(running: Embedded, path: str) -> None:
    while True:
        await get(running, path)


async def get(running: Embedded, path: str) -> bytes:
    reader, writer = await opened(running, path, "application/json")
    try:
        return await reader.read()
    finally:
        writer.close()


async def feed(running: Embedded, study: str) -> None:
    """Follow the events of a study for ever."""
    reader, _writer = await opened(running, f"/api/v1/studies/{study}/events", "text/event-stream")
    while await reader.read(65536):
        pass


async def opened(running: Embedded, path: str, accept: str) -> Any:
    reader, writer = await asyncio.open_connection(running.host, running.port)
    head = f"GET {path} HTTP/1.1\r\nHost: {running.host}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    await writer.drain()
    return reader, writer


if __name__ == "__main__":
    main()
