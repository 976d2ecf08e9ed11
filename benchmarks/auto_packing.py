"""`packing: auto` against trials alone and against fixed widths, from the command to the result.

    python benchmarks/auto_packing.py [--trials 24] [--steps 30] [--widths 8 24] [--dir FOLDER]

`stagetree run` as a user calls it, on one slot of the CPU, with nothing measured before: for the small MLP of
`benchmarks/data/mlp.py`, where packs are faster, and for the convolutions of `examples/digits`, where they are not, and
a sixth of the steps. Printed are the seconds of the slot, and how many times faster that is than trials alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from packed_hyperband import timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--widths", type=int, nargs="*", default=[8, 24])
    parser.add_argument("--dir", type=Path, help="where log and checkpoints are")
    given = parser.parse_args()
    for trainer, steps in (("mlp", given.steps), ("digits", max(1, given.steps // 6))):
        alone = seconds(trainer, steps, given, 0)
        for packing in ("auto", *given.widths):
            taken = seconds(trainer, steps, given, packing)
            print(f"{trainer}, packing {packing}: {alone / taken:.2f} times as fast as alone", flush=True)


def seconds(trainer: str, steps: int, given: argparse.Namespace, packing: int | str) -> float:
    """Of the slot's time."""
    spec: dict[str, Any] = {
        "name": "auto-packing",
        "trainer": trainer,
        "metric": "val_accuracy",
        "mode": "max",
        "packing": packing,
        "space": {"lr": {"loguniform": [0.01, 0.2]}, "bs": 32},
        "tuner": {"kind": "random", "num_trials": given.trials, "max_steps": steps, "sampling_seed": 1},
    }
    clock, result = timed(spec, given.dir)
    chosen = result.get("packing", {}).get("chosen", "")
    print(
        f"{trainer}, packing {packing}: {result['gpu_seconds']:.1f} s, on the clock {clock:.1f} s  {chosen}", flush=True
    )
    return float(result["gpu_seconds"])


if __name__ == "__main__":
    main()
