"""A trainer that does what its hyper-parameter `mood` names, each of which a real trainer has done once."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from multiprocessing import current_process, get_context
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from stagetree import Trainer

broken = False


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)], dtype=torch.float64)


SAVE_SECONDS = 2.0
"""How long its state takes to save in some moods."""


class Moody(Trainer):
    """size: bytes of its state. workers: of a DataLoader that every step reads through; context: how they are begun.

    journal: a file that gets the ids of these workers, and of its forks, and "done" when nothing more will come.
    """

    name = "moody"

    def __init__(
        self, *, seed: int, device: str, size: int = 8, workers: int = 0, context: str | None = None, journal: str = ""
    ) -> None:
        self.weights = torch.zeros(size, dtype=torch.uint8)
        self.total, self.steps = torch.zeros(1, dtype=torch.float64), 0
        self.mood, self.journal = "fine", journal
        self.loader = DataLoader(
            Numbers(), 2, shuffle=True, num_workers=workers, multiprocessing_context=context if workers else None
        )

    def setup(self, hp: dict[str, Any]) -> None:
        self.mood = hp["mood"]

    def train(self) -> None:
        getattr(self, self.mood)()
        self.steps += 1

    def evaluate(self) -> dict[str, float]:
        torch.rand(5)
        time.sleep(1.0 if "measure_and" in self.mood else 0.0)
        return {
            "total": float(self.total),
            "steps": self.steps,
            "broken": broken,
            "daemon": current_process().daemon,
            "threads": torch.get_num_threads(),
            "weight": float(self.weights[-1]),
        }

    def state_dict(self) -> dict[str, Any]:
        time.sleep(SAVE_SECONDS if "save" in self.mood else 0.0)
        return {"weights": self.weights, "total": self.total, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights, self.total, self.steps = state["weights"].clone(), state["total"].clone(), state["steps"]

    def slow_to_save(self) -> None:
        pass

    slow_to_measure_and_save = slow_to_save

    def unmeasurable(self) -> None:
        self.total = "none"  # type: ignore[assignment]

    def unsavable(self) -> None:
        self.total = Fraction(1)  # type: ignore[assignment]

    def _note(self, text: str) -> None:
        if self.journal:
            with open(self.journal, "a") as journal:
                journal.write(text)

    # ------------------------------------------------------------------------------------------------ moods

    def stop(self) -> None:
        breakpoint()

    def fine(self) -> None:
        self.weights += 1
        batches = iter(self.loader)
        self._note("".join(f"{worker.pid}\n" for worker in getattr(batches, "_workers", ())))
        for number, batch in enumerate(batches):
            self.total = torch.sin(self.total + number * batch.sum() + torch.rand(1, dtype=torch.float64))

    def hang(self) -> None:
        self._note("done\n")
        threading.Event().wait()

    def end_a_fork(self) -> None:
        """As a pool does: it asks its workers to end, and waits for them."""
        fork = get_context("fork").Process(target=threading.Event().wait)
        fork.start()
        fork.terminate()
        fork.join()
        assert fork.exitcode == -signal.SIGTERM

    def hang_with_workers(self) -> None:
        self.fine()
        batches = iter(self.loader)
        self._note("".join(f"{worker.pid}\n" for worker in batches._workers) + "done\n")
        threading.Event().wait()

    def hold_the_gil(self) -> None:
        self._note("done\n")
        re.match(r"(a+)+$", "a" * 64 + "b")

    def leave(self) -> None:
        os._exit(7)

    def crash(self) -> None:
        ctypes.string_at(0)

    def be_killed(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def leave_one_behind(self) -> None:
        """It holds all that is open here, and is in no group of ours."""
        self._fork(os.setsid)
        self.be_killed()

    def hang_with_another(self) -> None:
        self._fork(lambda: None)
        threading.Event().wait()

    def _fork(self, begin: Callable[[], None]) -> None:
        """Write down a process that begins like this and waits for ever, once it has begun."""
        read, write = os.pipe()
        if not (pid := os.fork()):
            begin()
            os.write(write, b".")
            threading.Event().wait()
        os.read(read, 1)
        self._note(f"{pid}\ndone\n")

    def close_all_files(self) -> None:
        os.closerange(3, 4096)

    def close_all_files_and_hang(self) -> None:
        os.closerange(3, 4096)
        threading.Event().wait()

    def break_the_context(self) -> None:
        global broken
        broken = True
        raise RuntimeError("CUDA error: device-side assert triggered")

    def run_out_of_memory(self) -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        except RuntimeError as error:
            raise ValueError("it did not fit") from error

    def say_nonsense(self) -> None:
        raise ValueError("a file named \udcff\0 is not there")

    def exit(self) -> None:
        raise SystemExit("I quit")

    def speak(self) -> None:
        print("printed", "by the trainer", "\udcff")
        logging.getLogger("moody").info("logged by the trainer")
        os.write(2, b"written by a library\n")
        os.system("echo said by a program")
