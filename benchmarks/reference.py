"""The reference workload: 32 trials of 40 epochs on digits, 2 slots, against the bare loop over their different steps.

    python benchmarks/reference.py [--rounds N]

Both sides are whole commands, timed from outside, one after the other in each round: starting Python, importing torch
and reading the data are in both. The bare loop is two processes that train the study's different steps and do nothing
else: no evaluation, no checkpoint, no scheduler. The budget of the ratio is 1.10.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
STUDY = ROOT / "examples" / "digits" / "study.yaml"
TRAINER = ROOT / "examples" / "digits" / "trainer.py"
SLOTS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.share is not None:
        train_share(arguments.share)
        return
    ratios = []
    for number in range(arguments.rounds):
        bare, ours = bare_loop(), our_run()
        ratios.append(ours["seconds"] / bare)
        steps = ours["study"]["steps"]
        print(
            f"round {number + 1}: bare loop {bare:6.2f} s   stagetree {ours['seconds']:6.2f} s   "
            f"ratio {ratios[-1]:.3f}   ({steps['requested']} steps asked for, {steps['unique']} different, "
            f"{steps['executed']} run)",
            flush=True,
        )
    print(f"median ratio {statistics.median(ratios):.3f}, budget 1.10")


def bare_loop() -> float:
    """Seconds for two processes to train all different steps."""
    begun = time.monotonic()
    command = [sys.executable, __file__, "--share"]
    processes = [subprocess.Popen([*command, str(share)]) for share in range(SLOTS)]
    if any(process.wait() for process in processes):
        raise SystemExit("the bare loop failed")
    return time.monotonic() - begun


def our_run() -> dict[str, Any]:
    """Seconds for `stagetree run`, and its result."""
    command = [sys.executable, "-m", "stagetree", "run", str(STUDY), "--slots", str(SLOTS), "--discard", "-o", "json"]
    begun = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begun
    if done.returncode:
        raise SystemExit(f"stagetree run failed: {done.stderr}")
    return {"seconds": seconds, "study": json.loads(done.stdout)}


def train_share(share: int) -> None:
    """Train every SLOTS-th different step of the study, with the values it has there."""
    import torch

    from stagetree.runtime.loading import load_trainer
    from stagetree.spec import StudySpec

    torch.set_num_threads(1)
    spec = StudySpec.from_file(STUDY)
    torch.manual_seed(spec.seed)
    trainer = load_trainer(TRAINER, spec.trainer)(seed=spec.seed, device="cpu", **spec.trainer_args)
    before: dict[str, Any] = {}
    for values in different_steps(spec)[share::SLOTS]:
        changed = {name: value for name, value in values.items() if before.get(name) != value}
        if changed:
            trainer.setup(changed)
        trainer.train()
        before = values


def different_steps(spec: Any) -> list[dict[str, Any]]:
    """The values at each different step, counted by brute force: steps with the same past are one."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for configuration in spec.configurations():
        names, past = list(configuration), ()
        for values in zip(*(configuration[name].take(spec.tuner.max_steps) for name in names), strict=True):
            past = (hash((past, values)), values)
            found.setdefault(past, dict(zip(names, values, strict=True)))
    return list(found.values())


if __name__ == "__main__":
    main()
