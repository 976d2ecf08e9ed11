"""Values beside a trainer's state are seen in any place, in bounded time, and none of its code is run."""

from __future__ import annotations

import array
import ctypes
import decimal
import functools
import itertools
import queue
import random
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from stagetree.runtime.exactness import digests
from stagetree.runtime.exactness import held_values as holdings_module
from stagetree.runtime.exactness.digests import MAX_VALUES, Digest
from stagetree.runtime.exactness.held_values import differing_names, digest_held_values
from stagetree.runtime.scripts.interface import OpenScript

Pair = namedtuple("Pair", ["a", "b"])
Change = Callable[[Any], object]


class Plain:
    """A user's object."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


@dataclass(slots=True)
class Phase:
    step: int = 0


class Private:
    __slots__ = ("__hidden", "shown")

    def __init__(self) -> None:
        self.__hidden = 0

    def move(self) -> None:
        self.__hidden += 1


class Log(list[Any]):
    """A list with an attribute."""

    def __init__(self, *values: Any) -> None:
        super().__init__(values)
        self.name = "losses"


class Meter(float):
    pass


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)
        self.register_buffer("total", torch.zeros(1), persistent=False)


def counter() -> Callable[[], int]:
    count = 0

    def next_number() -> int:
        nonlocal count
        count += 1
        return count

    return next_number


def numbers() -> Iterator[int]:
    for number in range(10):
        yield number % 1


def delegating() -> Iterator[int]:
    yield from itertools.repeat(0, 10)


def remembering(value: int, seen: list[int] | None = None, kept: list[int] = []) -> int:  # noqa: B006
    kept.append(value)
    return len(kept)


def nest(depth: int, value: Any) -> Any:
    for _ in range(depth):
        value = {"inner": value}
    return value


def innermost(value: Any) -> Any:
    while isinstance(value.get("inner"), dict):
        value = value["inner"]
    return value


def scheduler() -> Any:
    return torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.zeros(1)], lr=0.1), 5)


def with_gradient() -> torch.Tensor:
    weight = torch.zeros(2, requires_grad=True)
    weight.grad = torch.zeros(2)
    return weight


KINDS: dict[str, tuple[Callable[[], Any], Change]] = {
    "number": (lambda: 0, lambda h: setattr(h, "it", 1)),
    "type of a number": (lambda: 1, lambda h: setattr(h, "it", True)),
    "negative zero": (lambda: 0.0, lambda h: setattr(h, "it", -0.0)),
    "text": (lambda: "a", lambda h: setattr(h, "it", "b")),
    "subclass of float": (lambda: Meter(0.5), lambda h: setattr(h, "it", Meter(0.25))),
    "decimal": (lambda: decimal.Decimal(1), lambda h: setattr(h, "it", decimal.Decimal(2))),
    "range": (lambda: range(3), lambda h: setattr(h, "it", range(4))),
    "slice": (lambda: slice(0, 3), lambda h: setattr(h, "it", slice(0, 4))),
    "path": (lambda: Path("a"), lambda h: setattr(h, "it", Path("b"))),
    "list": (lambda: [0.1], lambda h: h.it.append(0.2)),
    "list with attributes": (lambda: Log(1.0), lambda h: h.it.append(0.2)),
    "attribute of a list": (lambda: Log(1.0), lambda h: setattr(h.it, "name", "other")),
    "order of a dict": (lambda: {"a": 1, "b": 2}, lambda h: h.it.update(a=h.it.pop("a"))),
    "default dict": (lambda: defaultdict(int), lambda h: h.it["a"]),
    "ordered dict": (lambda: OrderedDict(a=1, b=2), lambda h: h.it.move_to_end("a")),
    "set": (lambda: {"x", "y"}, lambda h: h.it.add("z")),
    "deque": (lambda: deque([1, 2]), lambda h: h.it.rotate()),
    "Counter": (lambda: Counter("ab"), lambda h: h.it.update("a")),
    "Counter that became a dict": (lambda: Counter("ab"), lambda h: setattr(h, "it", dict(h.it))),
    "namedtuple": (lambda: Pair(1, [2]), lambda h: h.it.b.append(3)),
    "namedtuple that became a tuple": (lambda: Pair(1, 2), lambda h: setattr(h, "it", tuple(h.it))),
    "bytearray": (lambda: bytearray(b"a"), lambda h: h.it.append(1)),
    "array of the library": (lambda: array.array("d", [1.0]), lambda h: h.it.append(2.0)),
    "number of C": (lambda: ctypes.c_int(0), lambda h: setattr(h.it, "value", 1)),
    "array": (lambda: np.zeros(3), lambda h: h.it.__setitem__(1, 1.0)),
    "view of an array": (lambda: np.zeros((4, 4))[::2, 1:], lambda h: h.it.__setitem__((1, 1), 1.0)),
    "object array": (lambda: np.array([1.0, None, [1]], dtype=object), lambda h: h.it[2].append(2)),
    "MaskedArray": (lambda: np.ma.array([1.0, 2.0], mask=[0, 0]), lambda h: h.it.__setitem__(0, np.ma.masked)),
    "MaskedArray that became an array": (lambda: np.ma.array([1.0]), lambda h: setattr(h, "it", np.asarray(h.it))),
    "numpy scalar": (lambda: np.float32(0.5), lambda h: setattr(h, "it", np.float32(0.25))),
    "tensor": (lambda: torch.zeros(3), lambda h: h.it.add_(1)),
    "kind of a tensor": (lambda: torch.zeros(3), lambda h: setattr(h, "it", h.it.double())),
    "bfloat16": (lambda: torch.zeros(3, dtype=torch.bfloat16), lambda h: h.it.add_(1)),
    "complex tensor": (lambda: torch.zeros(3, dtype=torch.complex64), lambda h: h.it.add_(1j)),
    "gradient": (with_gradient, lambda h: h.it.grad.add_(1)),
    "no gradient": (with_gradient, lambda h: setattr(h.it, "grad", None)),
    "attribute of a tensor": (with_gradient, lambda h: setattr(h.it, "ema", 1.0)),
    "whether a tensor is trained": (lambda: nn.Linear(1, 1), lambda h: h.it.weight.requires_grad_(False)),
    "module": (lambda: nn.Linear(2, 2, bias=False), lambda h: setattr(h.it, "calls", 1)),
    "mode of a module": (lambda: nn.Sequential(nn.Dropout()), lambda h: h.it.eval()),
    "buffer that is not persistent": (Buffered, lambda h: h.it.total.add_(1)),
    "weight of a module": (lambda: nn.ModuleList([nn.Linear(2, 2)]), lambda h: h.it[0].bias.data.add_(1)),
    "attribute of an optimizer": (lambda: torch.optim.SGD([torch.zeros(1)], lr=0.1), lambda h: setattr(h.it, "n", 1)),
    "rate of an optimizer": (
        lambda: torch.optim.SGD([torch.zeros(1)], lr=0.1),
        lambda h: h.it.param_groups[0].update(lr=0.2),
    ),
    "scheduler": (scheduler, lambda h: setattr(h.it, "last_epoch", 4)),
    "attribute of a scheduler": (scheduler, lambda h: setattr(h.it, "skipped", [1])),
    "scaler": (lambda: torch.amp.GradScaler("cpu"), lambda h: h.it.set_growth_interval(7)),
    "attribute of a scaler": (lambda: torch.amp.GradScaler("cpu"), lambda h: setattr(h.it, "skipped", 1)),
    "object": (lambda: Plain(inner=Plain(count=0)), lambda h: setattr(h.it.inner, "count", 1)),
    "slots": (Phase, lambda h: setattr(h.it, "step", 7)),
    "private slots": (Private, lambda h: h.it.move()),
    "slot that is set late": (Private, lambda h: setattr(h.it, "shown", 1)),
    "objects in a set": (lambda: {(1, 2)}, lambda h: h.it.add((3, 4))),
    "nested 8 deep": (lambda: nest(8, {"p": 1.0}), lambda h: innermost(h.it).update(p=0.3)),
    "closure": (counter, lambda h: h.it()),
    "default of a function": (lambda: remembering, lambda h: h.it(1)),
    "attribute of a function": (lambda: counter(), lambda h: setattr(h.it, "calls", 1)),
    "partial": (lambda: functools.partial(remembering, 1, seen=[1]), lambda h: h.it.keywords["seen"].append(2)),
    "method of an object": (lambda: Plain(count=0).__init__, lambda h: setattr(h.it.__self__, "count", 1)),
    "method of a library's object": (lambda: random.Random(0).random, lambda h: h.it()),
    "next of an iterator": (lambda: iter([1, 2]).__next__, lambda h: h.it()),
    "generator": (numbers, None),
    "generator that delegates": (delegating, None),
    "list iterator": (lambda: iter([1, 1, 1]), None),
    "tuple iterator": (lambda: iter((1, 1, 1)), None),
    "dict iterator": (lambda: iter({"a": 1, "b": 1}), None),
    "items of a dict": (lambda: iter({"a": 1, "b": 1}.items()), None),
    "set iterator": (lambda: iter({1, 2}), None),
    "text iterator": (lambda: iter("aaa"), None),
    "deque iterator": (lambda: iter(deque([1, 1])), None),
    "range iterator": (lambda: iter(range(3)), None),
    "reversed": (lambda: reversed([1, 1, 1]), None),
    "enumerate": (lambda: enumerate([0, 0, 0]), None),
    "zip": (lambda: zip([0, 0, 0], [1, 1, 1], strict=False), None),
    "map": (lambda: map(abs, [0, 0, 0]), None),
    "filter": (lambda: filter(None, [1, 1, 1]), None),
    "count": (itertools.count, None),
    "cycle": (lambda: itertools.cycle([0.2, 0.7]), None),
    "chain": (lambda: itertools.chain([1, 1], [1, 1]), None),
    "islice": (lambda: itertools.islice(itertools.count(), 10), None),
    "product": (lambda: itertools.product([0, 0], [0, 0]), None),
    "permutations": (lambda: itertools.permutations([0, 0]), None),
    "repeat": (lambda: itertools.repeat(0, 5), None),
    "tee": (lambda: itertools.tee([0, 0, 0])[0], None),
    "queue": (queue.Queue, lambda h: h.it.put(1)),
    "python generator": (lambda: random.Random(0), lambda h: h.it.random()),
    "numpy generator": (lambda: np.random.default_rng(0), lambda h: h.it.normal()),
    "numpy generator of another kind": (lambda: np.random.Generator(np.random.MT19937(0)), lambda h: h.it.normal()),
    "bits of numpy": (lambda: np.random.PCG64(0), lambda h: h.it.random_raw()),
    "old numpy generator": (lambda: np.random.RandomState(0), lambda h: h.it.normal()),
    "torch generator": (lambda: torch.Generator().manual_seed(0), lambda h: torch.rand(1, generator=h.it)),
}


def move(change: Change | None, holder: Any) -> None:
    if change is None:
        next(holder.it)
    else:
        change(holder)


@pytest.fixture(autouse=True)
def unchanged_defaults() -> Iterator[None]:
    yield
    assert remembering.__defaults__ is not None
    remembering.__defaults__[-1].clear()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["attribute", "global", "in a list", "in an object"])
def test_a_change_is_detected_and_reading_changes_nothing(kind: str, place: str) -> None:
    make, change = KINDS[kind]
    holder = SimpleNamespace(it=make())
    trainer, module = SimpleNamespace(), ModuleType("user")

    def look() -> dict[str, str]:
        match place:
            case "attribute":
                trainer.it = holder.it
            case "global":
                vars(module)["it"] = holder.it
            case "in a list":
                trainer.all = [0, holder.it]
            case "in an object":
                trainer.box = Plain(inner=[holder.it])
        return digest_held_values(trainer, [module])

    before = look()
    assert differing_names(before, look()) == [], "a look moved it"
    move(change, holder)
    other = [name for name in differing_names(before, look()) if not name.startswith("self.held")]
    assert other and all("it" in name or "all" in name or "box" in name for name in other), other


@pytest.mark.parametrize("kind", KINDS)
def test_equally_made_objects_have_equal_digests(kind: str) -> None:
    """As in two processes: nothing depends on where an object lies."""
    make, _ = KINDS[kind]
    one, other = (SimpleNamespace(it=make(), more=[make(), make()]) for _ in range(2))
    torch.manual_seed(0)
    if not isinstance(one.it, nn.Module):  # whose weights are drawn
        assert differing_names(digest_held_values(one, []), digest_held_values(other, [])) == []


def test_several_iterators_are_distinguished() -> None:
    """Temporary objects of the first comparison may have the same addresses as objects of the second."""
    one = SimpleNamespace(it=[itertools.count(1), itertools.count(2), iter([1, 2]), iter([3, 4])])
    other = SimpleNamespace(it=[itertools.count(1), itertools.count(5), iter([1, 2]), iter([3, 9])])
    assert differing_names(digest_held_values(one, []), digest_held_values(other, [])) == ["self.it"]
    swapped = SimpleNamespace(it=[itertools.count(1), itertools.count(1)])
    assert differing_names(digest_held_values(SimpleNamespace(it=one.it[:2]), []), digest_held_values(swapped, [])) == [
        "self.it"
    ]


# ------------------------------------------------------------------------------------------------ names


def test_a_difference_is_named_by_the_users_attribute() -> None:
    trainer = SimpleNamespace(opt=torch.optim.SGD([torch.zeros(1)], lr=0.1), env=Plain(place=0, seen=[]), count=0)
    before = digest_held_values(trainer, [])
    trainer.opt.num_updates, trainer.env.place, trainer.count = 1, 1, 1
    assert differing_names(before, digest_held_values(trainer, [])) == [
        "self.env.place",
        "self.count",
        "self.opt.num_updates",
    ]


class Script(OpenScript):
    """A script whose `main` is being run."""

    def __init__(self) -> None:
        self.main: dict[str, Any] = {"scaler": torch.amp.GradScaler("cpu"), "bad": 0}

    def unread(self) -> list[str]:
        return []

    def variables(self) -> dict[str, Any]:
        return self.main

    def streamed(self) -> list[Any]:
        return []

    def running(self) -> dict[str, dict[str, Any]]:
        return {"main": self.main}


def test_variables_of_a_scripts_functions_are_read() -> None:
    script = Script()
    before = digest_held_values(script, [])
    script.main["scaler"].skipped, script.main["bad"] = 1, 1
    names = ["bad (a variable of main())", "scaler.skipped (a variable of main())"]
    assert sorted(differing_names(before, digest_held_values(script, []))) == names


def test_globals_and_classes_of_user_files_are_read_and_code_is_not() -> None:
    module = ModuleType("user")
    kind: Any = type("Model", (), {"__module__": "user", "made": 0, "method": lambda self: None})
    vars(module).update(Model=kind, STEPS=0, np=np, counter=counter, SGD=torch.optim.SGD)
    before = digest_held_values(object.__new__(Plain), [module])
    assert list(before) == ["STEPS (a global of user)", "Model.made (of the class)"]
    kind.made, module.STEPS = 1, 1  # type: ignore[attr-defined]
    assert differing_names(before, digest_held_values(object.__new__(Plain), [module])) == list(before)
    vars(module).update(BOUND=Plain(n=0).__init__)
    assert "BOUND (a global of user)" in digest_held_values(object.__new__(Plain), [module])


def test_state_of_functions_of_a_file_is_read() -> None:
    module = ModuleType("user")
    vars(module).update(remembering=remembering, counter=counter)
    before = digest_held_values(object.__new__(Plain), [module])
    remembering(1)
    assert differing_names(before, digest_held_values(object.__new__(Plain), [module])) == [
        "remembering (a global of user)"
    ]
    before = digest_held_values(object.__new__(Plain), [module])
    remembering.calls = 1  # type: ignore[attr-defined]
    assert differing_names(before, digest_held_values(object.__new__(Plain), [module])) == [
        "remembering (a global of user)"
    ]
    del remembering.calls  # type: ignore[attr-defined]


class Drawing(Dataset[float]):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        return float(self.rng.normal())


def test_a_generator_in_a_librarys_object_is_read() -> None:
    trainer = SimpleNamespace(loader=DataLoader(ConcatDataset([Drawing(), Drawing()])))
    before = digest_held_values(trainer, [])
    trainer.loader.dataset.datasets[1][0]
    assert differing_names(before, digest_held_values(trainer, []))[0] == "self.loader.dataset"


# ------------------------------------------------------------------------------------------------ left out


def test_a_trainer_may_exclude_attributes() -> None:
    class Base:
        caches = "shelf"

    class Trainer(Base):
        caches = ("last", "SEEN")  # type: ignore[assignment]

    trainer, module = Trainer(), ModuleType("user")
    vars(trainer).update(last=1, count=1, shelf=[1], env=Plain(last=1, place=1))
    vars(module).update(SEEN=1, COUNT=1)
    assert list(digest_held_values(trainer, [module])) == ["self.count", "self.env.place", "COUNT (a global of user)"]


class Model:
    """Its state has the weights, and a copy of something."""

    def __init__(self) -> None:
        self.net, self.extra, self.n = nn.Linear(64, 64), torch.zeros(8), 0

    def state_dict(self) -> dict[str, Any]:
        return {"net": self.net.state_dict(), "more": [self.extra.clone()]}


def test_only_gradients_of_tensors_in_the_state_are_read() -> None:
    trainer = Model()
    before = digest_held_values(trainer, [])
    trainer.net.weight.data.add_(1)
    assert differing_names(before, digest_held_values(trainer, [])) == [], "that is compared as state"
    trainer.net.weight.grad = torch.ones(64, 64)
    assert differing_names(before, digest_held_values(trainer, [])) == ["self.net._parameters"]
    before = digest_held_values(trainer, [])
    trainer.net.weight.grad.add_(1)
    trainer.extra.add_(1)
    assert differing_names(before, digest_held_values(trainer, [])) == ["self.net._parameters", "self.extra"]


def test_generators_are_read_when_the_state_has_copies() -> None:
    """Objects that are made to look may lie where a copy lay that the state had."""
    trainer = SimpleNamespace(rngs=[torch.Generator().manual_seed(n) for n in range(8)])
    trainer.state_dict = lambda: {str(n): torch.zeros(5056, dtype=torch.uint8) for n in range(64)}
    before = digest_held_values(trainer, [])
    for each in trainer.rngs:
        torch.rand(1, generator=each)
    assert differing_names(before, digest_held_values(trainer, [])) == ["self.rngs"]


def test_reading_may_be_limited_to_values_of_files() -> None:
    module = ModuleType("user")
    vars(module).update(COUNT=1)

    class Trainer:
        def state_dict(self) -> dict[str, Any]:
            raise AssertionError("the state was not requested")

    assert list(digest_held_values(Trainer(), [module], only_modules=True)) == ["COUNT (a global of user)"]


# ------------------------------------------------------------------------------------------------ bounds


def test_cyclic_values_are_read_once() -> None:
    trainer = SimpleNamespace(loop=[], chain=None)
    trainer.itself = trainer
    trainer.loop.append(trainer.loop)
    for _ in range(10_000):
        trainer.chain = [trainer.chain]
    assert {"self.itself.loop", "self.loop", "self.chain"} <= {*digest_held_values(trainer, [])}


FEW = MAX_VALUES // 100
FAR = 2 * FEW


@pytest.mark.parametrize(
    "huge",
    [
        lambda last: [*range(FAR), last],
        lambda last: {**dict.fromkeys(range(FAR)), FAR: last},
        lambda last: {*range(FAR), FAR + last},
        lambda last: [*([n] for n in range(FAR)), [last]],
        lambda last: {*((n,) for n in range(FAR)), (FAR, last)},
        lambda last: deque([*range(FAR), last]),
        lambda last: np.array([*range(5 * FAR), last], dtype=object),
        lambda last: itertools.chain([*range(FAR), last]),
        lambda last: iter([*range(FAR), last]),
    ],
)
def test_a_bounded_number_of_values_is_read(huge: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of them is never reached."""
    monkeypatch.setattr(digests, "MAX_VALUES", FEW)
    assert Digest().compute(huge(1)) == Digest().compute(huge(2))


def test_a_sample_of_a_large_array_is_read() -> None:
    large = np.zeros(2**21)
    before = Digest().compute(large), Digest().compute(torch.from_numpy(large))
    large[1] = 1.0
    assert before == (Digest().compute(large), Digest().compute(torch.from_numpy(large)))
    large += 1.0
    assert Digest().compute(large) != before[0] and Digest().compute(torch.from_numpy(large)) != before[1]


def test_reading_times_out_within_a_value() -> None:
    most = MAX_VALUES // 2
    assert Digest(ends=0.0).compute(list(range(most))) == Digest(ends=0.0).compute([*range(most - 1), -1])


def test_the_length_of_a_huge_value_counts() -> None:
    trainer = SimpleNamespace(it=list(range(10 * MAX_VALUES)))
    before = digest_held_values(trainer, [])
    trainer.it.append(0)
    assert differing_names(before, digest_held_values(trainer, [])) == ["self.it"]


def test_reading_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings_module, "MAX_SECONDS", -1.0)
    assert digest_held_values(SimpleNamespace(it=1), []) == {}


# ------------------------------------------------------------------------------------------------ no code of the user's


def never(self: Any, *_: Any) -> Any:
    raise AssertionError("a user's code was run")


class Guarded:
    """Every call of it fails the test."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def dangerous(self) -> int:
        raise AssertionError("a user's code was run")

    __repr__ = __len__ = __iter__ = __bool__ = __getattr__ = __reduce__ = __reduce_ex__ = __next__ = never
    __eq__ = never
    __hash__ = None  # type: ignore[assignment]


class GuardedDict(dict[str, int]):
    __iter__ = items = keys = values = __len__ = never  # type: ignore[assignment]


class GuardedList(list[int]):
    __iter__ = __len__ = __getitem__ = never  # type: ignore[assignment]


class GuardedSet(set[int]):
    __iter__ = __len__ = never  # type: ignore[assignment]


class GuardedCount(enumerate):  # type: ignore[type-arg]
    __reduce__ = __next__ = never  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (Guarded, lambda each: setattr(each, "count", 1)),
        (lambda: GuardedDict(a=1), lambda each: dict.update(each, a=2)),
        (lambda: GuardedList([1]), lambda each: list.append(each, 2)),
        (lambda: GuardedSet([1]), lambda each: set.add(each, 2)),
        (lambda: GuardedCount([1, 2]), enumerate.__next__),
    ],
)
def test_no_code_of_the_users_is_run(make: Callable[[], Any], change: Change) -> None:
    trainer = SimpleNamespace(it=make(), all=[make()])
    before = digest_held_values(trainer, [])
    change(trainer.it)
    change(trainer.all[0])
    assert [name.partition(".c")[0] for name in differing_names(before, digest_held_values(trainer, []))] == [
        "self.it",
        "self.all",
    ]


def test_an_error_of_state_dict_is_raised_at_the_save() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.count = 0

        def state_dict(self) -> dict[str, Any]:
            raise RuntimeError("not yet")

    assert "self.count" in digest_held_values(Trainer(), [])


@pytest.mark.parametrize("name", ["running", "streamed", "unread", "variables"])
def test_user_attributes_may_have_names_of_the_script_protocol(name: str) -> None:
    """`self.running = 0.0` ended `check` with "'float' object is not callable"."""
    trainer = SimpleNamespace(**{name: 0.5})
    assert list(digest_held_values(trainer, [])) == [f"self.{name}"]


def test_cached_values_of_a_path_are_no_change() -> None:
    trainer = SimpleNamespace(folder=Path("a") / "b")
    before = digest_held_values(trainer, [])
    assert str(trainer.folder) and hash(trainer.folder)
    assert differing_names(before, digest_held_values(trainer, [])) == []
