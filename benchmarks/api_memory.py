"""What the API keeps of large studies: `python benchmarks/api_memory.py [--studies 10] [--trials 10000]`.

A database with studies of ASHA, simulated, each in a plan of its own. A server of this version answers for one after
the other, with all its trials and with its charts. Printed is the memory of its process after each.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psutil
from large_study import STREAM, STUDY, whole

READY_SECONDS = 60.0


def repeated(folder: Path, trials: int, studies: int) -> Path:
    """A database with the same study several times, under other names."""
    whole(folder, trials)
    path = folder / "repeated.db"
    shutil.copy(folder / "log.db", path)
    with closing(sqlite3.connect(path)) as database:
        (events,) = database.execute("SELECT count(*) FROM events").fetchone()
        for number in range(1, studies):
            database.execute(
                "INSERT INTO events SELECT position + ?, stream || ?, version, type, schema_version,"
                ' replace(data, ?, ?), at, "by" FROM events WHERE stream = ?',
                (events * number, number, f'"{STUDY}"', f'"{STUDY}{number}"', STREAM),
            )
            database.execute(
                "INSERT INTO streams SELECT stream || ?, version FROM streams WHERE stream = ?", (number, STREAM)
            )
            names = [row[1] for row in database.execute("PRAGMA table_info(studies)")]
            values = ", ".join(f"{name} || {number}" if name in ("id", "stream") else name for name in names)
            database.execute(f"INSERT INTO studies SELECT {values} FROM studies WHERE id = ?", (STUDY,))
        database.execute("UPDATE log_head SET position = ?", (events * studies,))
        database.commit()
    return path


def megabytes(process: psutil.Process) -> float:
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True))) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=10)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="where the databases are kept for another run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = repeated(arguments.folder or Path(temporary), arguments.trials, arguments.studies)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = {"STAGETREE_DATABASE_URL": f"sqlite:///{path}", "STAGETREE_BROKER_URL": "memory://"}
        command = [sys.executable, "-m", "uvicorn", "--factory", "app.main:create_app", "--port", str(port)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen(command, env={**os.environ, **settings}, **quiet)
        try:
            measure(f"http://127.0.0.1:{port}", psutil.Process(server.pid), arguments.studies)
        finally:
            server.terminate()
            server.wait()


def measure(address: str, process: psutil.Process, studies: int) -> None:
    until = time.monotonic() + READY_SECONDS
    while True:
        try:
            urlopen(f"{address}/healthz", timeout=5).close()
            break
        except (URLError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
    print(f"{'at the start':24} {megabytes(process):6.0f} MiB")
    for number in range(studies):
        study, begun = STUDY + (str(number) if number else ""), time.monotonic()
        for what in ("", "/trials?limit=100"):
            urlopen(f"{address}/api/v1/studies/{study}{what}", timeout=300).read()
        print(f"{f'after {number + 1} studies':24} {megabytes(process):6.0f} MiB   {time.monotonic() - begun:5.1f} s")


if __name__ == "__main__":
    main()
