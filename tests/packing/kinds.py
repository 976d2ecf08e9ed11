"""Trainers for models of the usual kinds, small and of odd sizes, of which little fills a vector; and the examples'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, mse_loss, scaled_dot_product_attention
from torch.optim import ASGD, SGD, AdamW, Optimizer, RMSprop
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer
from stagetree.trainer.data_order import Batching

ROOT = Path(__file__).parents[2]
SAMPLES = 41


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.norm = nn.Embedding(11, 12), nn.LayerNorm(12)
        self.mixed, self.scores = nn.Linear(12, 36), nn.Linear(12, 11)

    def forward(self, ids: Tensor) -> Tensor:
        mixed = self.mixed(self.norm(self.letters(ids)))
        q, k, v = mixed.unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4).unbind(0)
        found = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.scores(found.transpose(1, 2).flatten(2)).flatten(0, 1)


class Layered(nn.Module):
    """A normalization called twice, and a table that is a layer's weight, too; the sizes leave no gaps in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.norm = nn.Embedding(11, 32, padding_idx=0), nn.LayerNorm(32)
        self.inner = nn.Linear(32, 32, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        features = self.letters(ids)
        features = features + self.inner(self.norm(features)).tanh()
        return linear(self.norm(features), self.letters.weight / 4).flatten(0, 1)


class Tempered(nn.Module):
    """A model with a scalar parameter that goes through a function."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.heat = nn.Linear(6, 10), nn.Parameter(torch.zeros(()))

    def forward(self, numbers: Tensor) -> Tensor:
        return self.scores(numbers) * self.heat.exp()


class Encoding(nn.Module):
    """The stock layer of a transformer, whose attention ends in a transposition before a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(11, 12)
        self.encoder = nn.TransformerEncoderLayer(12, 3, 16, dropout=0.3, batch_first=True)
        self.scores = nn.Linear(12, 11)

    def forward(self, ids: Tensor) -> Tensor:
        return self.scores(self.encoder(self.letters(ids))).flatten(0, 1)


def layers(between: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 7), between(), nn.Linear(7, 13), between(), nn.Linear(13, 10))


def convolutions() -> nn.Module:
    first = nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, nn.Conv2d(5, 7, 2), nn.Tanh(), nn.Flatten(), nn.Linear(28, 10))


def channel_layers() -> nn.Module:
    """Layers whose sizes leave no gaps in memory: the lanes of their parameters are read in place as channels."""
    first = nn.Conv2d(1, 32, 2, bias=False), nn.BatchNorm2d(32), nn.ReLU()
    second = nn.Conv2d(32, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(128, 10))


def grouped_convolutions() -> nn.Module:
    first = nn.Conv1d(1, 6, 3), nn.GroupNorm(2, 6), nn.Sigmoid(), nn.AdaptiveAvgPool1d(3)
    return nn.Sequential(nn.Flatten(1), nn.Unflatten(1, (1, -1)), *first, nn.Flatten(), nn.Linear(18, 10))


def dropouts() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 17), nn.SiLU(), nn.Dropout(0.4), nn.LayerNorm(17), nn.Linear(17, 10))


NETS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: layers(nn.ReLU), "gelu": lambda: layers(nn.GELU), "tanh": lambda: layers(nn.Tanh),
    "softplus": lambda: layers(nn.Softplus), "tempered": Tempered, "dropping": dropouts, "convolving": convolutions,
    "channelled": channel_layers, "grouped": grouped_convolutions, "attending": Attending, "encoding": Encoding,
    "layered": Layered,
}  # fmt: skip


class Usual(TorchTrainer):
    """net: one of `NETS`."""

    name = "usual"

    def __init__(self, *, seed: int, device: str, net: str, dtype: str = "float32", **how: Any) -> None:
        number = getattr(torch, dtype)
        data = TensorDataset(*(each.to(number) if each.is_floating_point() else each for each in samples(net)))
        settings = {"batches_per_step": 2, "model": NETS[net]().to(number), "train_data": data, "valid_data": data}
        super().__init__(seed=seed, device=device, **{**settings, **how})

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        if hp.get("optimizer") == "adamw":
            return AdamW(self.model.parameters(), lr=hp["lr"], eps=1e-3)
        if hp.get("optimizer") == "rmsprop":  # with the optimizer's own code
            return RMSprop(self.model.parameters(), lr=hp["lr"], eps=1e-3)
        if hp.get("optimizer") == "asgd":  # lane by lane
            return ASGD(self.model.parameters(), lr=hp["lr"])
        return SGD(self.model.parameters(), lr=hp["lr"])

    def loss(self, batch: list[Tensor]) -> Tensor:
        scores = self.model(batch[0])
        loss = cross_entropy(scores, batch[1].flatten()) + mse_loss(scores, torch.zeros_like(scores)) / 100
        self.log("loss", loss)
        return loss


LETTERS = ("attending", "encoding", "layered")
IMAGES = ("convolving", "channelled", "grouped")


def samples(net: str) -> tuple[Tensor, Tensor]:
    """A sample and its label."""
    chance = torch.Generator().manual_seed(3)
    if net in LETTERS:
        return torch.randint(11, (SAMPLES, 6), generator=chance), torch.randint(11, (SAMPLES, 6), generator=chance)
    shape = (1, 8, 8) if net in IMAGES else (6,)
    return torch.randn(SAMPLES, *shape, generator=chance), torch.arange(SAMPLES) % 10


def trainer(path: str, name: str) -> Any:
    """A class of a file; several examples have files of one name, so the module gets another."""
    spec = spec_from_file_location(f"profiled_{name}", ROOT / path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def one_batch_each(kind: type[TorchTrainer]) -> type[TorchTrainer]:
    """The same trainer in steps of one batch, if it has no argument for that."""

    class OneBatch(kind):  # type: ignore[misc, valid-type]
        def __init__(self, **args: Any) -> None:
            super().__init__(**args)
            self._batching = Batching(per_step=1)

    return OneBatch


NO_WORK = ("profiler", "aten::empty", "aten::_unsafe_view")


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of a device, without views and allocations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = Counter[str]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name()
        if not func.is_view and not name.startswith(NO_WORK):
            self.counts[name.removeprefix("aten::").split(".")[0]] += 1
        return func(*args, **(kwargs or {}))
