"""How many times faster k models train in one pack than one after the other, for k = 1 to 64, in one run.

    python benchmarks/packing.py [--models mlp,digits,charlm,lora,qlora] [--widths 1,2,4,8,16,32,64] [--seconds S]
                                 [--device cpu] [--cuda-graphs]

The models are the trainers of the examples, a small MLP on the images of digits, and adapters on one Llama of 230
million weights, in bf16 (lora) or in four bits (qlora, which needs bitsandbytes): each trained by its own `train` step,
and then in packs by `stagetree.packing`, with the same data, the same hyper-parameters but for the learning rate, and
the same number of batches. On the CPU one thread is used. The figure is the time of k models alone over the time of
the pack; on a GPU, with the memory that was in use at most. Then comes the choice of the product: of the widths
that the profile of the widest pack has measured, the one that the result of a study would name for k trials at once,
as `stagetree run` prints it; 0 is without packs. Beside it stands what Liu et al. 2020 say of their Figure 4(a),
measured on a Quadro P5000, as (Ts(Seq) - Ts(Pack)) / Ts(Seq).
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch

from app.domain.events import PackingProfiled
from app.scheduling.widths import better_width, times_faster
from stagetree import TorchTrainer
from stagetree.packing import Lane, NotPackable, Pack
from stagetree.runtime.machine import Machine
from stagetree.trainer import generators

ROOT = Path(__file__).parent.parent
PAPER = {
    "Figure 4(a), MLP-3": "80 % less time with 4 models: 5 x",
    "two models, any": "from 10 % slower to 40 % faster",
}
BATCHES = 5
"""In a step, so that the work between two steps equals that of a study."""


TRAINERS = {
    "mlp": ("benchmarks/data/mlp.py", "Mlp"),
    "digits": ("examples/digits/trainer.py", "Digits"),
    "charlm": ("examples/charlm/trainer.py", "CharLM"),
    "lora": ("benchmarks/data/adapters.py", "Adapters"),
    "qlora": ("benchmarks/data/adapters.py", "QuantisedAdapters"),
}


@cache
def trainer_of(kind: str) -> Any:
    """The class of a trainer."""
    path, name = TRAINERS[kind]
    spec = importlib.util.spec_from_file_location(f"{kind}_trainer", ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def built(kind: str, device: str) -> TorchTrainer:
    trainer_class = trainer_of(kind)
    generators.seed(0)
    how: dict[str, Any] = {} if kind == "digits" else {"batches_per_step": BATCHES}
    if kind == "charlm":
        how["precision"] = "fp32" if device == "cpu" else "bf16"
    trainer: TorchTrainer = trainer_class(seed=0, device=device, **how)
    return trainer


def hyperparameters(kind: str, lane: int) -> dict[str, Any]:
    common = {"lr": 0.01 * (1 + lane / 64), "bs": 32, "weight_decay": 5e-4}
    if kind in ("lora", "qlora"):
        return {**common, "lr": common["lr"] / 100, "bs": 4}
    return common if kind == "charlm" else {**common, "momentum": 0.9}


def seconds_alone(kind: str, device: str, seconds: float) -> float:
    """Of one batch."""
    trainer = built(kind, device)
    trainer.setup(hyperparameters(kind, 0))
    return _seconds_a_step(trainer.train, device, seconds) / batches(trainer)


def measured_pack(kind: str, device: str, width: int, seconds: float) -> tuple[float, PackingProfiled]:
    """The seconds of one batch of one of the models, and what a slot would put on record of such packs."""
    pack, lanes = Pack(width), list[Lane]()
    for number in range(width):
        trainer = built(kind, device)
        trainer.setup(hyperparameters(kind, number))
        lane = pack.join(trainer, device, generators.state(device))
        assert lane is not None  # they have one shape
        lanes.append(lane)
    for reason in pack.unpackable(lanes).values():
        raise reason
    took = _seconds_a_step(lambda: pack.train(lanes), device, seconds) / width / batches(lanes[0].trainer)
    profile = pack.profile(lanes[0])
    costs = {"0": profile.alone, **{str(lanes): cost for lanes, cost in profile.packed.items()}}
    batch_seconds = {name: cost.seconds for name, cost in costs.items()}
    return took, PackingProfiled(device=device, batch_seconds=batch_seconds, peak_bytes={})


def advised(profile: PackingProfiled, trials: int) -> tuple[int, float]:
    """The width that a study's result would name for this many trials at once, and its speed-up."""
    better = better_width(trials, 0, profile)
    return better or 0, round(times_faster(trials, better or 0, profile), 2)


def batches(trainer: TorchTrainer) -> int:
    """In a step: the digits of the example take whole epochs."""
    return -(-1437 // 32) if trainer.name == "digits" else BATCHES


def _seconds_a_step(step: Any, device: str, seconds: float) -> float:
    """After steps for half as long, in which it is looked whether the trainer can be packed, and how, for each size of
    batch that an epoch has: once in a process."""
    _steps_in(seconds / 2, step, device)
    begun_at = _now(device)
    steps = _steps_in(seconds, step, device)
    return (_now(device) - begun_at) / steps


def _steps_in(seconds: float, step: Any, device: str) -> int:
    """The number of made ones, at least two."""
    steps, begun_at = 0, _now(device)
    while _now(device) - begun_at < seconds or steps < 2:
        step()
        steps += 1
    return steps


def _now(device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(kind: str, device: str, widths: list[int], seconds: float) -> dict[str, Any]:
    alone = seconds_alone(kind, device, seconds)
    print(f"{kind}: alone {alone * 1e3:.3f} ms a batch", file=sys.stderr)
    ratios: dict[int, float] = {}
    gibibytes: dict[int, float] = {}
    profile: PackingProfiled | None = None
    for width in widths:
        reset_peak(device)
        try:
            packed, profile = measured_pack(kind, device, width, seconds)
        except (NotPackable, torch.OutOfMemoryError) as reason:
            print(f"{kind}: k = {width}: {reason}", file=sys.stderr)
            break
        ratios[width] = round(alone / packed, 2)
        gibibytes[width] = peak(device)
        room = f", {gibibytes[width]:.2f} GiB" if device != "cpu" else ""
        print(
            f"{kind}: k = {width:2}: {packed * 1e3:.3f} ms a batch and model: {ratios[width]:.2f} x{room}",
            file=sys.stderr,
        )
    best = {} if profile is None else {width: advised(profile, width) for width in ratios}
    for trials, (width, times) in best.items():
        print(f"{kind}: of {trials:2} trials at once: packing {width}, {times:.2f} x by the profile", file=sys.stderr)
    return {"model": kind, "alone_ms": round(alone * 1e3, 3), "ratio": ratios, "advised": best, "gib": gibibytes}


def reset_peak(device: str) -> None:
    if device != "cpu":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak(device: str) -> float:
    """GiB that were in use at once."""
    return 0.0 if device == "cpu" else round(torch.cuda.max_memory_allocated() / 2**30, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="mlp,digits,charlm")
    parser.add_argument("--widths", default="1,2,4,8,16,32,64")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cuda-graphs", action="store_true", help="passes are recorded: STAGETREE_CUDA_GRAPHS")
    given = parser.parse_args()
    Machine(given.device, None, 1, "strict", cuda_graphs=given.cuda_graphs).prepare()  # as the process that trains is
    widths = [int(width) for width in given.widths.split(",")]
    results = [measure(kind, given.device, widths, given.seconds) for kind in given.models.split(",")]
    print(json.dumps({"device": given.device, "cuda_graphs": given.cuda_graphs, "models": results, "paper": PAPER}))


if __name__ == "__main__":
    main()
