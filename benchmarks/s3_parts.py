"""A large object to and from S3, its parts side by side, beside one request at a time.

    python benchmarks/s3_parts.py [--megabytes 1024] [--stream 80] [--latency 30] [--rounds 1]

A server of this file stands for S3, in a process of its own: each connection carries some MB a second, and each
request waits some milliseconds, as a bucket in the same region does. In each round, in turn: the parts of an object
go up one after the other, as fsspec's files write them; side by side, carried by s3fs, as they were before; side by
side over connections of our own; and as a checkpoint, which is hashed on its way. Then all of it comes down, and a
checkpoint is compared with its hash. Beside each are the seconds of CPU that this process and the server needed:
where both together are as much as the cores had in that time, the cores are the limit.

It ends with 1 where parts side by side are less than 6 times as fast, in the median of the rounds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socketserver
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

LEAST = 6.0
CHUNK = 2**20


class Bucket(socketserver.StreamRequestHandler):
    """The few requests of S3 that a store makes. Each waits, and each connection has a limit of bytes a second."""

    rate, latency = 80e6, 0.03
    objects: ClassVar[dict[str, list[bytearray]]] = {}
    uploads: ClassVar[dict[str, bytearray]] = {}
    disable_nagle_algorithm = True

    def handle(self) -> None:
        while line := self.rfile.readline():
            method, target, _ = line.decode().split()
            pairs = (each.decode().split(":", 1) for each in iter(self.rfile.readline, b"\r\n"))
            headers = {name.lower(): value.strip() for name, value in pairs}
            url = urlsplit(target)
            if headers.get("expect"):
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            time.sleep(self.latency)
            self._free_at = time.monotonic()
            body = self._received(int(headers.get("content-length", "0")))
            getattr(self, method.lower())(url.path, dict(parse_qsl(url.query, keep_blank_values=True)), headers, body)

    def put(self, path: str, query: dict[str, str], headers: dict[str, str], body: bytearray) -> None:
        """A part, an object in one piece, or the bucket."""
        if "partNumber" in query:
            self.uploads[f"{path}:{query['partNumber']}"] = body
        else:
            self.objects[path] = [body]
        self._answer(headers='ETag: "0"\r\n')

    def post(self, path: str, query: dict[str, str], headers: dict[str, str], body: bytearray) -> None:
        """Begin an object in parts, or end it."""
        if "uploads" in query:
            self._answer(b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")
            return
        self.objects[path] = [self.uploads.pop(f"{path}:{number}") for number in range(1, body.count(b"<Part>") + 1)]
        self._answer(b'<CompleteMultipartUploadResult><ETag>"0"</ETag></CompleteMultipartUploadResult>')

    def head(self, path: str, query: dict[str, str], headers: dict[str, str], body: bytearray) -> None:
        self._answer(status="200 OK" if path in self.objects else "404 Not Found", size=self._size(path))

    def get(self, path: str, query: dict[str, str], headers: dict[str, str], body: bytearray) -> None:
        """A range of an object, whose parts are of one size."""
        if path not in self.objects:
            self._answer(b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>")
            return
        begin, last = map(int, headers["range"].removeprefix("bytes=").split("-"))
        last = min(last, self._size(path) - 1)
        about = f"Content-Range: bytes {begin}-{last}/{self._size(path)}\r\n"
        self._answer(status="206 Partial Content", headers=about, size=last + 1 - begin)
        while begin <= last:
            part, place = self._part(path, begin)
            piece = memoryview(part)[place : place + min(CHUNK, last + 1 - begin)]
            self._carry(len(piece), self.connection.sendall, piece)
            begin += len(piece)

    def delete(self, path: str, query: dict[str, str], headers: dict[str, str], body: bytearray) -> None:
        self.objects.pop(path, None)
        self._answer(status="204 No Content")

    # ------------------------------------------------------------------------------------------------ its parts

    def _size(self, path: str) -> int:
        return sum(map(len, self.objects.get(path, ())))

    def _part(self, path: str, begin: int) -> tuple[bytearray, int]:
        for part in self.objects[path]:
            if begin < len(part):
                return part, begin
            begin -= len(part)
        raise IndexError(begin)

    def _answer(self, body: bytes = b"", status: str = "200 OK", headers: str = "", size: int | None = None) -> None:
        length = len(body) if size is None else size
        head = f"HTTP/1.1 {status}\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n{headers}"
        self.wfile.write(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)

    def _received(self, size: int) -> bytearray:
        body, place = bytearray(size), 0
        while place < size:
            piece = memoryview(body)[place : place + CHUNK]
            place += self._carry(len(piece), self.rfile.readinto, piece)
        return body

    def _carry(self, size: int, carry: Callable[[memoryview], Any], piece: memoryview) -> Any:
        """Do it, and be done when a connection of that rate would be; what the cores were late with is caught up."""
        carried = carry(piece)
        self._free_at += size / self.rate
        time.sleep(max(0.0, self._free_at - time.monotonic()))
        return carried


class Server(socketserver.ThreadingTCPServer):
    daemon_threads, request_queue_size, allow_reuse_address = True, 64, True


def serve(rate: float, latency: float, ready: Connection) -> None:
    Bucket.rate, Bucket.latency = rate, latency
    with Server(("127.0.0.1", 0), Bucket) as server:
        ready.send(server.server_address[1])
        server.serve_forever()


@contextmanager
def bucket(rate: float, latency: float) -> Iterator[str]:
    """The URL of a bucket in a process of its own; the environment tells s3fs where that is."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(rate, latency, theirs), daemon=True)
    server.start()
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{ours.recv()}"
    try:
        yield "s3://bench"
    finally:
        server.kill()
        server.join()


class ThroughS3fs:
    """No connections of our own: s3fs carries each part, as it did before it was left to sign."""

    def put(self, *_: Any) -> None: ...
    def get(self, *_: Any) -> None: ...


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare(way: str, ways: dict[str, Callable[[], object]]) -> list[float]:
    """How many times as fast each way is as the first."""
    pids = os.getpid(), multiprocessing.active_children()[0].pid or 0
    seconds = list[float]()
    for name, do in ways.items():
        used, begun_at = [cpu_of(pid) for pid in pids], time.perf_counter()
        do()
        seconds.append(time.perf_counter() - begun_at)
        ours, server = (cpu_of(pid) - before for pid, before in zip(pids, used, strict=True))
        times = seconds[0] / seconds[-1]
        print(
            f"{way:<4} {name}: {seconds[-1]:.1f} s, {times:.1f} times (CPU {ours:.1f} s, server {server:.1f} s)",
            flush=True,
        )
    return [seconds[0] / each for each in seconds]


def measure(url: str, image: bytes, rounds: int) -> tuple[list[list[float]], list[list[float]]]:
    """Of each round, how many times as fast each way is as one stream: up, and down."""
    import fsspec

    from app.storage.object_store import PART, S3_OPTIONS, FsspecStore, S3Store
    from app.workers.slot.checkpoint_store import CheckpointStore, Stored
    from app.workers.state import State

    class Alone(FsspecStore):
        options = S3_OPTIONS

    file_system = fsspec.core.url_to_fs(url, **S3_OPTIONS)[0]
    alone, before, beside = Alone(url), S3Store(url), S3Store(url)
    before.direct = ThroughS3fs()  # type: ignore[assignment]
    parts = [memoryview(image)[begin : begin + PART] for begin in range(0, len(image), PART)]
    checkpoints, state, stored = CheckpointStore(beside), State.from_bytes(image), list[Stored]()

    def read_alone() -> None:
        with file_system.open(f"{url}/alone", "rb", block_size=PART, cache_type="readahead") as file:
            assert sum(len(part) for part in iter(lambda: file.read(PART), b"")) == len(image)

    def read(store: S3Store) -> None:
        assert sum(map(len, store.read("alone"))) == len(image)

    up, down = list[list[float]](), list[list[float]]()
    for _ in range(rounds):
        ways: dict[str, Callable[[], object]] = {
            "one after the other": lambda: alone.write("alone", parts),
            "side by side through s3fs": lambda: before.write("alone", parts),
            "side by side": lambda: beside.write("alone", parts),
            "a checkpoint, with its hash": lambda: stored.append(checkpoints.write("checkpoint", state)),
        }
        up.append(compare("up", ways))
        ways = {
            "one after the other": read_alone,
            "side by side through s3fs": lambda: read(before),
            "side by side": lambda: read(beside),
            "a checkpoint, with its hash": lambda: checkpoints.read(stored[-1].key, stored[-1].sha256).close(),
        }
        down.append(compare("down", ways))
        checkpoints.delete(stored[-1].key)
    return up, down


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--stream", type=float, default=80.0, help="MB a second that a connection carries")
    parser.add_argument("--latency", type=float, default=30.0, help="milliseconds that each request waits")
    parser.add_argument("--rounds", type=int, default=1)
    told = parser.parse_args()
    with bucket(told.stream * 1e6, told.latency / 1e3) as url:
        measured = measure(url, os.urandom(told.megabytes * 2**20), told.rounds)
    up, down = ([statistics.median(way) for way in zip(*rounds, strict=True)] for rounds in measured)
    print(f"up {up[2]:.1f} times, down {down[2]:.1f} times as fast; at least {LEAST:.0f} wanted", end="; ")
    print(f"a checkpoint with its hash {up[3]:.1f} and {down[3]:.1f}")
    return 0 if min(up[2], down[2]) >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
