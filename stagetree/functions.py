"""Trainers without a class: a script that owns its loop, or three functions.

A script calls `attach`, and loops over the steps that it gets:

run = stagetree.attach("gpt", width=64)
model = GPT(run.args["width"]).to(run.device)
optimizer = torch.optim.AdamW(model.parameters())
run.state(save=..., load=..., evaluate=...)
for step, hp in run.steps():
    ...

Three functions are for models that fit into a notebook's cell:

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

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, overload, runtime_checkable

from greenlet import getcurrent, greenlet

from stagetree.sequences import Sequence, parse
from stagetree.trainer import Trainer
from stagetree.trainer.base import MetricSums

if TYPE_CHECKING:
    from stagetree.trainer.mixed_streams import MixedStream
    from stagetree.trainer.streaming import Resumable, Stream

State = dict[str, Any]


class FunctionTrainer(Trainer):
    """A trainer of three functions: `build` makes a state, `step` trains it by one step, `measure` evaluates it.

    Checkpoints save everything that `build` returns: models and optimizers by their `state_dict`, tensors and plain
    values as they are. Names that begin with `_` are left out: they are for constants, such as data.
    """

    build: ClassVar[Callable[..., State]]
    """`build(seed, device, **trainer_args)`: the objects to train, by name."""

    step: ClassVar[Callable[[State, dict[str, Any]], None]]
    """`step(state, hp)`: one step with the current hyper-parameters."""

    measure: ClassVar[Callable[[State], dict[str, float]]]
    """`measure(state)`: value by metric name. It must not change the state."""

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
        for name in [name for name in self.state if name not in state and not name.startswith("_")]:
            del self.state[name]  # created by a later step, or by another trial
        for name, value in state.items():
            if name in self.state and hasattr(self.state[name], "load_state_dict"):
                self.state[name].load_state_dict(value)
            else:
                self.state[name] = _copied(value, self.device)


def function_trainer(
    name: str,
    build: Callable[..., State],
    step: Callable[[State, dict[str, Any]], None],
    measure: Callable[[State], dict[str, float]],
) -> type[FunctionTrainer]:
    """Make a trainer of three functions; see `FunctionTrainer` for its arguments."""
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
    """A copy, since the same state may be loaded again."""
    if hasattr(value, "clone"):
        return value.clone().to(device)
    if isinstance(value, dict):
        return {key: _copied(item, device) for key, item in value.items()}
    return [_copied(item, device) for item in value] if isinstance(value, list) else value


# ------------------------------------------------------------------------------------------ a script that owns its loop


class Run:
    """A script's part in a study: its arguments, and the steps to train.

    args: `trainer_args` of the study file over the arguments of `attach`. seed: the study's. device: where to train, as
    torch writes it. streamed: the data of its streams.
    """

    def __init__(self, args: Mapping[str, Any], seed: int, device: str) -> None:
        self.args, self.seed, self.device = dict(args), seed, device
        self.calls: dict[str, Callable[..., Any]] = {}
        self._streams: list[Stream | MixedStream] = []
        self.streamed: list[Any] = []

    def state(
        self, *, save: Callable[[], Any], load: Callable[[Any], None], evaluate: Callable[[], Mapping[str, float]]
    ) -> None:
        """Set how the whole state is saved, loaded and evaluated. Each may be called between any two steps, or never.

        save: returns everything that steps read and change, as `Trainer.state_dict` does: weights, optimizer, the
        position in the data. The global generators are saved separately. load: restores a result of `save`. evaluate:
        returns values by metric name, and must not change the state.
        """

        def saved() -> Any:
            places = [stream.state_dict() for stream in self._streams]
            return {"state": save(), "streams": places} if places else save()

        def loaded(state: Any) -> None:
            load(state["state"] if self._streams else state)
            for stream, place in zip(self._streams, state["streams"] if self._streams else (), strict=True):
                stream.load_state_dict(place)

        self.calls = {"save": saved, "load": loaded, "evaluate": evaluate}

    @overload
    def stream(self, data: Resumable) -> Stream: ...
    @overload
    def stream(self, data: Mapping[str, Resumable]) -> MixedStream: ...
    def stream(self, data: Resumable | Mapping[str, Resumable]) -> Stream | MixedStream:
        """The items of an iterable with `state_dict` and `load_state_dict`, pass after pass, endlessly.

        Several iterables, by name, are mixed: pass the value of a hyper-parameter such as `data` to `mix` at each step.
        The position is saved and loaded with the state. Call this before the first step, and take items by `next`.
        """
        from stagetree.trainer.mixed_streams import MixedStream  # imports torch
        from stagetree.trainer.streaming import Stream

        self.streamed += data.values() if isinstance(data, Mapping) else [data]
        self._streams.append(MixedStream(data, self.seed) if isinstance(data, Mapping) else Stream(data, self.seed))
        return self._streams[-1]

    def steps(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The steps to train, from 0 or from a loaded state, each with the current hyper-parameters.

        The loop ends when no more steps are needed. Raises RuntimeError before `state` was called.
        """
        raise NotImplementedError

    def log(self, name: str, value: Any) -> None:
        """Log a number between evaluations, as `Trainer.log` does."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises RuntimeError before `state` was called."""
        if not self.calls:
            raise RuntimeError("run.state(save=..., load=..., evaluate=...) must be called before run.steps()")


@runtime_checkable
class Attachable(Protocol):
    """The greenlet in which a script runs for a study: see `stagetree.runtime.scripts.script_trainer`."""

    def attach_run(self, args: Mapping[str, Any], caches: tuple[str, ...]) -> Run:
        """The script's run. args: of `attach`. caches: as in `attach`."""


def attach(
    name: str,
    *,
    hp: Mapping[str, Any] | None = None,
    steps: int = 0,
    eval_every: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    launch: str = "",
    caches: str | Iterable[str] = (),
    **args: Any,
) -> Run:
    """Take part in a study as the trainer `name`; if started by hand, train one configuration alone.

    Args:
        name: the trainer's name in study files. A literal, since the file is parsed and not run.
        args: the script's arguments, with their defaults; `trainer_args` of a study file change them.
        hp: by hand, the hyper-parameters: values or sequences.
        steps: by hand, the number of steps; after them the metrics are printed.
        eval_every: by hand, the steps between evaluations.
        seed, device: by hand. The global generators start from the seed, as they do in a study.
        launch: how a slot starts the script as several processes: `torchrun --nproc-per-node 2`, or another command
            that takes `-m MODULE`. A literal, too; names in braces stand for `args`. Not used by hand.
        caches: variables of the script that no step depends on, such as `"last_batch"`, which need not be restored
            with the state: they are not compared. Without effect with `launch`, where no variables are compared.

    Raises ValueError for an argument of the study file that is not in `args`, and for `caches` that are not names.
    """
    names = (caches,) if isinstance(caches, str) else tuple(caches)
    for each in names:
        if not isinstance(each, str):
            raise ValueError(f'caches: the names of variables, such as "last_batch", not a {type(each).__name__}')
    fiber: greenlet | None = getcurrent()
    while fiber is not None and not isinstance(fiber, Attachable):
        fiber = fiber.parent
    if fiber is not None:
        return fiber.attach_run(args, names)
    from stagetree.trainer import generators  # imports torch

    generators.seed(seed)
    return _ByHand(args, seed, device, hp or {}, steps, eval_every)


class _ByHand(Run):
    """The run of a script that was started by hand: one configuration, and no checkpoints."""

    def __init__(
        self, args: Mapping[str, Any], seed: int, device: str, hp: Mapping[str, Any], steps: int, eval_every: int | None
    ) -> None:
        super().__init__(args, seed, device)
        self._hp: dict[str, Sequence] = {name: parse(value, name) for name, value in hp.items()}
        self._steps, self._every = steps, eval_every
        self._logged = MetricSums()

    def steps(self) -> Iterator[tuple[int, dict[str, Any]]]:
        self.check()
        for step in range(self._steps):
            yield step, {name: sequence.at(step) for name, sequence in self._hp.items()}
            if step + 1 == self._steps or (self._every and (step + 1) % self._every == 0):
                self._tell(step + 1)

    def log(self, name: str, value: Any) -> None:
        self._logged.add(name, value)

    def _tell(self, step: int) -> None:
        values = {**self._logged.means(), **self.calls["evaluate"]()}
        if os.environ.get("RANK", "0") == "0":  # one of several processes prints
            print(f"step {step}: {', '.join(f'{name} {value:.6g}' for name, value in values.items())}", flush=True)
