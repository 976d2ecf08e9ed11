"""Checkpoints beside what the machine can do: the wait of the training, writing to the disk, and a sibling's beginning.

    python benchmarks/checkpoints.py [--megabytes N] [--rounds N] [--device cuda:0] [--dir FOLDER]

A process that trains holds a state of that size, as slots start one. In each round, in turn:

- training waits while its state is copied for the slot: at most 1.2 times one copy within the machine's memory (of the
  GPU's, to pinned memory), which is timed in the same process;
- the state is hashed and written to the disk, as slots do: at least 80 % of the rate of `dd` with `conv=fsync`;
- a sibling begins with it in a fresh store, as on another slot: its object is opened and read once, and mapped; beside
  it, that reads the file and copies it once. Where the state is still in memory, nothing is read at all.

Each round is one ratio, of times that follow each other; the middle one is judged. The first save takes memory that is
new, and is printed apart.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from app.storage.object_store import PART, LocalStore
from app.workers.slot.checkpoint_store import CheckpointStore, Stored
from app.workers.trainer_connection import Deadline
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import TrainerSettings, Warm
from stagetree import Trainer

TENSORS = 24
PATIENCE = Deadline(600.0)


class Large(Trainer):
    """A state of this many bytes in some tensors; evaluating copies it once, into memory that was used before."""

    name = "large"

    def __init__(self, *, seed: int, device: str, size: int) -> None:
        numbers = size // 4 // TENSORS
        self.weights = [torch.rand(numbers, device=device) for _ in range(TENSORS)]
        pinned = device != "cpu"
        self.copies = [torch.zeros(numbers, pin_memory=pinned) for _ in range(TENSORS)]

    def setup(self, hp: dict[str, Any]) -> None:
        pass

    def train(self) -> None:
        for weight in self.weights:
            weight[:8] += 1

    def evaluate(self) -> dict[str, float]:
        begun = time.perf_counter()
        for weight, copy in zip(self.weights, self.copies, strict=True):
            copy.copy_(weight, non_blocking=True)
        if self.weights[0].is_cuda:
            torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - begun}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for weight, saved in zip(self.weights, state["weights"], strict=True):
            weight.copy_(saved)


class Counting(LocalStore):
    """Counts the objects that are opened, and the bytes that are read by other ways."""

    opened = read_bytes = 0

    def open(self, key: str) -> int | None:
        self.opened += 1
        return super().open(key)

    def read(self, key: str) -> Iterator[bytes]:
        for part in super().read(key):
            self.read_bytes += len(part)
            yield part


class Bench:
    """One process that trains, and a folder for its checkpoints."""

    def __init__(self, process: TrainerProcess, folder: Path) -> None:
        self.process, self.folder = process, folder
        self.store = CheckpointStore(LocalStore(str(folder)))

    def train(self) -> None:
        self.process.train({"lr": 1}, self.process.step + 1, deadline=PATIENCE)

    def wait(self) -> tuple[float, float]:
        """Seconds for which a save holds the training up, and for one copy."""
        self.train()
        copied = self.process.call(PATIENCE).evaluate().metrics["seconds"] or 0.0
        seconds, state = timed(lambda: self.process.save(deadline=PATIENCE))
        state.close()
        return seconds, copied

    def write(self) -> tuple[float, float, Stored]:
        """Seconds to write a checkpoint, and for `dd`."""
        state = self.process.save(deadline=PATIENCE)
        seconds, stored = timed(lambda: self.store.write("plan/node/1", state))
        state.close()
        target = self.folder / "dd"
        bare, _ = timed(lambda: dd(target, stored.size))
        target.unlink()
        return seconds, bare, stored

    def begin(self, stored: Stored) -> tuple[float, float, int]:
        """Seconds until a sibling has the state, for the bare way, and how often the object was opened or read."""
        counting = Counting(str(self.folder))
        seconds, _ = timed(lambda: self._load(CheckpointStore(counting), stored))
        bare, _ = timed(lambda: read_and_copy(self.folder / stored.key))
        return seconds, bare, counting.opened + counting.read_bytes // stored.size

    def _load(self, store: CheckpointStore, stored: Stored) -> None:
        state = store.read(stored.key, stored.sha256)
        self.process.call(PATIENCE).load(fds=state.lend(), hp={"lr": 1}, step=self.process.step)
        state.close()


def timed(do: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = do()
    return time.perf_counter() - begun, result


def dd(target: Path, size: int) -> None:
    count = f"count={-(-size // PART)}"
    command = ["dd", "if=/dev/zero", f"of={target}", f"bs={PART}", count, "conv=fsync", "status=none"]
    subprocess.run(command, check=True)


def read_and_copy(path: Path) -> None:
    """One read of a file, and one copy of its content."""
    with path.open("rb", buffering=0) as file:
        image = bytearray(os.fstat(file.fileno()).st_size)
        rest = memoryview(image)
        while rest:
            rest = rest[file.readinto(rest) or len(rest) :]
    torch.frombuffer(image, dtype=torch.uint8).clone()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dir", type=Path, help="where to write; by default the folder for temporary files")
    given = parser.parse_args()
    size, folder = given.megabytes * 2**20, tempfile.TemporaryDirectory(dir=given.dir)
    with folder as place, TrainerProcess.start(Warm(), TrainerSettings(given.device)) as process:
        process.call(PATIENCE).build(file=__file__, name="large", args={"size": size}, seed=0)
        is_held = measure(Bench(process, Path(place)), given.rounds)
    sys.exit(not is_held)


def measure(bench: Bench, rounds: int) -> bool:
    """Whether all requirements hold."""
    first, _ = bench.wait()
    waits, writes, begins, reads = list[float](), list[float](), list[float](), 0
    for number in range(1, rounds + 1):
        waited, copied = bench.wait()
        written, bare, stored = bench.write()
        begun, plain, opened = bench.begin(stored)
        (bench.folder / stored.key).unlink()
        waits.append(waited / copied)
        writes.append(bare / written)
        begins.append(begun / plain)
        reads = max(reads, opened)
        print(
            f"round {number}: training waits {waited:.3f} s (one copy {copied:.3f} s); "
            f"written in {written:.2f} s (dd {bare:.2f} s); a sibling has it after {begun:.2f} s (bare {plain:.2f} s)"
        )
    wait, write, begin = (statistics.median(each) for each in (waits, writes, begins))
    print(f"the first save, into new memory: {first:.3f} s")
    print(f"training waits {wait:.2f} times one copy, at most 1.2")
    print(f"writing reaches {100 * write:.0f} % of dd with fsync, at least 80 %")
    print(f"a sibling begins with {reads} read, at most 1, in {begin:.2f} times a read and a copy")
    return wait <= 1.2 and write >= 0.8 and reads <= 1


if __name__ == "__main__":
    main()
