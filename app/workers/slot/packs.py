"""How a slot trains the chains of a pack: together, or one after the other where that failed before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from app.domain.exactness import WITHOUT_PACK
from app.workers.slot.chain_run import ChainRun
from app.workers.slot.claim import Claimed
from app.workers.slot.lane_host import LaneHost
from app.workers.slot.pack_run import PackRun
from app.workers.slot.parts import Parts
from app.workers.slot.resuming import ReadOnce
from app.workers.slot.shared_time import SharedTime
from app.workers.slot.trainer_host import TrainerHost

MOST_BREAKS = 2


class Packs:
    """Those of one slot. What breaks twice in a row is trained without them: so it shows whose fault it is.

    Once may be an accident, as when something else ends the process.
    """

    def __init__(self, host: TrainerHost, device: str) -> None:
        self._host, self._device = host, device
        self._breaks = Counter[str]()  # in a row, by plan
        self._pack: PackRun | None = None

    def made(self, claimed: Sequence[Claimed], parts: Parts) -> list[ChainRun]:
        """The runs of a pack's chains, which `run` takes."""
        if self._breaks[claimed[0].work.plan] >= MOST_BREAKS:
            self._pack, parts = None, replace(parts, changes=(WITHOUT_PACK,))
            return [ChainRun(each.lease, each.claim, each.work, parts) for each in claimed]
        time = SharedTime(parts.clock, range(len(claimed)))
        lanes = {number: LaneHost(self._host, number) for number in range(len(claimed))}
        reader = ReadOnce(parts.reader)
        runs: dict[int, ChainRun] = {}
        for number, each in enumerate(claimed):
            its = replace(parts, host=lanes[number], clock=_of(time, number), reader=reader)
            runs[number] = ChainRun(each.lease, each.claim, each.work, its)
        self._pack = PackRun(runs, lanes, self._host, time, reader, self._device)
        return list(runs.values())

    def run(self, runs: Sequence[ChainRun]) -> bool:
        """Train all the stages of the chains that were made last; whether all of them were completed."""
        if self._pack is None:
            for run in runs:
                _run_alone(run)
        else:
            self._pack.run()
            plan = runs[0].work.plan
            self._breaks[plan] = self._breaks[plan] + 1 if self._pack.is_broken else 0
        return all(run.execution.index == len(run.work.stages) for run in runs)


def _of(time: SharedTime, number: int) -> Callable[[], float]:
    return lambda: time.of(number)


def _run_alone(run: ChainRun) -> None:
    while run.run_stage() and run.is_between_stages:
        pass
