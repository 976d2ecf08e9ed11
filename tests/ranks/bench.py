"""Groups of 1, 2 and 4 ranks, which train one model after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from app.workers.state import State
from app.workers.trainer_connection import Deadline
from app.workers.trainer_group import TrainerGroup
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm
from stagetree.runtime.checkpoints.weight_files import join_parts

PATIENT = Deadline(60.0)
GROWING = {"lr": 0.01, "bs": {"family": "values", "values": [64, 96], "milestones": [7]}}
"""A batch that grows in the middle of an epoch of 403 samples, whose last batch is uneven."""

Way = Sequence[tuple[int, int]]
"""Stages: the number of ranks, and the last step."""


class Bench:
    """Each group is started when it is first needed. name: of the trainer, and of its file."""

    def __init__(self, warm: Warm, name: str = "in_shards") -> None:
        self._warm, self._name, self._started = warm, name, dict[int, TrainerProcess]()

    def begin(self, ranks: int, args: dict[str, Any], **how: Any) -> TrainerProcess:
        """how: other arguments of the build, such as `shards` and `parallel`."""
        if ranks not in self._started:
            start = TrainerProcess.start(self._warm) if ranks == 1 else TrainerGroup.start(self._warm, ranks=ranks)
            self._started[ranks] = start
        file = str(Path(__file__).with_name(f"{self._name}.py"))
        self._started[ranks].call(PATIENT).build(file=file, name=self._name, args=args, seed=0, **how)
        return self._started[ranks]

    def train(self, way: Way, args: dict[str, Any], hp: Any = GROWING, **how: Any) -> tuple[str, Any]:
        """The hash of the joined state, and the metrics, where a model of its own trains each stage."""
        state, step = State.from_bytes(b""), 0
        for ranks, until in way:
            process = self.begin(ranks, args, **how)
            if step:
                process.call(PATIENT).load(fds=state.lend(), hp=hp, step=step)
            state.close()
            process.train(hp, until, deadline=PATIENT)
            process.call(PATIENT).evaluate()  # it must not change the result
            state, step = process.save(deadline=PATIENT), until
        with closing(state):
            is_divided = how.get("parallel", "tree").startswith("fsdp")
            assert len(state.parts) == (ranks - 1 if is_divided else 0)
            whole = join_parts([each.view() for each in state.images])
            return hashlib.sha256(b"".join(whole)).hexdigest(), process.call(PATIENT).evaluate().metrics

    def end(self, ranks: int) -> None:
        """After a failure."""
        self._started.pop(ranks).close()

    def close(self) -> None:
        for ranks in list(self._started):
            self.end(ranks)
