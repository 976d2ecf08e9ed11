"""The reference: trials trained alone, each from step 0 and without a break, in a process of its own.

As a program it reads a job a line and answers each with a line; for each it forks. It shares nothing with the workers
but the loop over steps, `stagetree.runtime.model`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Curve = dict[int, dict[str, float | None]]


class Alone:
    """The program, and its earlier answers."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._known: dict[str, Curve] = {}

    def close(self) -> None:
        self._process.communicate()

    def curve(self, file: str, name: str, args: Json, seed: int, hp: Mapping[str, Any], steps: Sequence[int]) -> Curve:
        """The metrics of a trial after these steps."""
        job = json.dumps({"file": file, "name": name, "args": args, "seed": seed, "hp": hp, "steps": sorted(steps)})
        if job not in self._known:
            assert self._process.stdin is not None and self._process.stdout is not None
            print(job, file=self._process.stdin, flush=True)
            answer = json.loads(self._process.stdout.readline())
            assert "error" not in answer, answer["error"]
            self._known[job] = {int(step): metrics for step, metrics in answer.items()}
        return self._known[job]


def train(kind: type[Any], job: Json) -> Curve:
    from stagetree.runtime.machine import Machine
    from stagetree.runtime.model import HpTimeline, Model

    Machine("cpu", None, 1, "strict").prepare()
    model = Model.build(kind, job["args"], job["seed"], "cpu")
    timeline, found = HpTimeline(job["hp"]), Curve()
    for step in range(1, max(job["steps"]) + 1):
        model.advance(timeline)
        if step in job["steps"]:
            found[step] = model.evaluate()
    return found


def answer_in_fork(job: Json) -> str:
    """The answer to a job, as a line. The file is imported before that, once; nothing in it was built or called."""
    from stagetree.runtime.loading import load_trainer

    kind = load_trainer(Path(job["file"]), job["name"])
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.dup2(2, 1)  # what a trainer prints is no answer
        with open(writing, "w") as pipe:
            try:
                json.dump(train(kind, job), pipe)
            except BaseException as error:
                json.dump({"error": repr(error)}, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return answer


def main() -> None:
    from stagetree.runtime.warm import import_before_forking

    import_before_forking()
    for line in sys.stdin:
        print(answer_in_fork(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
