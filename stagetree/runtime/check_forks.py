"""Runs the trainings of a check in forks of this process: one fork, or one for each rank."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import distributed as dist

from stagetree.runtime.failures import TrainerFailed, ending
from stagetree.runtime.wire import anonymous_file
from stagetree.trainer.ranks import group

LATE_SECONDS = 1800.0
"""How long a rank waits for another one: as long as a step may take."""

Training = Callable[[], dict[str, Any]]


@contextmanager
def show_warnings_once() -> Iterator[None]:
    """Within the context, this process and its forks show each warning of one place once in total.

    Warnings that are recorded or raised as errors are not shown, and do not count.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        show = warnings.showwarning

        def once(message: Warning | str, category: type[Warning], filename: str, lineno: int, *more: Any) -> None:
            text = f"{category.__name__} {filename}:{lineno} {message}"
            try:
                (Path(folder) / hashlib.sha256(text.encode(errors="replace")).hexdigest()).touch(exist_ok=False)
            except FileExistsError:
                return
            show(message, category, filename, lineno, *more)

        warnings.showwarning = once  # type: ignore[assignment]
        yield


def run_in_fork(way: Training) -> dict[str, Any]:
    """Run a training in a fork. Raises `TrainerFailed`."""
    return _parse_answer(*_run_all([way])[0])


def run_in_ranks(way: Training, world: int, device: str, *, is_watched: bool = False) -> dict[str, Any]:
    """Run the same training in a fork for each rank. Returns the leader's result. Raises `TrainerFailed`.

    is_watched: ranks that make different calls fail with these calls instead of waiting for each other; each call takes
    longer.
    """
    meeting = anonymous_file(0)

    def make_training(rank: int) -> Training:
        def do() -> dict[str, Any]:
            own = device if device == "cpu" else f"cuda:{rank}"
            if is_watched:
                dist.set_debug_level(dist.DebugLevel.DETAIL)  # type: ignore[attr-defined]
            group.be(group.Ranks.meet(meeting, rank, world, LATE_SECONDS, own))
            return way()

        return do

    try:
        answers = _run_all([make_training(rank) for rank in range(world)])
    finally:
        os.close(meeting)
    for rank, (status, answer) in answers.items():
        try:
            result = _parse_answer(status, answer)
        except TrainerFailed as failed:
            raise TrainerFailed(failed.kind, f"In rank {rank} of {world}:\n{failed.error}") from None
    return result


def _run_all(ways: list[Training]) -> dict[int, tuple[int, bytes]]:
    """Each fork's exit code and output, by number, the leader last. If one failed, only that one."""
    sys.stdout.flush()
    pids, pipes = list[int](), list[int]()
    for way in ways:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            _run_and_exit(way, writing)
        os.close(writing)
        pids.append(pid)
        pipes.append(reading)
    parts = [b""] * len(ways)
    answers: dict[int, tuple[int, bytes]] = {}
    while waiting := [pipe for number, pipe in enumerate(pipes) if number not in answers]:
        for pipe in select.select(waiting, [], [])[0]:
            number = pipes.index(pipe)
            if part := os.read(pipe, 2**16):
                parts[number] += part
                continue
            os.close(pipe)
            status = os.waitstatus_to_exitcode(os.waitpid(pids[number], 0)[1])
            answers[number] = (status, parts[number])
            if not parts[number] or "error" in json.loads(parts[number]):
                _kill(pid for other, pid in enumerate(pids) if other not in answers)
                for other in range(len(ways)):
                    if other not in answers:
                        os.close(pipes[other])
                return {number: answers[number]}
    return dict(sorted(answers.items(), reverse=True))


def _kill(pids: Any) -> None:
    """Kill the other ranks, which would wait for the one that failed."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _parse_answer(status: int, answer: bytes) -> dict[str, Any]:
    """Raises `TrainerFailed`."""
    if not answer:
        raise TrainerFailed("crash", f"the trainer's process {ending(status)}")
    result: dict[str, Any] = json.loads(answer)
    if "error" in result:
        raise TrainerFailed("exception", result["error"])
    return result


def _run_and_exit(way: Training, writing: int) -> None:
    """In the fork: run, write the answer, and exit."""
    answer: Mapping[str, Any]
    try:
        answer = way()
    except TrainerFailed as failed:
        answer = {"error": failed.error}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    with open(writing, "w") as pipe:
        json.dump(answer, pipe)
    for worker in multiprocessing.active_children():  # a loader's workers would hold the pipe for seconds
        worker.kill()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
