"""Searches by Syne Tune and NePS for `benchmarks/search.py`: each tool in a process of its own environment.

Both ends of a pipe are here. `Peer` starts `python benchmarks/peers/samplers.py TOOL` by the interpreter of the tool's
environment. A line with a search starts it; then the process writes a line for each measurement and reads its loss,
until it writes `null` because the budget is spent.
"""

from __future__ import annotations

import heapq
import json
import logging
import random
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache
from itertools import count
from typing import Any, NamedTuple

Values = Mapping[str, Any]
Measure = Callable[[Values, int], float]
"""The loss of a configuration after a number of steps."""


class Arm(NamedTuple):
    """A sampler of a tool. title: its name in the table."""

    tool: str
    title: str


ARMS = {
    "syne tune cqr": Arm("syne_tune", "Syne Tune's CQR"),
    "syne tune bohb": Arm("syne_tune", "Syne Tune's BOHB"),
    "neps bo": Arm("neps", "NePS's BO"),
}

FULL_LENGTH_ONLY = {"neps bo"}
"""Without priors, NePS's samplers under ASHA are uniform, and the model of its ifBO is a download."""


def spend(train: Callable[[], Iterator[int]], slots: int, budget: int) -> None:
    """Train on each slot one trial after the other, where a step takes a second, until all steps are spent.

    train: starts the next trial; its iterator yields the numbers of steps to each of its measurements.
    """
    numbers = count()
    waiting = [(0, next(numbers), train()) for _ in range(slots)]
    while budget > 0:
        now, _, steps = heapq.heappop(waiting)
        taken = next(steps, None)
        if taken is None:
            steps = train()
            taken = next(steps)
        budget -= taken
        heapq.heappush(waiting, (now + taken, next(numbers), steps))


class Peer:
    """A tool's process, which runs one search after the other."""

    def __init__(self, python: str, tool: str) -> None:
        command = [python, __file__, tool]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def search(self, fields: Mapping[str, Any], measure: Measure) -> None:
        """Run a search. Raises `ValueError` if the process ends before it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        message: Any = fields
        while message is not None:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
            message = None if answer is None else measure(*answer)


@cache
def peer(python: str, tool: str) -> Peer:
    return Peer(python, tool)


class Tool(ABC):
    """One search with a tool, in its own process.

    fields: `arm`, `seed`, `space` (for each parameter the `options`, or `low`, `high`, `log` and `whole`), and `rungs`,
    the steps of the measurements of a trial, from which it may be stopped.
    """

    def __init__(self, fields: Mapping[str, Any], measure: Measure) -> None:
        self.rungs: list[int] = fields["rungs"]
        self.measure = measure

    @abstractmethod
    def train(self) -> Iterator[int]:
        """A trial: yields the steps before each of its measurements."""


class SyneTune(Tool):
    def __init__(self, fields: Mapping[str, Any], measure: Measure) -> None:
        from syne_tune.optimizer import baselines

        super().__init__(fields, measure)
        space = {name: self._domain(**each) for name, each in fields["space"].items()}
        common = {"config_space": space, "metric": "loss", "random_seed": fields["seed"]}
        if len(self.rungs) == 1:
            self._scheduler = baselines.CQR(**common)
        else:
            kind = baselines.ASHACQR if fields["arm"] == "syne tune cqr" else baselines.BOHB
            eta = self.rungs[1] // self.rungs[0]
            halving = {"grace_period": self.rungs[0], "reduction_factor": eta, "max_t": self.rungs[-1]}
            self._scheduler = kind(**common, time_attr="step", **halving)
        self._numbers = count()

    @staticmethod
    def _domain(options: int = 0, low: float = 0, high: float = 0, log: bool = False, whole: bool = False) -> Any:
        from syne_tune import config_space

        if options:
            return config_space.choice(list(range(options)))
        if whole:
            return (config_space.lograndint if log else config_space.randint)(low, high)
        return (config_space.loguniform if log else config_space.uniform)(low, high)

    def train(self) -> Iterator[int]:
        from syne_tune.backend.trial_status import Trial

        scheduler, before = self._scheduler, 0
        trial = Trial(next(self._numbers), scheduler.suggest().config, datetime.now())
        scheduler.on_trial_add(trial)
        for rung in self.rungs:
            yield rung - before
            before, result = rung, {"loss": self.measure(trial.config, rung), "step": rung}
            if rung == self.rungs[-1]:
                scheduler.on_trial_complete(trial, result)
            elif scheduler.on_trial_result(trial, result) == "STOP":
                scheduler.on_trial_remove(trial)
                return


class NePS(Tool):
    def __init__(self, fields: Mapping[str, Any], measure: Measure) -> None:
        import numpy
        import torch
        from neps.optimizers import algorithms
        from neps.optimizers.ask_and_tell import AskAndTell
        from neps.space import SearchSpace

        super().__init__(fields, measure)
        torch.set_num_threads(1)
        random.seed(fields["seed"]), numpy.random.seed(fields["seed"]), torch.manual_seed(fields["seed"])
        space = SearchSpace({name: self._parameter(**each) for name, each in fields["space"].items()})
        self._optimizer = AskAndTell(algorithms.bayesian_optimization(space))

    @staticmethod
    def _parameter(options: int = 0, low: float = 0, high: float = 0, log: bool = False, whole: bool = False) -> Any:
        from neps.space import HPOCategorical, HPOFloat, HPOInteger

        if options:
            return HPOCategorical(list(range(options)))
        return (HPOInteger if whole else HPOFloat)(low, high, log=log)

    def train(self) -> Iterator[int]:
        trial = self._optimizer.ask()
        yield self.rungs[-1]
        self._optimizer.tell(trial, self.measure(trial.config, self.rungs[-1]))


TOOLS: dict[str, type[Tool]] = {"syne_tune": SyneTune, "neps": NePS}


def ask(values: Values, step: int) -> float:
    """The loss, from the other end of the pipe."""
    plain = {name: each.item() if hasattr(each, "item") else each for name, each in values.items()}
    print(json.dumps([plain, step]), flush=True)
    loss: float = json.loads(sys.stdin.readline())
    return loss


def main() -> None:
    logging.disable(logging.WARNING)
    for line in sys.stdin:
        fields = json.loads(line)
        tool = TOOLS[sys.argv[1]](fields, ask)
        spend(tool.train, fields["slots"], fields["budget"])
        print("null", flush=True)


if __name__ == "__main__":
    main()
