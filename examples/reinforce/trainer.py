"""Reinforcement learning: a pole is balanced on a cart by REINFORCE (Williams, 1992), many poles at a time.

The world is NumPy, with a generator of its own, which is therefore part of the state. The width of the policy is a
hyper-parameter, so the model is built in `setup`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from stagetree import Trainer

Array = np.ndarray[Any, np.dtype[np.float64]]
LONGEST = 200
"""Moves after which an episode is over anyway."""


class Reinforce(Trainer):
    """Hyper-parameters: `lr`, `entropy` (what keeps the policy curious), `width`. A step is one batch of episodes."""

    name = "reinforce"

    def __init__(self, *, seed: int, device: str, episodes: int = 16, discount: float = 0.99) -> None:
        super().__init__(seed=seed, device=device)
        self.episodes, self.discount = episodes, discount
        self.chance = np.random.default_rng(seed)
        self.hp: dict[str, Any] = {}

    def setup(self, hp: dict[str, Any]) -> None:
        if hp.get("width", self.hp.get("width")) != self.hp.get("width"):
            self.policy = policy(hp["width"], self.seed).to(self.device)
            self.optimizer = torch.optim.Adam(self.policy.parameters())
        self.hp |= hp
        self.optimizer.param_groups[0]["lr"] = self.hp["lr"]

    def train(self) -> None:
        poles = Poles(self.episodes, self.chance)
        logs, curious, alive = [], [], []
        while poles.alive.any() and len(logs) < LONGEST:
            seen, alive_now = self._seen(poles), poles.alive.copy()
            choice = Categorical(logits=self.policy(seen))
            move = choice.sample()
            poles.move(move.cpu().numpy())
            logs.append(choice.log_prob(move))
            curious.append(choice.entropy())
            alive.append(alive_now)
        self._learn(torch.stack(logs), torch.stack(curious), np.stack(alive))

    def _learn(self, logs: Tensor, curious: Tensor, alive: Array) -> None:
        """One step up the gradient of the returns, each relative to the returns of the other episodes."""
        returns = np.zeros(alive.shape)
        for step in reversed(range(len(alive))):
            after = returns[step + 1] if step + 1 < len(alive) else 0.0
            returns[step] = alive[step] * (1.0 + self.discount * after)
        better = (returns - returns[alive].mean()) / (returns[alive].std() + 1e-6)
        weights = torch.tensor(better * alive, dtype=torch.float32, device=self.device)
        counted = torch.tensor(alive, dtype=torch.float32, device=self.device)
        gain = (weights * logs + self.hp["entropy"] * counted * curious).sum() / counted.sum()
        self.optimizer.zero_grad()
        (-gain).backward()
        self.optimizer.step()
        self.log("moves", alive.sum() / self.episodes)

    def evaluate(self) -> dict[str, float]:
        """Moves until the pole falls, from places that are always the same, with the likeliest move each time."""
        poles, moves = Poles(20, np.random.default_rng(123)), 0
        with torch.no_grad():
            for _ in range(LONGEST):
                moves += int(poles.alive.sum())
                poles.move(self.policy(self._seen(poles)).argmax(dim=1).cpu().numpy())
        return {"moves": moves / 20}

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "chance": self.chance.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.chance.bit_generator.state = state["chance"]

    def _seen(self, poles: Poles) -> Tensor:
        return torch.tensor(poles.state, dtype=torch.float32, device=self.device)


def policy(width: int, seed: int) -> nn.Module:
    """The same for a width and a seed, whenever it is built."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))


class Poles:
    """Poles on carts (Barto, Sutton and Anderson, 1983). state: place, speed, angle, its speed; alive: upright."""

    def __init__(self, count: int, chance: np.random.Generator) -> None:
        self.state: Array = chance.uniform(-0.05, 0.05, (count, 4))
        self.alive = np.ones(count, dtype=bool)

    def move(self, right: Array) -> None:
        """Push each cart for a fiftieth of a second, to the left (0) or to the right (1)."""
        _, speed, angle, turning = self.state.T
        push = np.where(right == 1, 10.0, -10.0) + 0.05 * turning**2 * np.sin(angle)
        pull = 9.8 * np.sin(angle) - np.cos(angle) * push / 1.1
        turned = pull / (0.5 * (4.0 / 3.0 - 0.1 * np.cos(angle) ** 2 / 1.1))
        pushed = (push - 0.05 * turned * np.cos(angle)) / 1.1
        self.state = self.state + 0.02 * np.stack([speed, pushed, turning, turned], axis=1)
        self.alive &= (np.abs(self.state[:, 0]) < 2.4) & (np.abs(self.state[:, 2]) < 0.2095)
