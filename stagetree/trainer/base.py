"""What a study trains: a `Trainer` turns hyper-parameters into weights, one step at a time.

The runner (the part of a worker that owns the loop) drives every trainer in the same way. From the beginning:

1. seed the global generators (Python, NumPy, torch on every device) with `seed`;
2. construct the trainer;
3. `setup` with all values at step 0; where the study begins from weights, `begin` with them; then `train`;
4. for each further step: `setup` with the values that change at that step, only if some do, then `train`.

From a checkpoint, to resume at step s > 0:

1. construct the trainer, or take an instance built from the same arguments whose last `setup` knew the same names;
2. `setup` with all values in force at step s - 1;
3. `load_state_dict`, then put the global generators back to where they were when the state was saved;
4. as above from step s: `setup` with the values that change at s, only if some do, then `train`.

Both ways must lead to the same weights, bit for bit: that is what lets trials share a beginning, and move between
workers. So whatever `train` reads must come from the arguments, from `setup`, from the state or from the global
generators. `evaluate` and `state_dict` may be called between any two steps, any number of times, or never.

An exception out of any method fails the trial, with its traceback, and never the study.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stagetree.limits import MOST_METRICS

if TYPE_CHECKING:
    from stagetree.trainer.ranks.group import Ranks


class MetricSums:
    """Values by name, each name's added up. Nothing waits for a device before `means`.

    elsewhere: where values are added up that belong to these; its `leave` ends that, and says what they came to.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self.row_sums: Any = None

    def add(self, name: str, value: Any) -> None:
        """One more value: a number, or a tensor that holds one. Raises TypeError, ValueError."""
        self.settle()
        if hasattr(value, "detach"):
            if value.numel() != 1:
                raise ValueError(f"log takes one number at a time, got a tensor of {value.numel()} for {name}")
            value = value.detach().float().reshape(()).clone()
        else:
            value = float(value)
        self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._counts[name] = self._counts.get(name, 0) + 1

    def totals(self) -> dict[str, tuple[Any, int]]:
        """Of each name, the sum of its values and how many they are."""
        self.settle()
        return {name: (total, self._counts[name]) for name, total in self._sums.items()}

    def add_total(self, name: str, total: Any, count: int) -> None:
        """So many more values, by their sum."""
        self._sums[name] = self._sums[name] + total if name in self._sums else total
        self._counts[name] = self._counts.get(name, 0) + count

    def means(self) -> dict[str, float | None]:
        """The mean of each name since the last time; None for one that is no finite number."""
        self.settle()
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self.clear()
        return {name: mean if math.isfinite(mean) else None for name, mean in means.items()}

    def clear(self) -> None:
        """Forget what was not asked for."""
        self.settle()
        self._sums.clear()
        self._counts.clear()

    def settle(self) -> None:
        """Have all here that belongs to these."""
        if self.row_sums is not None:
            row_sums, self.row_sums = self.row_sums, None
            for name, total, count in row_sums.leave(self):
                self.add_total(name, total, count)


class _Here:
    """The ranks of this process. A trainer of old that has another attribute of this name keeps it."""

    def __get__(self, trainer: object, kind: type) -> Ranks:
        from stagetree.trainer.ranks.group import here  # it has torch

        return here()


class Trainer(ABC):
    """A model in training. Subclass it, give it a `name`, and register the class with the server.

        class Digits(Trainer):
            name = "digits"

            def __init__(self, *, seed: int, device: str, width: int = 32) -> None: ...

    With PyTorch, `stagetree.TorchTrainer` has most of this written already.
    """

    name: ClassVar[str]
    """What a study file calls this trainer, `trainer: digits`. Part of the search plan's identity."""

    caches: ClassVar[tuple[str, ...]] = ()
    """Attributes, and globals of the trainer's file, that no step depends on, beside those that its bases name.

    They need not come back with the state, and are not compared.
    """

    ranks = _Here()
    """The processes that train this trial, and which of its shards are here: see `stagetree.trainer.ranks.Ranks`."""

    def __init__(self, *, seed: int, device: str, **trainer_args: Any) -> None:
        """Build the model and read the data.

        The runner has seeded the global generators just before, so random initial weights need no care. They depend on
        `seed` and `trainer_args` only, never on hyper-parameters: those arrive in `setup`.

        Args:
            seed: the study's seed, for what must not depend on the global generators, such as the order of the data.
            device: where to train, as torch writes it: `"cpu"`, `"cuda:0"`.
            trainer_args: `trainer_args` of the study file. Name the ones you take, so that a misspelt one is an error.
        """
        self.seed = seed
        self.device = device
        self.trainer_args = trainer_args

    @abstractmethod
    def setup(self, hp: dict[str, Any]) -> None:
        """Bring hyper-parameters into force, from the coming step on.

        Called before the step at which values change, with those values; at the first step, and before
        `load_state_dict`, with all of them. A name left out keeps its value. Setting the same value twice must do no
        harm.

        Args:
            hp: value by name, as plain JSON values.

        Raises:
            ValueError: for a name or a value that this trainer does not know.
        """

    @abstractmethod
    def train(self) -> None:
        """Train one step, which is what sequences, `max_steps` and `eval_every` count: an epoch, or some batches."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Measure the model as it stands, and leave no trace in it.

        The runner puts the global generators back afterwards; anything else that `train` reads must be as it was.

        Returns:
            Value by metric name, always the same names. The study's `metric` is one of them. NaN fails the trial.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that `train` will read and `setup` does not bring: weights, optimizer, place in the data.

        The global generators are the runner's business and do not belong here. The runner has copied or stored the
        answer before the next step, so it may hold the live tensors.

        Returns:
            Tensors, NumPy arrays, bytes and JSON values (None, bool, int, float, str), nested in lists, and in dicts
            with str or int keys.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that `state_dict` returned, in this process or another.

        Nothing of the present state may remain. Copy what is kept: the runner may load the same state again.

        Args:
            state: equal to what `state_dict` returned, with its tensors in host memory.

        Raises:
            KeyError, ValueError, RuntimeError: if the state is of another model.
        """

    def begin(self, weights: dict[str, Any]) -> None:
        """Take over weights before the first step: those of the study's `begin_from`.

        Called once, between `setup` with all values at step 0 and the first `train`, in each model that begins there;
        not when a state is loaded. The trainer decides which names it takes, and what it does with the others:
        raise an error for names that do not fit. A trainer without this method cannot begin from weights.

        Args:
            weights: tensor by name, in host memory, as they are in the file. Copy what is kept.

        Raises:
            KeyError, ValueError, RuntimeError: if they are of another model.
        """
        raise NotImplementedError(
            f"trainer {self.name!r} has no method begin, which takes over the weights that a study begins from"
        )

    def average(self, states: Iterable[tuple[dict[str, Any], float]]) -> dict[str, Any]:
        """The mean of states, as `state_dict` might have returned it.

        states: each with its weight. Go through all of them, once, and keep only the sums.
        Values without a mean come from the first state, which was trained at least as long as any other.
        """
        raise NotImplementedError(f"trainer {self.name!r} has no method average, which takes the mean of states")

    def export(self, folder: Path) -> None:
        """Write the model as other programs load it, for `stagetree weights --export`.

        Called once, after a state was loaded. A trainer without this method exports the tensors that `stagetree
        weights` writes.

        Args:
            folder: a new one, which is there and empty.
        """
        raise NotImplementedError

    def log(self, name: str, value: Any) -> None:
        """Log a number from within `train`: a loss, the norm of a gradient.

        It is no metric: no tuner sees it, and nothing waits for it. Logged values are fetched about once a second, as
        the mean of each name since the last time; a tensor stays on its device until then, so this does not block.

        Args:
            value: a number, or a tensor that holds one.
        """
        vars(self).setdefault("_logged", MetricSums()).add(name, value)

    def close(self) -> None:  # noqa: B027 - most trainers hold nothing that outlives them
        """End all that would outlive the object, such as processes that read. Another model may take its place then.

        Not called when the whole process ends.
        """


class TrainsAhead(Trainer):
    """A trainer whose model is elsewhere, in a program of its own, and may be further than the runner is.

    `train` returns once the step that comes next is done, however far the model is.
    """

    @abstractmethod
    def expect(self, stop: int, evaluate: frozenset[int], at: Callable[[int], Mapping[str, Any]]) -> None:
        """Hear of what comes, so that it can be done in one go.

        Args:
            stop: the step up to which it is trained before a state is asked for.
            evaluate: the steps up to there after which it is evaluated.
            at: all values in force at a step.
        """

    @abstractmethod
    def settle(self) -> tuple[int, Mapping[int, Mapping[str, float]]]:
        """Be at one step, at once: the training ends before the step that was expected.

        Returns:
            That step, which is the runner's or a later one, and the metrics of the steps between them at which it was
            to be evaluated.
        """


def finite_metrics(metrics: Any) -> dict[str, float | None]:
    """The metrics that `evaluate` returned, as floats; None for one that is not finite."""
    if not isinstance(metrics, Mapping):
        raise TypeError(f"evaluate must return a dict of numbers, got {type(metrics).__name__}")
    if len(metrics) > MOST_METRICS:
        raise ValueError(f"evaluate must return at most {MOST_METRICS:,} metrics, got {len(metrics):,}")
    return {str(name): _finite(name, value) for name, value in metrics.items()}


def _finite(name: str, value: Any) -> float | None:
    try:
        number = float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, OverflowError):  # the last of a whole number that is no float
        raise TypeError(f"evaluate must return a dict of numbers, got {value!r} for {name}") from None
    return number if math.isfinite(number) else None
