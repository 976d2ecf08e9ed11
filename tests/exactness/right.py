"""Trainers that are right, each unusual in one way. None of them may be refused, nor called inexact."""

from __future__ import annotations

import math
import pickle
import random
import struct
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from small import Counting, Forgetful, Small


class NamedCache(Counting):
    """A cache that grows, and says that it does not matter."""

    name = "named-cache"
    caches: ClassVar = ("sines", "hits")

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.sines: dict[int, float] = {}
        self.hits = 0

    def push(self) -> float:
        place = self.count % 4
        self.hits += place in self.sines
        return self.sines.setdefault(place, math.sin(place))


class UnnamedCache(Counting):
    """As before, and says nothing."""

    name = "unnamed-cache"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.sines: dict[int, float] = {}

    def push(self) -> float:
        return self.sines.setdefault(self.count % 4, math.sin(self.count % 4))


class CachedFunction(Counting):
    name = "cached-function"

    def push(self) -> float:
        return sine(self.count % 4)


@cache
def sine(place: int) -> float:
    return math.sin(place)


class Arrays(Small):
    """All of its state is arrays of NumPy, of several kinds."""

    name = "arrays"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.velocity = np.zeros((2, 3))
        self.steps, self.mask = np.int64(0), np.array([True, False])

    def push(self) -> float:
        self.velocity = 0.5 * self.velocity + np.random.rand(2, 3)
        self.steps, self.mask = self.steps + 1, ~self.mask
        return float(self.velocity.mean() * (1 + self.mask[0]))

    def more(self) -> dict[str, Any]:
        return {"velocity": self.velocity.T, "mask": self.mask, "steps": np.array(self.steps)}

    def take(self, state: dict[str, Any]) -> None:
        self.velocity, self.mask = state["velocity"].T.copy(), state["mask"].copy()
        self.steps = np.int64(state["steps"])


class Packed(Counting):
    """Its state is bytes."""

    name = "packed"

    def push(self) -> float:
        return 1.0 / (1 + self.count)

    def state_dict(self) -> dict[str, Any]:
        return {"all": struct.pack("<dq", self.weight, self.count)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight, self.count = struct.unpack("<dq", state["all"])


class Pickled(Counting):
    """Its state is a pickle of nested things, with names that stand in it more than once."""

    name = "pickled"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.history: list[tuple[str, float]] = []

    def push(self) -> float:
        self.history.append(("weight", self.weight))
        return self.history[len(self.history) // 2][1]

    def more(self) -> dict[str, Any]:
        return {"all": pickle.dumps({"history": self.history, "weight": (self.weight, self.count)})}

    def take(self, state: dict[str, Any]) -> None:
        found = pickle.loads(state["all"])
        self.history, (self.weight, self.count) = found["history"], found["weight"]


class Nested(Counting):
    """Dicts with numbers as keys, tuples, nothing, and numbers that are none."""

    name = "nested"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.by_layer: dict[int, tuple[float, Any]] = {1: (0.0, None), 2: (math.nan, [math.inf, ()])}

    def push(self) -> float:
        self.by_layer[1] = (self.weight, None)
        return self.by_layer[1][0]

    def more(self) -> dict[str, Any]:
        return {"count": self.count, "layers": self.by_layer, "empty": {}, "none": None}

    def take(self, state: dict[str, Any]) -> None:
        super().take(state)
        self.by_layer = dict(state["layers"])


class Rollout(Small):
    """Reinforcement learning without an environment: buffer, target and running mean are all saved."""

    name = "rollout"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.buffer: list[float] = []
        self.target, self.mean = 0.0, 0.0

    def push(self) -> float:
        self.buffer = [*self.buffer, self.weight + random.gauss(0.0, 0.1)][-8:]
        drawn = random.choice(self.buffer)
        self.mean += (drawn - self.mean) / 10
        if len(self.buffer) % 3 == 0:
            self.target = self.weight
        return drawn - self.mean + self.target

    def more(self) -> dict[str, Any]:
        return {"buffer": self.buffer, "target": self.target, "mean": self.mean}

    def take(self, state: dict[str, Any]) -> None:
        self.buffer, self.target, self.mean = list(state["buffer"]), state["target"], state["mean"]


class BuiltLate(Counting):
    """It builds its tools at the first use, as compiling does."""

    name = "built-late"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.compiled: Any = None

    def push(self) -> float:
        if self.compiled is None:
            self.compiled = lambda count: 1.0 / (1 + count)
        return self.compiled(self.count)

    @cached_property
    def scale(self) -> float:
        return 3.0


class Dated(Small):
    """It keeps the time of its start, for its prints."""

    name = "dated"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.started_at = time.time()
        self.seconds = 0.0

    def train(self) -> None:
        begun = time.perf_counter()
        super().train()
        self.seconds += time.perf_counter() - begun


class Chatty(Forgetful):
    """A counter that is for printing only, and is not saved."""

    name = "chatty"

    def train(self) -> None:
        super().train()
        print(f"step {self.count} of this process")


class Table(Counting):
    """A large constant."""

    name = "table"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.data = np.arange(100_000, dtype=np.float64)
        self.rows = [float(number) for number in range(5_000)]

    def push(self) -> float:
        return float(self.data[self.count] + self.rows[self.count]) / 100


class Slotted:
    __slots__ = ("__weakref__", "value")

    def __init__(self, value: float) -> None:
        self.value = value


class Slots(Small):
    """Its momentum is behind a property, in an object without a `__dict__`."""

    name = "slots"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.inner = Slotted(0.0)

    @property
    def velocity(self) -> float:
        return self.inner.value

    def push(self) -> float:
        self.inner.value = 0.9 * self.velocity + math.cos(self.weight)
        return self.velocity

    def more(self) -> dict[str, Any]:
        return {"velocity": self.velocity}

    def take(self, state: dict[str, Any]) -> None:
        self.inner = Slotted(state["velocity"])


class Weak(Small):
    """Refers to its parts weakly, and to itself."""

    name = "weak"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.part = Slotted(0.5)
        self.me, self.reference = self, weakref.ref(self.part)

    def push(self) -> float:
        part = self.reference()
        return part.value if part is not None else 0.0


class Pool(Small):
    """Threads that wait for work, and one after the other get it."""

    name = "pool"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.pool: ThreadPoolExecutor | None = None

    def push(self) -> float:
        self.pool = self.pool or ThreadPoolExecutor(2)
        return sum(self.pool.map(math.cos, [self.weight, 2 * self.weight]))

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()


class Generators(Small):
    """A generator of each library, all saved."""

    name = "generators"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.numpy, self.python = np.random.default_rng(self.seed), random.Random(self.seed)
        self.torch = torch.Generator().manual_seed(self.seed)

    def push(self) -> float:
        return float(self.numpy.random()) + self.python.random() + torch.rand(1, generator=self.torch).item()

    def more(self) -> dict[str, Any]:
        python = self.python.getstate()
        return {"numpy": str(self.numpy.bit_generator.state), "python": python, "torch": self.torch.get_state()}

    def take(self, state: dict[str, Any]) -> None:
        self.numpy.bit_generator.state = eval(state["numpy"])
        self.python.setstate(state["python"])
        self.torch.set_state(state["torch"])


class OwnSeed(Small):
    """Measures with noise that is drawn from the same seed each time."""

    name = "own-seed"

    def push(self) -> float:
        return random.random()

    def evaluate(self) -> dict[str, float]:
        return {"value": self.weight + np.random.default_rng(11).random()}


class DrawsGlobally(Small):
    """Measures with the global generators, which the runner puts back; and with more metrics than one."""

    name = "draws-globally"

    def push(self) -> float:
        return random.random() + np.random.rand() + torch.rand(1).item()

    def evaluate(self) -> dict[str, float]:
        return {"value": self.weight, "noise": random.random(), "none": math.nan, "square": self.weight**2}


class SeedsInLoad(Small):
    """Seeds the global generators when it is loaded; the runner puts them where they were after that."""

    name = "seeds-in-load"

    def push(self) -> float:
        return np.random.rand()

    def take(self, state: dict[str, Any]) -> None:
        np.random.seed(0)
        random.seed(0)


class DrawsInSetup(Small):
    """Draws where a new value comes into force, and saves the draw."""

    name = "draws-in-setup"
    noise = 0.0
    kept = ("noise",)

    def setup(self, hp: dict[str, Any]) -> None:
        if hp.get("lr", self.lr) != self.lr:
            self.noise = random.random()
        super().setup(hp)

    def push(self) -> float:
        return self.noise


class Order(Counting):
    """Its data lies in an order that is a function of seed and epoch."""

    name = "order"

    def push(self) -> float:
        epoch, place = divmod(self.count, 5)
        return float(np.random.default_rng((self.seed, epoch)).permutation(5)[place])


@dataclass
class Config:
    lr: float = 0.0
    wd: float = 0.0
    layers: tuple[int, ...] = (1, 2)


class Configured(Counting):
    """An object holds its hyper-parameters, and is saved with the rest."""

    name = "configured"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.config = Config()

    def setup(self, hp: dict[str, Any]) -> None:
        self.config = Config(**(asdict(self.config) | hp))
        self.lr, self.wd = self.config.lr, self.config.wd

    def more(self) -> dict[str, Any]:
        return {"count": self.count, "config": asdict(self.config)}

    def take(self, state: dict[str, Any]) -> None:
        super().take(state)
        self.config = Config(**state["config"])


class LiveReferences(Counting):
    """Its state holds the very lists that training changes, and a loaded state is used without a copy."""

    name = "live-references"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.history: list[float] = []
        self.velocity = torch.zeros(3)

    def push(self) -> float:
        self.history.append(self.weight)
        self.velocity.mul_(0.9).add_(self.weight)
        return self.history[len(self.history) // 2] + self.velocity.sum().item()

    def more(self) -> dict[str, Any]:
        return {"count": self.count, "history": self.history, "velocity": self.velocity}

    def take(self, state: dict[str, Any]) -> None:
        super().take(state)
        self.history, self.velocity = state["history"], state["velocity"]
