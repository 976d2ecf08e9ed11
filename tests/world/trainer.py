"""What trains in a simulated world: the real models, alone or in packs, in the process of their worker.

What packs cost is not measured but said, since the time is virtual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.workers.state import State
from stagetree.packing.profiling import widths_below
from stagetree.runtime.commands import Evaluation, PackTrained
from stagetree.runtime.failures import TrainerFailed, user_code
from stagetree.runtime.loading import load_trainer
from stagetree.runtime.model import HpTimeline, Model
from stagetree.runtime.packed import Lanes
from tests.workers.in_process import InProcess
from tests.world.settings import STEP

if TYPE_CHECKING:
    from tests.world.members import Member

PASS = 1.2
"""Seconds of a packed pass with any number of lanes, relative to one of a model alone."""

BATCH = 0.001
"""Seconds of one alone."""


GAIN = 0.8
"""What each rank more adds to the speed of one."""

RANKS_DO = ("build", "train", "evaluate", "load")

LONGEST_STEP = 60.0
"""A step is not ended for a cancelled study, so it must end within the time in which all comes to rest."""


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

    def log(self, *files: Any) -> None:
        self.do("log")

    def build(self, names: Sequence[str] | None = None, is_resumed: bool = False, **given: Any) -> None:
        if names is None:
            super().build(**given)
            return
        self.file, self.shards, self.timeline = given["file"], given["shards"], HpTimeline({})
        self.do("build beside others" if self._present else "build")
        kind = (given["name"], repr(given["args"]), given["seed"], *names)
        self.model = self._lanes.begin(kind, is_resumed)
        if self.model is None:
            with user_code():
                trainer = load_trainer(self.file, given["name"])
            self.model = Model.build(trainer, given["args"], given["seed"], "cpu")

    def join(self, lane: int, width: int) -> None:
        self.do("join")
        assert self.model is not None
        self._lanes.add(lane, self.model, width)
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
    ) -> PackTrained:
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
        failures = {lane: (each.kind, each.error, each.signature) for lane, each in failed.items()}
        return PackTrained(taken, failures, reason, self._lanes.evicted, found)

    def measure(self, lane: int, hp: Mapping[str, Any], widest: int) -> tuple[Mapping[str, Any], str]:
        self.do("measure")
        return costs(widest), ""

    def evaluate(
        self, watch: bool = False, lane: int | None = None, *, deadline: Any = None, look: bool | None = None
    ) -> Evaluation:
        if lane is None:
            return super().evaluate()
        self.do("evaluate")
        return Evaluation(self._lanes[lane].evaluate())

    def save(self, *, deadline: Any, look: bool = False, lane: int | None = None) -> State:
        if lane is None:
            return super().save(deadline=deadline)
        self.do("save")
        return State(*self._lanes[lane].save(self.machine))

    def leave(self, lanes: Iterable[int]) -> None:
        self.do("leave")
        self._lanes.drop(lanes)
        self._present -= set(lanes)


def costs(widest: int) -> dict[str, Any]:
    """The fields of a `PackingProfiled`."""
    seconds = {str(width): PASS * BATCH for width in (*widths_below(widest), widest)}
    return {"batch_seconds": {"0": BATCH, **seconds}, "peak_bytes": {}}


def start_trainer(me: Member, ranks: int) -> WorldTrainer:
    """The trainer of a worker, whose steps take time, and which comes to harm. ranks: how many processes it has."""
    faults, time = me.effects.faults, me.time

    def strikes(name: str, about: str) -> bool:
        return faults.strikes(name, f"{me.name}, {about}")

    def take_a_step(process: InProcess, step: int) -> None:
        slow = 40.0 if faults.strikes("step takes long", f"{me.name} at step {step}") else STEP
        seconds = min(time.chance.expovariate(1 / slow), LONGEST_STEP)
        until = time.now + seconds / (1 + GAIN * (ranks - 1))
        while time.now < until and not process.is_broken:
            me.wait(min(1.0, until - time.now))

    def script(process: InProcess, what: str, step: int) -> None:
        me.effects.moment(f"before {what}")
        if what in ("train", "train a pack"):
            take_a_step(process, step)
        if process.is_broken:
            process.do("killed")
        if what in ("train", "save", "evaluate", "load") and strikes("trainer dies", f"{what}, {step}"):
            raise TrainerFailed("crash", "the process was ended by signal 9", step)
        if ranks > 1 and what in RANKS_DO and strikes("rank dies", f"{what}, {step}"):
            raise TrainerFailed("rank", "another rank was lost", step)
        if what == "train a pack" and strikes("pack dies", ""):
            raise TrainerFailed("crash", "the process was ended by signal 9", step)
        if what == "build beside others" and strikes("no room beside others", ""):
            raise TrainerFailed("out_of_memory", "there is too little memory", step)

    def fails(lanes: Sequence[int]) -> dict[int, TrainerFailed]:
        if len(lanes) == 1 or not strikes("lane fails", f"lanes {lanes}"):
            return {}
        return {time.chance.choice(lanes): TrainerFailed("exception", "ValueError: it failed", signature="it")}

    return WorldTrainer(script, fails)
