"""What trains in a simulated world: the real models, alone or in packs, in the process of their worker.

What packs cost is not measured but said, since the time is virtual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from app.workers.state import State
from app.workers.trainer_process import TrainedTogether
from stagetree.packing.profiling import widths_below
from stagetree.runtime.failures import TrainerFailed, user_code
from stagetree.runtime.loading import load_trainer
from stagetree.runtime.model import HpTimeline, Model
from stagetree.runtime.packed import Lanes
from tests.workers.in_process import InProcess

PASS = 1.2
"""What a pass of a pack takes, however many lanes it has, beside one of a model alone."""

BATCH = 0.001
"""Seconds of one alone."""


class WorldTrainer(InProcess):
    """An `InProcess` that has packs. fails: which of these lanes fail in the coming step, and how.

    The script hears of `train a pack` before each step that several lanes take together, and of `build beside others`
    before there is one model more.
    """

    def __init__(
        self,
        script: Callable[[InProcess, str, int], None],
        fails: Callable[[Sequence[int]], Mapping[int, TrainerFailed]],
    ) -> None:
        super().__init__(script)
        self._fails, self._lanes, self._width = fails, Lanes(), 0
        self._present = set[int]()

    def log(self, *files: Any, **lane: int) -> None:
        self.do("log")

    def build(
        self,
        file: str,
        name: str,
        args: Mapping[str, Any],
        seed: int,
        *,
        deadline: Any,
        determinism: str = "strict",
        shards: int = 0,
        parallel: str = "tree",
        **lane: Any,
    ) -> None:
        if not lane:
            super().build(file, name, args, seed, deadline=deadline, shards=shards, parallel=parallel)
            return
        self.file, self.shards, self.timeline = file, shards, HpTimeline({})
        self.do("build beside others" if self._present else "build")
        kind = (name, repr(args), seed, *lane["names"])
        self.model = self._lanes.begin(kind, lane["is_resumed"])
        if self.model is None:
            with user_code():
                trainer = load_trainer(file, name)
            self.model = Model.build(trainer, args, seed, "cpu")

    def join(self, lane: int, width: int, *, deadline: Any) -> None:
        self.do("join")
        assert self.model is not None
        self._lanes.put(lane, self.model, width)
        self._present.add(lane)
        self.model, self._width = None, width

    def train_together(
        self,
        hps: Mapping[int, Mapping[str, Any]],
        steps: int,
        *,
        deadline: Any,
        on_progress: Callable[[int], int],
        profile: bool = False,
    ) -> TrainedTogether:
        timelines = {lane: HpTimeline(hp) for lane, hp in hps.items()}
        taken, failed = 0, dict[int, TrainerFailed]()
        while taken < steps and not failed:
            self.do("train a pack" if len(hps) > 1 else "train")
            failed = dict(self._fails(list(hps)))
            self._lanes.drop(failed)
            self._present -= failed.keys()
            failed |= self._lanes.advance({lane: line for lane, line in timelines.items() if lane not in failed})
            taken += 1
            steps = on_progress(taken)
        reason = self._lanes.unpackable_reason
        found = None if not profile else {} if reason else costs(self._width)
        return TrainedTogether(taken, failed, reason, frozenset(self._lanes.evicted), found)

    def measure(self, lane: int, hp: Mapping[str, Any], widest: int, *, deadline: Any) -> tuple[Mapping[str, Any], str]:
        self.do("measure")
        return costs(widest), ""

    def evaluate(self, *, deadline: Any, **lane: int) -> dict[str, float | None]:
        if not lane:
            return super().evaluate(deadline=deadline)
        self.do("evaluate")
        return self._lanes[lane["lane"]].evaluate()

    def save(self, *, deadline: Any, **lane: int) -> State:
        if not lane:
            return super().save(deadline=deadline)
        self.do("save")
        return State(*self._lanes[lane["lane"]].save(self.machine))

    def leave(self, lanes: Iterable[int], *, deadline: Any) -> None:
        self.do("leave")
        self._lanes.drop(lanes)
        self._present -= set(lanes)


def costs(widest: int) -> dict[str, Any]:
    """The fields of a `PackingProfiled`."""
    seconds = {str(width): PASS * BATCH for width in (*widths_below(widest), widest)}
    return {"batch_seconds": {"0": BATCH, **seconds}, "peak_bytes": {}}
