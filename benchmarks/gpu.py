"""What a step, a hand-over and a checkpoint cost on a GPU, beside a bare loop over the same model.

    python benchmarks/gpu.py [--device cuda:0] [--width N] [--layers N] [--steps N] [--rounds N] [--json]

A transformer in bf16 learns random tokens. In each round, in turn:

- a step: a bare loop of PyTorch in this process, and the same steps in a process that trains, as slots start one;
- a hand-over: the same steps in stages, each with an evaluation and a save behind it, as between two stages; what that
  takes longer, for each, beside one evaluation and one copy of the state to pinned memory, in the bare loop;
- a checkpoint: how long the training waits for it, beside that one copy; the same after a state was loaded, whose
  memory is not used again, so that some has to be pinned; and loading it, beside one copy back.

Each line is the middle of the rounds, and its ratio. With `--device cpu` the program can be tried out without a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from app.workers.trainer_connection import Deadline
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import TrainerSettings, Warm
from stagetree import TorchTrainer
from stagetree.runtime.machine import Machine

PATIENCE = Deadline(600.0)
TOKENS, LENGTH, BATCH = 256, 128, 16
STAGES = BITS = 5
HP = {"lr": 0.001, "bs": BATCH}


class Net(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.scores = nn.Linear(width, TOKENS)

    def forward(self, window: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(window.shape[1], device=window.device)
        return self.scores(self.layers(self.tokens(window), mask=mask, is_causal=True))


class Model(TorchTrainer):
    """A step is one batch."""

    name = "model"

    def __init__(self, *, seed: int, device: str, width: int, layers: int) -> None:
        train, valid = windows(64 * BATCH), windows(BATCH)
        super().__init__(
            seed=seed,
            device=device,
            model=Net(width, layers),
            train_data=train,
            valid_data=valid,
            batches_per_step=1,
            precision="bf16",
        )

    def make_optimizer(self, hp: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=hp["lr"])

    def loss(self, batch: list[Tensor]) -> Tensor:
        return loss_of(self.model, batch[0])


class Bare:
    """The same model in a loop as one writes it by hand."""

    def __init__(self, device: str, width: int, layers: int) -> None:
        Machine(device, None, threads=1, determinism="strict").prepare()  # as the process that trains is
        torch.manual_seed(0)
        self.device = device
        self.model = Net(width, layers).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=HP["lr"])
        self.data, self.valid = (windows(count).tensors[0].to(device) for count in (64 * BATCH, BATCH))
        self.train(2)  # kernels are loaded, and the optimizer has its state
        self.state = [*self.model.state_dict().values(), *self._moments()]
        self.pinned = [torch.empty_like(each, device="cpu", pin_memory=device != "cpu") for each in self.state]

    def train(self, steps: int) -> None:
        for step in range(steps):
            begin = step * BATCH % len(self.data)
            self.optimizer.zero_grad()
            with self._autocast():
                loss = loss_of(self.model, self.data[begin : begin + BATCH])
            loss.backward()
            self.optimizer.step()
        self._wait()

    def evaluate(self) -> None:
        with torch.no_grad(), self._autocast():
            loss_of(self.model, self.valid).item()

    def copy(self) -> None:
        for pinned, each in zip(self.pinned, self.state, strict=True):
            pinned.copy_(each, non_blocking=True)
        self._wait()

    def copy_back(self) -> None:
        for pinned, each in zip(self.pinned, self.state, strict=True):
            each.copy_(pinned, non_blocking=True)
        self._wait()

    def _moments(self) -> list[Tensor]:
        states = self.optimizer.state.values()
        return [each for state in states for each in state.values() if each.dim()]

    def _autocast(self) -> Any:
        return torch.autocast(torch.device(self.device).type, torch.bfloat16)

    def _wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)


def windows(count: int) -> TensorDataset:
    return TensorDataset(torch.randint(TOKENS, (count, LENGTH + 1), generator=torch.Generator().manual_seed(count)))


def loss_of(model: nn.Module, window: Tensor) -> Tensor:
    return cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())


def seconds(do: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    do()
    return time.perf_counter() - begun


def staged(process: TrainerProcess, steps: int) -> None:
    """Steps in stages, with what happens between two of them on a slot."""
    for _ in range(STAGES):
        process.train(HP, process.step + steps // STAGES, deadline=PATIENCE)
        process.call(PATIENCE).evaluate()
        process.save(deadline=PATIENCE).close()


def paired(process: TrainerProcess, bare: Bare, steps: int) -> tuple[float, float]:
    """Seconds of this many steps, ours and bare, right behind each other: a machine's speed varies by the second."""
    ours = seconds(lambda: process.train(HP, process.step + steps, deadline=PATIENCE))
    return ours, seconds(lambda: bare.train(steps))


def compare(process: TrainerProcess, bare: Bare, steps: int) -> dict[str, tuple[float, float]]:
    """Seconds of each thing, ours and bare."""
    steps = max(1, steps // BITS) * BITS
    bits = [paired(process, bare, steps // BITS) for _ in range(BITS)]
    whole, loop = (sum(each) for each in zip(*bits, strict=True))
    stages = seconds(lambda: staged(process, steps))
    copied, back = seconds(bare.copy), seconds(bare.copy_back)
    begun = time.perf_counter()
    state = process.save(deadline=PATIENCE)
    saved = time.perf_counter() - begun
    loaded = seconds(lambda: process.call(PATIENCE).load(fds=state.lend(), hp=HP, step=process.step))
    state.close()
    anew = seconds(lambda: process.save(deadline=PATIENCE).close())
    return {
        "a step": (whole / steps, loop / steps),
        "a hand-over": ((stages - whole) / STAGES, seconds(bare.evaluate) + copied),
        "saving": (saved, copied),
        "saving anew": (anew, copied),
        "loading": (loaded, back),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="with one line of JSON at the end")
    given = parser.parse_args()
    if given.device != "cpu" and not torch.cuda.is_available():
        sys.exit("torch finds no GPU here; --device cpu tries the program out")
    sizes = {"width": given.width, "layers": given.layers}
    device_name = given.device if given.device == "cpu" else torch.cuda.get_device_name()
    found = defaultdict[str, list[tuple[float, float]]](list)
    with TrainerProcess.start(Warm(), TrainerSettings(given.device)) as process:
        process.call(PATIENCE).build(file=__file__, name="model", args=sizes, seed=0)
        process.train(HP, 2, deadline=PATIENCE)
        process.save(deadline=PATIENCE).close()
        bare = Bare(given.device, **sizes)
        print(f"{device_name}, torch {torch.__version__}: {megabytes(bare):.0f} MiB of state")
        for _ in range(given.rounds):
            for name, pair in compare(process, bare, given.steps).items():
                found[name].append(pair)
    measured: dict[str, dict[str, float]] = {}
    for name, pairs in found.items():
        ours, theirs = (1000 * statistics.median(each) for each in zip(*pairs, strict=True))
        ratio = statistics.median(mine / bare for mine, bare in pairs)
        print(f"{name:12}  {ours:9.2f} ms  bare {theirs:9.2f} ms  ratio {ratio:.2f}")
        measured[name] = {"ours_ms": ours, "bare_ms": theirs, "ratio": ratio}
    if given.json:
        print(json.dumps({"device": device_name, "measured": measured}))


def megabytes(bare: Bare) -> float:
    return sum(each.numel() * each.element_size() for each in bare.state) / 2**20


if __name__ == "__main__":
    main()
