"""The pack of a trainer's process, by the numbers that the slot gives its lanes, and where each one logs."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Iterable, Mapping

from stagetree.packing import Profile
from stagetree.runtime.journal import Journal
from stagetree.runtime.model import Model
from stagetree.runtime.packed import Failed, PackedModels
from stagetree.runtime.timeline import Timeline

Kind = tuple[object, ...]
"""What a model was built from, and the names of the hyper-parameters that it was set up with."""


class Lanes:
    """At most one pack at a time; the next one begins where nobody is left of the one before."""

    def __init__(self) -> None:
        self._models = PackedModels(0)
        self._kind: Kind = ()
        self._idle: list[Model] = []
        self._journals: dict[int, Journal] = {}

    def __getitem__(self, lane: int) -> Model:
        """Raises KeyError."""
        return self._models[lane]

    def get(self, lane: int) -> Model | None:
        return self._models[lane] if lane in self._models.numbers else None

    @property
    def refusal(self) -> str:
        """Why some of them are trained by themselves, if they are."""
        return self._models.refusal

    @property
    def put_out(self) -> list[int]:
        """As `PackedModels.put_out`."""
        return self._models.put_out

    def begin(self, kind: Kind, is_resumed: bool) -> Model | None:
        """A lane of a kind is to be built: one that has left, if it is to be loaded and there is one."""
        if kind == self._kind and is_resumed and self._idle:
            return self._idle.pop()
        if self._idle:
            _close(self._idle)
            self._idle.clear()
            gc.collect()  # or a cycle of references would keep their memory from the one that is built
        self._kind = kind
        return None

    def put(self, lane: int, model: Model, width: int) -> None:
        if not self._models.numbers:
            self._models = PackedModels(width)
        self._models.put(lane, model)

    def journal(self, lane: int) -> Journal:
        return self._journals.setdefault(lane, Journal())

    def advance(self, timelines: Mapping[int, Timeline]) -> Failed:
        """As `PackedModels.advance`; what is logged is written from time to time."""
        failed = self._models.advance(timelines)
        now = time.monotonic()
        for lane in timelines.keys() - failed.keys():
            self.journal(lane).look(self._models[lane], now)
        return failed

    def profile(self) -> dict[str, object]:
        """What packs cost and whether they are exact, as JSON; nothing where the models cannot be packed."""
        return _as_json(self._models.profile())

    def measure(self, lane: int, timeline: Timeline, widest: int) -> dict[str, object]:
        """The same of packs of up to so many lanes, before the first step."""
        return _as_json(self._models.measure(lane, timeline, widest))

    def write_journals(self) -> None:
        """Raises `TrainerFailed`."""
        for lane in self._models.numbers:
            self.journal(lane).write(self._models[lane], time.monotonic())

    def drop(self, lanes: Iterable[int]) -> None:
        """These leave, and wait for being loaded anew. One that failed has left by itself."""
        for lane in set(lanes) & set(self._models.numbers):
            self._idle.append(self._models.leave(lane))
            if (journal := self._journals.pop(lane, None)) is not None:
                journal.write_to(-1)


def _as_json(found: Profile | None) -> dict[str, object]:
    if found is None:
        return {}
    costs = {"0": found.alone, **{str(width): cost for width, cost in found.packed.items()}}
    return {
        "batch_seconds": {lanes: round(cost.seconds, 7) for lanes, cost in costs.items()},
        "peak_bytes": {lanes: cost.bytes for lanes, cost in costs.items() if cost.bytes},
        "exact": found.is_exact,
        "other_draws": found.other_draws,
        "batch": dict(found.batch),
    }


def _close(models: Iterable[Model]) -> None:
    for model in models:
        try:
            model.trainer.close()
        except Exception:  # the next model, which may be another trial's, is not to blame
            traceback.print_exc()
