"""Hyperband with packs against Hyperband without, with the same arms, from the command to the result.

    python benchmarks/packed_hyperband.py [--width 32] [--max-steps 27] [--batches 50] [--dir FOLDER]

`stagetree run` as a user calls it, on one slot of the CPU, for the small MLP of `benchmarks/data/mlp.py` with drawn
learning rates and momenta: once with each trial trained alone, and once with `packing`. A step is several batches.
Prints the seconds on the clock and of the slot, their ratios, and whether both promoted the same trials. Packed
training differs in its last bits, so that a trial near the threshold may be ranked otherwise. The paper (Liu et al.
2020, Table 4) has 9,236 s against 3,491 s for its MLP on a GPU: 2.7 times.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAPER = 2.7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--max-steps", type=int, default=27)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--dir", type=Path, help="where log and checkpoints are")
    given = parser.parse_args()
    plain, packed = (run(given, packing) for packing in (0, given.width))
    clock, slot = (plain[name] / packed[name] for name in ("clock_seconds", "gpu_seconds"))
    print(f"on the clock {clock:.2f} times, of the slot {slot:.2f} times faster; the paper's MLP: {PAPER} times")
    same = plain["steps_of_trials"] == packed["steps_of_trials"]
    print(f"promotions are {'the same' if same else 'not all the same'}; best {plain['best']} and {packed['best']}")


def run(given: argparse.Namespace, packing: int) -> dict[str, Any]:
    """What a study took, and what came of it."""
    spec = {
        "name": "packed-hyperband",
        "trainer": "mlp",
        "trainer_args": {"batches_per_step": given.batches},
        "metric": "val_accuracy",
        "mode": "max",
        "packing": packing,
        "space": {"lr": {"loguniform": [0.001, 0.5]}, "momentum": {"uniform": [0.0, 0.95]}, "bs": 32},
        "tuner": {"kind": "hyperband", "max_steps": given.max_steps, "reduction_factor": 3, "sampling_seed": 7},
    }
    seconds, result = timed(spec, given.dir)
    print(f"packing {packing}: {seconds:.1f} s on the clock, {result['gpu_seconds']:.1f} s of the slot", flush=True)
    return {
        "clock_seconds": seconds,
        "gpu_seconds": result["gpu_seconds"],
        "steps_of_trials": [trial["steps"] for trial in result["trials"]],
        "best": (result["best"]["trial"], round(result["best"]["value"], 4)),
    }


def timed(spec: dict[str, Any], dir: Path | None) -> tuple[float, dict[str, Any]]:
    """The seconds from the command to the result, and the result, of a study on one slot with nothing before it."""
    with tempfile.TemporaryDirectory(dir=dir) as folder:
        study = Path(folder) / "study.json"
        study.write_text(json.dumps(spec))
        command = [sys.executable, "-m", "stagetree", "run", str(study), "--slots", "1", "-o", "json"]
        command += ["--dir", f"{folder}/kept", "--trainers", str(ROOT / "benchmarks" / "data" / "mlp.py")]
        begun = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - begun
    if done.returncode:
        raise SystemExit(f"stagetree run failed: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["steps"]["executed"] == result["steps"]["unique"], result["steps"]
    return seconds, result


if __name__ == "__main__":
    main()
