"""Trainers whose evaluation leaves a trace in the state, though training comes out the same."""

from __future__ import annotations

from typing import Any

from wrong_modules import Net


class SwapsAverages(Net):
    """Measures averages of its weights, and puts the weights back when it is trained next, as some optimizers do."""

    name = "swaps-averages"
    is_swapped = False

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.averages = [each.detach().clone() for each in self.model.parameters()]

    def swap(self, is_swapped: bool) -> None:
        for weight, average in zip(self.model.parameters(), self.averages, strict=True):
            if self.is_swapped != is_swapped:
                weight.data, average.data = average.data.clone(), weight.data.clone()
        self.is_swapped = is_swapped

    def train(self) -> None:
        self.swap(False)
        super().train()
        for weight, average in zip(self.model.parameters(), self.averages, strict=True):
            average.mul_(0.9).add_(weight.detach(), alpha=0.1)

    def evaluate(self) -> dict[str, float]:
        self.swap(True)
        return super().evaluate()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "averages": list(self.averages), "is_swapped": self.is_swapped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.averages, self.is_swapped = [each.clone() for each in state["averages"]], state["is_swapped"]
