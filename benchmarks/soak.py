"""Histories of a simulated world, each made from a seed: `python benchmarks/soak.py --seeds 0:300`, or `--minutes 60`.

Scheduler, slots and their parts are the real ones, in virtual time; database, store and broker stand in for servers,
and fail, as processes die, in ways that the seed chooses: see `tests/world`. What must hold after each history is in
`tests/world/history.py`: results equal to the last bit to those without faults, no trial or study ended by an accident,
no step repeated but the ones under way, every named checkpoint there, nothing recorded twice, and all at rest.

A stack of real processes under work for an hour is in `benchmarks/soak_stack.py`.

`--hours H` plays one study of that many virtual hours, with a fault or two a minute, in half a minute of CPU each.

`--crash-points` plays the seeds, and each crash point that they pass once more, where a process is killed at it.

`--seed N` plays one and tells its story. `--without GUARD ...` takes guards away, one at a time, and ends well if some
history shows each. A wrong history is shown with as few kinds of faults as suffice; the others run on, and
the exit code is 1.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0"}
"""The order of sets is part of a history; secrets are looked for in each variable whenever a trainer fails."""

LATE = ("torch._dynamo", "torch.profiler._cupti_monitor", "alembic.command")
"""The imports of histories, thousands of modules: no later collection scans them."""

MOST_VARIABLES = len(ENVIRONMENT) + 1
"""Python may add one, for its locale."""

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tests.world.fault_alphabet import RATES  # noqa: E402
from tests.world.guards import GUARDS, SHOWN_BY  # noqa: E402
from tests.world.history import Violation, faults_of, play, play_long  # noqa: E402
from tests.world.oracle import know_results  # noqa: E402
from tests.world.system import World  # noqa: E402


class Tally:
    """The sums over all histories so far."""

    def __init__(self) -> None:
        self.faults, self.crash_points, self.moments = Counter[str](), Counter[str](), set[str]()
        self.histories, self.seconds = 0, 0.0
        self.gangs = self.lost = self.noticed = self.stolen = 0
        self.wrong: list[int] = []

    def add(self, world: World) -> None:
        self.histories += 1
        self.seconds += world.time.now
        self.gangs += world.gangs
        self.lost += world.database.lost
        self.noticed += world.noticed_losses
        self.stolen += world.stolen
        self.faults += world.faults.counts
        self.crash_points += world.faults.crash_points
        self.moments |= world.faults.moments

    def __str__(self) -> str:
        never, safe = sorted(RATES.keys() - self.faults.keys()), sorted(self.moments - self.crash_points.keys())
        return "\n".join(
            [
                f"{self.histories} histories, {self.seconds / 3600:.1f} virtual hours, "
                + (f"wrong besides: seeds {self.wrong}" if self.wrong else "none wrong"),
                f"{sum(self.faults.values())} faults: "
                + ", ".join(f"{n} {what}" for what, n in self.faults.most_common()),
                *([f"never: {', '.join(never)}"] if never else []),
                f"{self.crash_points.total()} kills at {len(self.crash_points)} of {len(self.moments)} crash points",
                *([f"no kill: {', '.join(safe)}"] if safe else []),
                f"{self.gangs} chains had more than one slot",
                f"{self.stolen} slots were taken by a worker on another machine",
                f"{self.lost} events were lost in fail-overs, which processes noticed {self.noticed} times",
            ]
        )


def violation(seed: int, faults: Sequence[str] | None = None, kill_at: str = "") -> Violation | None:
    """The violation in that history."""
    try:
        play(seed, faults, kill_at)
    except Violation as broken:
        return broken
    return None


def shrunk(broken: Violation) -> Violation:
    """The same with as few kinds of faults as show it."""
    faults = faults_of(broken.seed)
    for fault in list(faults):
        rest = [each for each in faults if each != fault]
        if (again := violation(broken.seed, rest)) is not None:
            broken, faults = again, rest
    return broken


def soak(seeds: Iterable[int], until: float) -> int:
    tally = Tally()
    for seed in seeds:
        if time.monotonic() > until:
            break
        try:
            tally.add(play(seed))
        except Violation as broken:
            tally.wrong.append(seed)
            print(shrunk(broken))
            print(f"\nAgain: python benchmarks/soak.py --seed {seed}\n", flush=True)
    print(tally)
    return 1 if tally.wrong else 0


def soak_crash_points(seeds: Iterable[int]) -> int:
    """Kill a process at each crash point that these histories pass, the first that comes by, and play the rest."""
    tally, places = Tally(), dict[str, int]()
    for seed in seeds:
        tally.add(world := play(seed))
        for point in sorted(world.faults.moments):
            places.setdefault(point, seed)
    for point, seed in places.items():
        try:
            tally.add(play(seed, kill_at=point))
        except Violation as broken:
            tally.wrong.append(seed)
            print(broken)
            print(f"\nAgain: python benchmarks/soak.py --seed {seed} --kill-at '{point}'\n", flush=True)
    tally.moments = set(places)  # a kill may lead to others
    print(tally)
    return 1 if tally.wrong or places.keys() - tally.crash_points.keys() else 0


def soak_long(seed: int, hours: float) -> int:
    tally = Tally()
    try:
        tally.add(play_long(seed, hours))
    except Violation as broken:
        print(broken)
        return 1
    print(tally)
    return 0


def without(guards: Iterable[str], first: int, last: int) -> int:
    """Whether of each guard some history shows that it is missing. The histories of `SHOWN_BY` come first."""
    code = 0
    for guard in guards:
        soon = SHOWN_BY.get(guard, first)
        for seed in (*range(max(first, soon), last), *range(first, min(soon, last))):
            know_results(seed)  # as they are with all guards
            with pytest.MonkeyPatch.context() as patch:
                GUARDS[guard](patch)
                broken = violation(seed)
            if broken is not None:
                print(f"without {guard}, {broken.sentence[:200]} (seed {seed})", flush=True)
                break
        else:
            print(f"nothing shows that {guard} is missing", flush=True)
            code = 1
    return code


def tell(seed: int, kill_at: str) -> int:
    broken = violation(seed, kill_at=kill_at)
    print(broken or f"seed {seed}: all holds")
    return 0 if broken is None else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:300", help="from and to, as 0:300")
    parser.add_argument("--minutes", type=float, help="continue for this time, from the first seed")
    parser.add_argument("--hours", type=float, help="one study of this number of virtual hours, with the first seed")
    parser.add_argument("--seed", type=int, help="play one, and tell it")
    parser.add_argument("--kill-at", default="", metavar="POINT", help="with --seed: kill who passes this crash point")
    parser.add_argument("--crash-points", action="store_true", help="a kill at each crash point that the seeds pass")
    parser.add_argument("--without", choices=sorted(GUARDS), nargs="+", help="take guards away, one at a time")
    given = parser.parse_args()
    know_results(0)
    for module in LATE:
        import_module(module)
    gc.collect()
    gc.freeze()  # what there is by now is none of a trainer, which is looked through when it is not exact
    gc.set_threshold(20_000, 20, 20)
    logging.getLogger().addHandler(logging.NullHandler())  # errors are part of the verdict; the rest is expected
    if given.seed is not None:
        return tell(given.seed, given.kill_at)
    first, last = map(int, given.seeds.split(":"))
    if given.hours:
        return soak_long(first, given.hours)
    if given.crash_points:
        return soak_crash_points(range(first, last))
    if given.without:
        return without(given.without, first, last)
    if given.minutes:
        return soak(count(first), time.monotonic() + 60 * given.minutes)
    return soak(range(first, last), float("inf"))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0" or len(os.environ) > MOST_VARIABLES:
        os.execve(sys.executable, [sys.executable, *sys.argv], ENVIRONMENT)
    raise SystemExit(main())
