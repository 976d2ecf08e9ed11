"""What a trainer has beside its state is seen wherever it is kept, in bounded time, and nothing of its code is run."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from stagetree.runtime import attributes, suspects
from stagetree.runtime.attributes import differing, of_code, of_trainer


class Env:
    """A user's object, with another one in it."""

    def __init__(self) -> None:
        self.place, self.inner = 0, SimpleNamespace(count=0)
        self.history: list[dict[str, Any]] = [{"reward": 0.0}]

    @property
    def dangerous(self) -> int:
        raise AssertionError("a user's code was run")

    def __repr__(self) -> str:
        raise AssertionError("a user's code was run")

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a user's code was run")


class Counted(nn.Linear):
    """A module that counts in an attribute, which is in no state of torch's."""

    calls = 0


@dataclass(slots=True)
class Phase:
    step: int = 0


def counter() -> Callable[[], int]:
    count = 0

    def next() -> int:
        nonlocal count
        count += 1
        return count

    return next


def made() -> SimpleNamespace:
    torch.manual_seed(0)
    return SimpleNamespace(
        count=0,
        losses=[0.1],
        nested={"a": [np.zeros(3), {"b": 1}]},
        recent=deque([1, 2]),
        names={"x", "y"},
        chance=np.random.default_rng(0),
        dice=random.Random(0),
        generator=torch.Generator().manual_seed(0),
        env=Env(),
        envs=[Env(), Env()],
        next=counter(),
        net=Counted(2, 2),
        big=torch.zeros(2**21),
        data=np.zeros(2**21),
    )


CHANGES: list[tuple[str, Callable[[Any], object]]] = [
    ("self.count", lambda t: setattr(t, "count", 1)),
    ("self.losses", lambda t: t.losses.append(0.2)),
    ("self.nested", lambda t: t.nested["a"][1].update(b=2)),
    ("self.recent", lambda t: t.recent.rotate()),
    ("self.names", lambda t: t.names.add("z")),
    ("self.chance", lambda t: t.chance.normal()),
    ("self.dice", lambda t: t.dice.random()),
    ("self.generator", lambda t: torch.rand(1, generator=t.generator)),
    ("self.env.place", lambda t: setattr(t.env, "place", 1)),
    ("self.env.history", lambda t: t.env.history[0].update(reward=1.0)),
    ("self.envs", lambda t: setattr(t.envs[1], "place", 1)),
    ("self.next.count", lambda t: t.next()),
    ("self.net", lambda t: setattr(t.net, "calls", 1)),
    ("self.big", lambda t: t.big.add_(1)),
    ("self.data", lambda t: t.data.__iadd__(1)),
]


@pytest.mark.parametrize(("name", "change"), CHANGES, ids=[name for name, _ in CHANGES])
def test_what_changed_is_named(name: str, change: Callable[[Any], object]) -> None:
    trainer = made()
    before = of_trainer(trainer)
    assert differing(before, of_trainer(trainer)) == []
    change(trainer)
    assert differing(before, of_trainer(trainer)) == [name]


def test_equal_trainers_look_alike() -> None:
    assert differing(of_trainer(made()), of_trainer(made())) == []


def test_short_values_are_shown() -> None:
    seen = of_trainer(SimpleNamespace(count=3, text="x" * 1000, losses=[1, 2]))
    assert [seen[name].shown for name in ("self.count", "self.text", "self.losses")] == ["3", "", "2 items"]


def test_what_holds_itself_or_is_endless_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made()
    trainer.itself, trainer.loop = trainer, []
    trainer.loop.append(trainer.loop)
    trainer.many = list(range(10 * attributes.MOST_ITEMS))
    assert "self.many" in of_trainer(trainer)
    monkeypatch.setattr(attributes, "MOST_SECONDS", -1.0)
    assert of_trainer(trainer) == {}


def test_a_trainer_names_what_does_not_matter() -> None:
    class Trainer:
        caches = ("last", "SEEN")

    trainer, module = Trainer(), ModuleType("user")
    vars(trainer).update(last=1, count=1)
    vars(module).update(SEEN=1, COUNT=1, function=counter, Env=Env)
    assert list(of_trainer(trainer)) == ["self.count"]
    assert list(of_code(trainer, [module])) == ["COUNT (a global of user)"]


def test_attributes_of_classes_are_looked_at() -> None:
    module = ModuleType("user")
    kind = type("Model", (), {"__module__": "user", "made": 0, "method": lambda self: None})
    vars(module)["Model"] = kind
    before = of_code(object(), [module])
    kind.made = 1  # type: ignore[attr-defined]
    assert differing(before, of_code(object(), [module])) == ["Model.made (of the class)"]


class Drawing(Dataset[float]):
    """A data set with a generator of its own."""

    def __init__(self) -> None:
        self.rng, self.cache = np.random.default_rng(0), dict[int, float]()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        self.cache[index] = float(self.rng.normal())
        return self.cache[index]


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rng = torch.Generator().manual_seed(0)


def drawn(value: Any) -> None:
    """One sample of a loader's data set, however it is wrapped."""
    value.dataset[0]


LOADERS: list[tuple[str, Any, Callable[[Any], object]]] = [
    ("loader.dataset.rng", DataLoader(Drawing()), drawn),
    ("loader.dataset.dataset.rng", DataLoader(Subset(Drawing(), [1, 2])), drawn),
    ("loader.dataset.datasets[0].rng", DataLoader(ConcatDataset([Drawing(), Drawing()])), drawn),
    (
        "loader['train'].dataset.rng",
        {"train": DataLoader(Drawing()), "valid": DataLoader(Drawing())},
        lambda each: drawn(each["train"]),
    ),
    ("loader.0.rng", nn.Sequential(Noise()), lambda each: torch.rand(1, generator=each[0].rng)),
]


@pytest.mark.parametrize(("name", "loader", "draw"), LOADERS, ids=[name for name, *_ in LOADERS])
def test_a_generator_in_a_librarys_object_is_named(name: str, loader: Any, draw: Callable[[Any], object]) -> None:
    """What else is in there, such as what a data set keeps, is not: it need not matter."""
    module = ModuleType("user")
    vars(module).update(loader=loader)
    before = of_code(object(), [module])
    assert differing(before, of_code(object(), [module])) == []
    draw(loader)
    assert differing(before, of_code(object(), [module])) == [f"{name} (a global of user)"]


def test_a_generator_is_named_once() -> None:
    data = Drawing()
    trainer = SimpleNamespace(data=data, loader=DataLoader(data), again=DataLoader(data))
    before = of_trainer(trainer)
    data[0]
    assert differing(before, of_trainer(trainer)) == ["self.data.rng", "self.data.cache"]


@pytest.mark.parametrize("name", ["running", "streamed", "unread", "variables"])
def test_an_attribute_of_a_user_may_have_the_name_of_what_scripts_are_asked(name: str) -> None:
    """`self.running = 0.0` ended `check` with "'float' object is not callable"."""
    trainer = made()
    setattr(trainer, name, 0.5)
    assert f"self.{name}" in of_trainer(trainer)
    assert of_code(trainer, []) == {}
    assert suspects.modes(trainer).keys() == suspects.modes(made()).keys()


def test_what_has_slots_counts_or_is_in_a_set_is_seen() -> None:
    """A phase of the training in such a global was left to the next trial of the process, without a mark."""
    trainer = SimpleNamespace(phase=Phase(), phases=[Phase()], number=count(), pairs={(1, 2)}, data=bytearray(b"a"))
    before = of_trainer(trainer)
    trainer.phase.step, trainer.phases[0].step = 7, 7
    next(trainer.number)
    trainer.pairs.add((3, 4))
    trainer.data.append(1)
    expected = ["self.phase.step", "self.phases", "self.number", "self.pairs", "self.data"]
    assert differing(before, of_trainer(trainer)) == expected


def test_what_a_path_has_looked_up_is_no_change() -> None:
    trainer = SimpleNamespace(folder=Path("a") / "b")
    before = of_trainer(trainer)
    assert str(trainer.folder) and hash(trainer.folder)
    assert differing(before, of_trainer(trainer)) == []
