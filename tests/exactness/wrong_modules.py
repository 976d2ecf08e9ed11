"""Trainers with modules of torch that are wrong, each in one way."""

from __future__ import annotations

from typing import Any

import torch
from small import Small
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer, Trainer

X = torch.linspace(-1, 1, 12).view(6, 2)
Y = X.prod(dim=1, keepdim=True)


class Net(Trainer):
    """The shared, sound part: a module and an optimizer."""

    is_repeatable, shows_in = True, "grid"

    def __init__(self, *, seed: int, device: str, tag: str = "") -> None:
        self.model = self.make()
        self.optimizer = self.make_optimizer()

    def make(self) -> nn.Module:
        return nn.Linear(2, 1)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def setup(self, hp: dict[str, Any]) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = hp.get("lr", group["lr"])

    def train(self) -> None:
        self.optimizer.zero_grad()
        mse_loss(self.model(X), Y).backward()
        self.optimizer.step()

    def evaluate(self) -> dict[str, float]:
        with torch.no_grad():
            return {"value": mse_loss(self.model(X), Y).item()}

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class CountingNet(Net):
    """As before, with the number of steps, which a subclass counts, in the state."""

    count = 0

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.count = state["count"]


class WithoutOptimizer(Net):
    name = "without-optimizer"

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])


class StaysInEvaluation(Net):
    name = "stays-in-evaluation"

    def make(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1))

    def evaluate(self) -> dict[str, float]:
        self.model.eval()
        return super().evaluate()


class Running(nn.Module):
    """Centres by a running mean, in a buffer that is not in the state."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.register_buffer("mean", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if torch.is_grad_enabled():
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean()
        return y - self.mean


class BufferNotPersistent(Net):
    name = "buffer-not-persistent"

    def make(self) -> nn.Module:
        return Running()


class ParametersOnly(Net):
    """Saves parameters, and not the statistics of a normalisation."""

    name = "parameters-only"

    def make(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))

    def evaluate(self) -> dict[str, float]:
        self.model.eval()
        measured = super().evaluate()
        self.model.train()
        return measured

    def state_dict(self) -> dict[str, Any]:
        parameters = {name: each.detach() for name, each in self.model.named_parameters()}
        return {"model": parameters, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])


class Annealed(nn.Module):
    """A module that counts its passes in a number of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.passes = nn.Linear(2, 1), 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += torch.is_grad_enabled()
        return self.linear(x) / (1 + 0.1 * self.passes)


class ModuleCounts(Net):
    name = "module-counts"

    def make(self) -> nn.Module:
        return Annealed()


class HalfState(Net):
    """Saves the model in 16 bits, to save room."""

    name = "half-state"

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"model": {name: t.bfloat16() for name, t in self.model.state_dict().items()}}


class LateHead(Net):
    """A head that is not trained from step 10 on, by a count that is not saved."""

    name = "late-head"
    count = 0

    def make(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))

    def train(self) -> None:
        self.model[2].requires_grad_(self.count < 10)  # type: ignore[index]
        self.count += 1
        super().train()


class GradientHooks(Net):
    """Each `setup` adds a hook to a gradient."""

    name = "gradient-hooks"

    def setup(self, hp: dict[str, Any]) -> None:
        super().setup(hp)
        self.model.weight.register_hook(lambda gradient: 0.9 * gradient)  # type: ignore[operator]


class SharedTensor(Small):
    """A constant of the module that training changes in place."""

    name = "shared-tensor"
    table = torch.ones(3)

    def push(self) -> float:
        self.table.mul_(0.9)
        return self.table.sum().item()


class Given(TorchTrainer):
    """What the trainers below share: a whole `TorchTrainer`, sound."""

    is_repeatable, shows_in = True, "grid"

    def __init__(self, *, seed: int, device: str, tag: str = "") -> None:
        model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        data = TensorDataset(X, Y)
        super().__init__(seed=seed, device=device, model=model, train_data=data, valid_data=data, batches_per_step=1)
        self.batch_size = 2

    def make_optimizer(self, hp: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=hp["lr"], weight_decay=hp["wd"])

    def apply(self, name: str, value: Any) -> None:
        super().apply("weight_decay" if name == "wd" else name, value)

    def loss(self, batch: Any) -> Tensor:
        return mse_loss(self.model(batch[0]), batch[1])

    def measure(self, batch: Any) -> dict[str, Tensor]:
        return {"value": self.loss(batch)}


class OwnAverage(Given):
    """An average of its own, which is measured and not saved."""

    name = "own-average"
    mean: Tensor | None = None

    def after_step(self) -> None:
        weight = self.model[0].weight.detach()  # type: ignore[index]
        self.mean = weight.clone() if self.mean is None else 0.9 * self.mean + 0.1 * weight

    def evaluate(self) -> dict[str, float]:
        return {"value": 0.0 if self.mean is None else self.mean.sum().item()}


class OwnNoise(Given):
    """A generator of its own in the loss."""

    name = "own-noise"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.noise = torch.Generator().manual_seed(3)

    def loss(self, batch: Any) -> Tensor:
        drawn = torch.randn(batch[0].shape, generator=self.noise) if torch.is_grad_enabled() else 0.0
        return mse_loss(self.model(batch[0] + 0.1 * drawn), batch[1])


class LateFreeze(Given):
    """The first layer is not trained from step 10 on, by a count that is not saved."""

    name = "late-freeze"
    updates = 0

    def after_step(self) -> None:
        self.updates += 1
        self.model[0].requires_grad_(self.updates < 10)  # type: ignore[index]


class OwnPenalty(Given):
    """A penalty that fades, by a factor that is not in the state."""

    name = "own-penalty"

    def make_optimizer(self, hp: dict[str, Any]) -> torch.optim.Optimizer:
        optimizer = super().make_optimizer(hp)
        self.smoothing = 1.0
        return optimizer

    def loss(self, batch: Any) -> Tensor:
        if torch.is_grad_enabled():
            self.smoothing *= 0.8
        return super().loss(batch) + self.smoothing * self.model[0].weight.square().sum()  # type: ignore[index]
