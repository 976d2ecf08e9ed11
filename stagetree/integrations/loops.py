"""Frameworks that own their loop, as trainers of studies: `Trainer` of Transformers and TRL.

    run = stagetree.attach("sft", ...)
    trainer = SFTTrainer(model, args=SFTConfig(...), train_dataset=..., callbacks=[...])
    stagetree.integrations.loops.transformers(run, trainer)

The framework calls back before each of its steps, where `run.steps()` is asked for the next one. A state is put in
place as soon as it is loaded. To train on from there, the framework's loop is left, and begun anew with its own way of
resuming, which finds the place in the data.
"""

from __future__ import annotations

import copy
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stagetree.functions import Run
from stagetree.trainer import generators

Hp = dict[str, Any]
Apply = Callable[[Hp], None]


class _Left(Exception):
    """The framework's loop is left: nothing went wrong. It goes on at another step, or is over."""


class FrameworkLoop(ABC):
    """The loop of a framework in turn with `run`; `train` returns at the end of a run by hand."""

    name = ""

    def __init__(self, run: Run, apply: Apply | None = None) -> None:
        self._run, self._apply = run, apply
        self._steps: Iterator[tuple[int, Hp]] = iter(())
        self._loaded: Any = None
        self._next: tuple[tuple[int, Hp], generators.Mark] | None = None
        self._is_over = False

    def train(self) -> None:
        """Errors of the script come through. Raises RuntimeError where the framework ends its loop by itself."""
        self._run.state(save=self._save, load=self._load, evaluate=self.evaluate)
        self._steps = self._run.steps()
        while not self._is_over:
            with in_a_folder() as folder:
                try:
                    self.fit(folder, self._loaded)
                except _Left:
                    continue
            why = "a callback stops it, or its own number of steps. How long a trial trains is for the study to say"
            raise RuntimeError(f"the loop of {self.name} has ended by itself: {why}")

    def begin_step(self) -> None:
        """To be called before each step, by the framework."""
        if self._next is not None:  # the loop was begun anew for this step
            (_, hp), mark = self._next
            self._next = self._loaded = None
            generators.go_back(mark, self._run.device)
        else:
            hp = self._wait()
        if self._apply is not None:
            self._apply(hp)
        self.apply(hp)

    def _wait(self) -> Hp:
        """The values of the next step that is wanted here."""
        try:
            step, hp = next(self._steps)
        except StopIteration:
            self._is_over = True
            raise _Left from None
        if self._loaded is not None:
            self._next = (step, hp), generators.mark(self._run.device)
            raise _Left
        return hp

    def _save(self) -> Any:
        return self.save() if self._loaded is None else self._loaded

    def _load(self, state: Any) -> None:
        self._loaded = copy.deepcopy(state)  # the same may be loaded again
        self.load(self._loaded)

    @abstractmethod
    def fit(self, folder: Path, state: Any) -> None:
        """Run the framework's loop from a state, or from its beginning; `folder` is there as long as it runs."""

    @abstractmethod
    def apply(self, hp: Hp) -> None:
        """Bring the values of a step into force. Raises ValueError for one that it has no place for."""

    @abstractmethod
    def save(self) -> Any:
        """The state between two steps."""

    @abstractmethod
    def load(self, state: Any) -> None:
        """Put a state in place, where it is measured and saved."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """The metrics; without a trace."""


@contextmanager
def in_a_folder() -> Iterator[Path]:
    """A new one, which is gone after the block."""
    with tempfile.TemporaryDirectory(prefix="stagetree-") as folder:
        yield Path(folder)


class RateGroups:
    """Puts the values of hyper-parameters into an optimizer's parameter groups, each of which keeps its own multiple.

    own: the values that its user has made it with, by name. Raises ValueError for a name that no group has.
    """

    def __init__(self, optimizer: Any, own: Mapping[str, float]) -> None:
        groups = optimizer.param_groups
        self.names = sorted({name for group in groups for name in group} - {"params", "initial_lr"})
        initial = [{**group, "lr": group.get("initial_lr", group["lr"])} for group in groups]
        self._multiples = {
            name: [float(group[name]) / value for group in initial]
            for name, value in own.items()
            if name in self.names and value
        }
        self._own = own

    def set(self, optimizer: Any, name: str, value: Any) -> None:
        """From here on, it is in force."""
        if name in self._own and name not in self._multiples:
            raise ValueError(
                f"hyper-parameter {name}: it is 0 where the script says so, and which groups keep 0 is not known"
            )
        multiples = self._multiples.get(name)
        for number, group in enumerate(optimizer.param_groups):
            if name in group:
                group[name] = value if multiples is None else value * multiples[number]


# ------------------------------------------------------------------------------------------------ Transformers, TRL


def transformers(run: Run, trainer: Any, apply: Apply | None = None) -> None:
    """Train by the `Trainer` of Transformers, or one of TRL's, as its user has made it, with callbacks and arguments.

    A step is an update of the weights. `lr` or `learning_rate`, and what else the optimizer's groups hold, such as
    `weight_decay`, come from the study; each group keeps its multiple of the arguments' own. The study evaluates by
    `trainer.evaluate()`, and logs what the trainer logs; `eval_strategy`, `save_strategy` and `max_steps` have no
    effect. Of a model with adapters of PEFT, the state has the trained weights only.

    apply: brings all other hyper-parameters into force, before each step.

    Raises ValueError for what a study decides: a callback that stops early, the best model at the end, and a schedule
    of the trainer's own where the study has no learning rate.
    """
    _Transformers(run, trainer, apply).train()


NOISE = ("runtime", "per_second", "epoch", "num_tokens", "preparation_time")
"""Ends of names that a `Trainer` returns beside its metrics: times, and counts of this process."""

ENDLESS = 2**31 - 1
"""Steps: the study says where a trial ends."""


class _Transformers(FrameworkLoop):
    name = "the Trainer"

    def __init__(self, run: Run, trainer: Any, apply: Apply | None) -> None:
        super().__init__(run, apply)
        self._trainer, self._is_measuring, args = trainer, False, trainer.args
        if any(type(each).__name__ == "EarlyStoppingCallback" for each in trainer.callback_handler.callbacks):
            raise ValueError("EarlyStoppingCallback: when a trial stops is for the study's tuner to say")
        if args.load_best_model_at_end:
            raise ValueError("load_best_model_at_end: the study keeps the weights of its best results")
        self._schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
        if trainer.lr_scheduler is not None:
            self._schedule = type(trainer.lr_scheduler).__name__
        args.save_strategy, args.eval_strategy = type(args.save_strategy)("no"), type(args.eval_strategy)("no")
        args.max_steps = ENDLESS
        self._groups: RateGroups | None = None
        trainer._load_from_checkpoint = lambda *_, **__: None  # `load` has done it
        trainer.callback_handler.callbacks.insert(0, _callback(self))

    def fit(self, folder: Path, state: Any) -> None:
        trainer = self._trainer
        if state is None:
            trainer.train()
            return
        place = copy.copy(trainer.state)
        place.log_history, place.stateful_callbacks = [], {}
        for name, value in state["place"].items():
            setattr(place, name, value)
        place.save_to_json(os.fspath(folder / "trainer_state.json"))
        trainer.train(resume_from_checkpoint=os.fspath(folder))

    def begin_step(self) -> None:
        args = self._trainer.args
        if self._groups is None:
            own = {"lr": args.learning_rate, "weight_decay": args.weight_decay}
            self._groups = RateGroups(self._trainer.optimizer, own)
        super().begin_step()

    def apply(self, hp: Hp) -> None:
        trainer, groups = self._trainer, self._groups
        assert groups is not None
        named = {"lr" if name == "learning_rate" else name: value for name, value in hp.items()}
        if "lr" not in named and self._schedule != "constant":
            instead = 'give the study `lr` as a sequence, or the arguments lr_scheduler_type="constant"'
            raise ValueError(f"a schedule of the script's own ({self._schedule}) cannot be shared: {instead}")
        trainer.lr_scheduler = _StudyRate(trainer.optimizer)
        for name, value in named.items():
            if name in groups.names:
                groups.set(trainer.optimizer, name, value)
            elif self._apply is None:
                names = ", ".join(groups.names)
                raise ValueError(f"hyper-parameter {name}: the optimizer has {names}; `apply` is for others")

    def save(self) -> Any:
        trainer = self._trainer
        place = {name: getattr(trainer.state, name) for name in ("global_step", "num_input_tokens_seen")}
        scaler = trainer.accelerator.scaler
        return {
            "model": self._trained(),
            "optimizer": trainer.optimizer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "place": place,
        }

    def load(self, state: Any) -> None:
        trainer = self._trainer
        own = trainer.model.state_dict()
        for name, tensor in state["model"].items():
            own[name].copy_(tensor)
        trainer.optimizer.load_state_dict(state["optimizer"])
        if trainer.accelerator.scaler is not None:
            trainer.accelerator.scaler.load_state_dict(state["scaler"])

    def _trained(self) -> dict[str, Any]:
        """By name: everything, or, where PEFT has frozen the rest, trained weights and buffers."""
        model = self._trainer.model
        state: dict[str, Any] = model.state_dict()
        if not hasattr(model, "peft_config"):
            return state
        frozen = {name for name, each in model.named_parameters() if not each.requires_grad}
        return {name: each for name, each in state.items() if name not in frozen}

    def evaluate(self) -> dict[str, float]:
        trainer = self._trainer
        control, history = copy.copy(trainer.control), list(trainer.state.log_history)
        self._is_measuring = True
        try:
            metrics = trainer.evaluate()
        finally:
            self._is_measuring = False
            trainer.control, trainer.state.log_history = control, history
        return {name: value for name, value in metrics.items() if not name.endswith(NOISE)}

    def logged(self, values: Mapping[str, Any]) -> None:
        """The trainer has logged these."""
        for name, value in values.items() if not self._is_measuring else ():
            if isinstance(value, int | float) and not name.endswith(NOISE):
                self._run.log(name, value)


class _StudyRate:
    """What a `Trainer` calls its schedule, where the study says the learning rate."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def step(self, *_: Any) -> None:
        """The next value comes with the next step."""

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self._optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {}


def _callback(loop: _Transformers) -> Any:
    from transformers import TrainerCallback

    class Steps(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            loop.begin_step()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            loop.logged(logs or {})

    return Steps()
