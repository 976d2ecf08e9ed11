"""Trainers for a GPU: exact ones of the usual kinds, and ones with typical faults of users' trainers."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.optim import AdamW, Optimizer, RMSprop
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer, Trainer

LENGTHS = (129, 1025)
"""Tokens of a sample, one more than are attended to: of one block of a GPU, and of several."""


class OnGpu(TorchTrainer):
    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        return AdamW(self.model.parameters(), lr=hp["lr"])


class Convolving(OnGpu):
    name = "convolving"

    def __init__(self, *, seed: int, device: str, **how: Any) -> None:
        chance = torch.Generator().manual_seed(seed)
        data = TensorDataset(torch.randn(64, 3, 16, 16, generator=chance), torch.arange(64) % 10)
        convolved = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.1), self.pool()
        model = nn.Sequential(*convolved, nn.Flatten(), nn.LazyLinear(10))
        model(data.tensors[0][:2])
        super().__init__(seed=seed, device=device, model=model, train_data=data, valid_data=data, **how)

    def pool(self) -> nn.Module:
        return nn.Identity()

    def loss(self, batch: list[Tensor]) -> Tensor:
        loss = cross_entropy(self.model(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss


class Undetermined(Convolving):
    """Its pooling has no deterministic backward pass on a GPU."""

    name = "undetermined"

    def pool(self) -> nn.Module:
        return nn.AdaptiveMaxPool2d(5)


class Weighing(Convolving):
    """Its loss depends on a value that is in no tensor and no numeric attribute."""

    name = "weighing"
    weight: ClassVar[list[float]] = [1.0]

    def loss(self, batch: list[Tensor]) -> Tensor:
        return super().loss(batch) * self.weight[0]


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.mixed, self.scores = nn.Embedding(50, 64), nn.Linear(64, 192), nn.Linear(64, 50)

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.mixed(self.letters(ids)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4).unbind(0)
        dropout = 0.1 if self.training else 0.0
        found = scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return self.scores(found.transpose(1, 2).flatten(2))


class Attention(OnGpu):
    name = "attention"

    def __init__(self, *, seed: int, device: str, length: int = LENGTHS[0], **how: Any) -> None:
        data = TensorDataset(torch.randint(50, (64, length), generator=torch.Generator().manual_seed(seed)))
        super().__init__(seed=seed, device=device, model=Attending(), train_data=data, valid_data=data, **how)

    def loss(self, batch: list[Tensor]) -> Tensor:
        scores = self.model(batch[0][:, :-1])
        return cross_entropy(scores.flatten(0, 1), batch[0][:, 1:].flatten())


class Encoding(Attention):
    """The stock layer of a transformer, with its default dropout, in its attention too."""

    name = "encoding"

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        torch.manual_seed(5)
        layer = nn.TransformerEncoderLayer(64, 4, 64, batch_first=True)
        self.model = nn.Sequential(nn.Embedding(50, 64), layer, nn.Linear(64, 50)).to(args["device"])


class ByOwnCode(Attention):
    """Packs have no rule for its optimizer."""

    name = "by-own-code"

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        return RMSprop(self.model.parameters(), lr=hp["lr"] / 10, momentum=0.5)


class Lion(Optimizer):
    """Chen et al. 2023, in a user's own implementation."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                mean = self.state[each].setdefault("exp_avg", torch.zeros_like(each))
                first, second = group["betas"]
                each.add_((mean * first + each.grad * (1 - first)).sign_(), alpha=-group["lr"])
                mean.mul_(second).add_(each.grad, alpha=1 - second)


class ByLion(Convolving):
    name = "by-lion"

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        return Lion(self.model.parameters(), lr=hp["lr"] / 10)


class Adapted(nn.Module):
    """A layer of bitsandbytes, of four bits a number, that does not learn; and an adapter of rank two."""

    def __init__(self, read: int, written: int) -> None:
        super().__init__()
        import bitsandbytes as bnb

        self.base = bnb.nn.Linear4bit(read, written, quant_type="nf4", compute_dtype=torch.bfloat16)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(read, 2, bias=False), nn.Linear(2, written, bias=False)

    def forward(self, numbers: Tensor) -> Tensor:
        made: Tensor = self.base(numbers) + self.up(self.down(numbers))
        return made


class Quantised(Attention):
    name = "quantised"

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        torch.manual_seed(5)
        self.model.mixed = Adapted(64, 192).to(args["device"])


class Reading(OnGpu):
    """Samples that are read one by one, by other processes if configured, into pinned memory."""

    name = "reading"

    def __init__(self, *, seed: int, device: str, **how: Any) -> None:
        chance = torch.Generator().manual_seed(seed)
        data = [(torch.randn(8, generator=chance), number % 3) for number in range(50)]
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 3))
        settings = {"batches_per_step": 2, **how}
        super().__init__(seed=seed, device=device, model=model, train_data=data, valid_data=data, **settings)

    def transform(self, sample: Any, generator: Generator) -> Any:
        return sample[0] + torch.randn(8), sample[1]

    def loss(self, batch: list[Tensor]) -> Tensor:
        return cross_entropy(self.model(batch[0]), batch[1])


class Moody(Trainer):
    """A square of numbers on the device. `mood` says what a step does: see `train`. size: numbers in a row of it."""

    name = "moody"

    def __init__(self, *, seed: int, device: str, size: int = 512) -> None:
        super().__init__(seed=seed, device=device)
        self.numbers = torch.randn(size, size, device=device)
        self.mood = "fine"

    def setup(self, hp: dict[str, Any]) -> None:
        self.mood = hp["mood"]

    def train(self) -> None:
        self.numbers = torch.tanh(self.numbers @ self.numbers)
        if self.mood == "memory":
            torch.empty(2**50, dtype=torch.uint8, device=self.device)
        elif self.mood == "assert":  # raised at the next synchronization, like most errors of kernels
            self.numbers[torch.tensor([2**20], device=self.device)] += 1

    def evaluate(self) -> dict[str, float]:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return {
            "sum": float(self.numbers.sum()),
            "devices": torch.cuda.device_count(),
            "visible": len(seen.split(",")) if seen else -1,
            "allocated": torch.cuda.memory_allocated(),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"numbers": self.numbers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.numbers = state["numbers"].to(self.device, copy=True)


TRAINERS = {
    kind.name: kind for kind in (Convolving, Attention, Reading, Weighing, Encoding, ByOwnCode, ByLion, Quantised)
}


def make_trainer(name: str, **args: Any) -> TorchTrainer:
    """A trainer in this process."""
    torch.manual_seed(args["seed"])
    return TRAINERS[name](**args)
