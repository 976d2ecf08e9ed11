"""How long a decay takes that comes late on a trunk under way: `python benchmarks/late.py [--step SECONDS] [--late N]`.

A trunk is trained on one of two slots: warm-up, then a stable rate. When it has long passed step 40, decays that leave
it there are requested, one study after the other. The other slot is idle: it should begin each at once, at the latest
checkpoint of the trunk. For each is printed how long it took to its result, how long the steps take that had to be
trained, and how long the trunk still ran after that, which would have been the wait.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from app.domain import events as e

sys.path.insert(0, str(Path(__file__).parent / "data"))
from real_runs import Real

Json = dict[str, Any]
DATA = Path(__file__).parent / "data"

LEAVES, DECAY, PASSED = 40, 10, 60
"""The step at which the decays leave the trunk, their length, and the step of the trunk at their submission."""


def study(name: str, step: float, leaves: int) -> Json:
    """One trial that goes down from this step on; a step takes `step` seconds for an x of 0.5."""
    rate = {"family": "wsd", "peak": 0.1, "warmup": 5, "stable_until": leaves, "decay": DECAY}
    trial = {"hp": {"x": 0.5, "lr": rate}, "steps": leaves + DECAY}
    named = {"name": name, "trainer": "sleeper", "trainer_args": {"seconds": step, "tag": "late"}, "seed": 0}
    return named | {"metric": "score", "mode": "max", "tuner": {"kind": "trials", "trials": [trial]}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", type=float, default=0.25, help="seconds")
    parser.add_argument("--trunk", type=int, default=400, help="steps")
    parser.add_argument("--late", type=int, default=3, help="decays, each of which leaves the trunk a step later")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        real = Real(Path(folder), 2, DATA / "sleeper.py")
        try:
            compare(real, arguments.step, arguments.trunk, arguments.late)
        finally:
            real.close()


def compare(real: Real, step: float, trunk: int, late: int) -> None:
    """Print the table."""
    begun, first = time.monotonic(), real.submit(study("trunk", step, trunk))
    time.sleep(PASSED * step)
    print(f"{'leaves at':>9} {'result after':>13} {'its steps take':>15} {'ratio':>6} {'trunk continues for':>18}")
    for leaves in range(LEAVES, LEAVES + late):
        asked = time.monotonic()
        name = real.submit(study(f"late-{leaves}", step, leaves))
        real.wait(name)
        took, steps = time.monotonic() - asked, trained(real, name) * step
        rest = trunk * step - (time.monotonic() - begun)
        print(f"{leaves:>9} {took:>12.1f}s {steps:>14.1f}s {took / steps:>6.2f} {rest:>17.1f}s", flush=True)
    if any(isinstance(each.event, e.StudyCompleted) and each.event.study == first for each in real.log(first)):
        print("the trunk was over before: this says nothing; take a longer one")


def trained(real: Real, name: str) -> int:
    """How many steps were trained for a study."""
    chains = [each.event for each in real.log(name) if isinstance(each.event, e.ChainAssigned)]
    return sum(stage.end - stage.start for chain in chains for stage in chain.stages if stage.study == name)


if __name__ == "__main__":
    main()
