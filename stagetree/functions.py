"""A trainer of three functions, for models that are short enough for a notebook's cell.

def build(seed, device):
    model = torch.nn.Linear(1, 1).to(device)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "_data": load(device)}

def step(state, hp):
    for group in state["optimizer"].param_groups:
        group["lr"] = hp["lr"]
    ...

def measure(state):
    return {"loss": ...}

Line = function_trainer("line", build, step, measure)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from stagetree.trainer import Trainer

__all__ = ["FunctionTrainer", "function_trainer"]

State = dict[str, Any]


class FunctionTrainer(Trainer):
    """Trains what `build` makes, by `step`.

    All that `build` returns is saved in checkpoints: models and optimizers by their `state_dict`, tensors and plain
    values as they are. Names that begin with `_` are not: they are for what never changes, such as data.
    """

    build: ClassVar[Callable[..., State]]
    """`build(seed, device, **trainer_args)`: whatever is trained, by name."""

    step: ClassVar[Callable[[State, dict[str, Any]], None]]
    """`step(state, hp)`: one step, with the values of the hyper-parameters at it."""

    measure: ClassVar[Callable[[State], dict[str, float]]]
    """`measure(state)`: value by metric name. It leaves no trace in the state."""

    def __init__(self, *, seed: int, device: str, **trainer_args: Any) -> None:
        super().__init__(seed=seed, device=device, **trainer_args)
        self.state = type(self).build(seed=seed, device=device, **trainer_args)
        self.hp: dict[str, Any] = {}

    def setup(self, hp: dict[str, Any]) -> None:
        self.hp |= hp

    def train(self) -> None:
        type(self).step(self.state, dict(self.hp))

    def evaluate(self) -> dict[str, float]:
        return type(self).measure(self.state)

    def state_dict(self) -> dict[str, Any]:
        return {name: _saved(value) for name, value in self.state.items() if not name.startswith("_")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            if hasattr(self.state[name], "load_state_dict"):
                self.state[name].load_state_dict(value)
            else:
                self.state[name] = _copied(value, self.device)


def function_trainer(
    name: str,
    build: Callable[..., State],
    step: Callable[[State, dict[str, Any]], None],
    measure: Callable[[State], dict[str, float]],
) -> type[FunctionTrainer]:
    """The trainer that three functions make; see `FunctionTrainer` for what they are given."""
    members: dict[str, Any] = {
        "__module__": __name__,
        "name": name,
        "build": staticmethod(build),
        "step": staticmethod(step),
        "measure": staticmethod(measure),
    }
    return type("".join(filter(str.isidentifier, name)) or "Functions", (FunctionTrainer,), members)


def _saved(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else value


def _copied(value: Any, device: str) -> Any:
    """A value of one's own: whoever loads may load the same again."""
    if hasattr(value, "clone"):
        return value.clone().to(device)
    if isinstance(value, dict):
        return {key: _copied(item, device) for key, item in value.items()}
    return [_copied(item, device) for item in value] if isinstance(value, list) else value
