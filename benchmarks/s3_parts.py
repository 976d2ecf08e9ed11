"""A large object to and from S3, its parts side by side, beside one request at a time.

    python benchmarks/s3_parts.py [--megabytes 192] [--stream 8] [--latency 30] [--rounds 3]

moto's server stands for S3, behind a proxy that lets each connection carry so many MB a second and makes each request
wait so many milliseconds, as a bucket in the same region does. In each round, in turn: the parts of an object go up one
after the other, as fsspec's files write them, and side by side; then down in both ways. A real stream carries about
80 MB a second; here it is a tenth of that, or moto itself, which is Python, would be measured.

It ends with 1 where parts side by side are less than 6 times as fast, in the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer

LEAST = 6.0


class Shape:
    """What each connection carries: bytes a second, either way; and for how many seconds a request waits."""

    def __init__(self, target: int, rate: float, latency: float) -> None:
        self._target, self._rate, self._latency = target, rate, latency

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self._target)
        is_new = asyncio.Event()  # whether the next bytes of the client begin a request
        is_new.set()
        ways = (self._carry(reader, there[1], is_new, True), self._carry(there[0], writer, is_new, False))
        await asyncio.gather(*ways, return_exceptions=True)
        for end in (writer, there[1]):
            end.close()

    async def _carry(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, is_new: asyncio.Event, is_request: bool
    ) -> None:
        free_at = time.monotonic()
        while data := await source.read(2**16):
            if is_request and is_new.is_set():
                is_new.clear()
                await asyncio.sleep(self._latency)
            elif not is_request:
                is_new.set()
            free_at = max(free_at, time.monotonic()) + len(data) / self._rate
            await asyncio.sleep(free_at - time.monotonic())
            to.write(data)
            await to.drain()
        to.close()


@contextmanager
def bucket(rate: float, latency: float) -> Iterator[str]:
    """The URL of a bucket behind the proxy; the environment tells s3fs where that is."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    moto.start()
    loop, shape = asyncio.new_event_loop(), Shape(moto.get_host_and_port()[1], rate, latency)
    server = loop.run_until_complete(asyncio.start_server(shape.serve, "127.0.0.1", 0))
    threading.Thread(target=loop.run_forever, daemon=True).start()
    port = server.sockets[0].getsockname()[1]
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
    try:
        yield "s3://bench"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        moto.stop()


def seconds(do: Callable[[], object]) -> float:
    begun_at = time.perf_counter()
    do()
    return time.perf_counter() - begun_at


def measure(url: str, image: bytes, rounds: int) -> tuple[list[float], list[float]]:
    """Of each round, how many times as fast parts side by side are: up, and down."""
    import fsspec

    from app.object_store import PART, S3_OPTIONS, FsspecStore, S3Store

    file_system = fsspec.core.url_to_fs(url, **S3_OPTIONS)[0]
    file_system.mkdir(url)
    alone, beside = FsspecStore(url), S3Store(url)
    alone.options = S3_OPTIONS
    up, down = list[float](), list[float]()
    parts = [memoryview(image)[begin : begin + PART] for begin in range(0, len(image), PART)]

    def read_alone() -> None:
        with file_system.open(f"{url}/beside", "rb", block_size=PART, cache_type="readahead") as file:
            assert sum(len(part) for part in iter(lambda: file.read(PART), b"")) == len(image)

    def read_beside() -> None:
        assert sum(map(len, beside.read("beside"))) == len(image)

    for number in range(1, rounds + 1):
        one, side = seconds(lambda: alone.write("alone", parts)), seconds(lambda: beside.write("beside", parts))
        up.append(one / side)
        print(
            f"round {number}   up    one after the other {one:6.1f} s, side by side {side:6.1f} s: {up[-1]:.1f} times"
        )
        one, side = seconds(read_alone), seconds(read_beside)
        down.append(one / side)
        print(f"          down  one after the other {one:6.1f} s, side by side {side:6.1f} s: {down[-1]:.1f} times")
    return up, down


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=192)
    parser.add_argument("--stream", type=float, default=8.0, help="MB a second that a connection carries")
    parser.add_argument("--latency", type=float, default=30.0, help="milliseconds that each request waits")
    parser.add_argument("--rounds", type=int, default=3)
    told = parser.parse_args()
    with bucket(told.stream * 1e6, told.latency / 1e3) as url:
        up, down = map(statistics.median, measure(url, os.urandom(told.megabytes * 2**20), told.rounds))
    print(f"up {up:.1f} times, down {down:.1f} times as fast; at least {LEAST:.0f} wanted")
    return 0 if min(up, down) >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
