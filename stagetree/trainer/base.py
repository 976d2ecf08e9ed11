"""The `Trainer`, which a study trains: it turns hyper-parameters into weights, one step at a time.

The runner (the part of a worker that owns the loop) drives all trainers in the same way. From the beginning:

1. seed the global generators (Python, NumPy, torch on every device) with `seed`;
2. construct the trainer;
3. `setup` with all values at step 0; if the study begins from weights, `begin` with them; then `train`;
4. for each further step: `setup` with the values that change at that step, if any do, then `train`.

To resume from a checkpoint at step s > 0:

1. construct the trainer, or take an instance built from the same arguments whose last `setup` knew the same names;
2. `setup` with all values in force at step s - 1;
3. `load_state_dict`, then restore the global generators to their states at the checkpoint;
4. continue as above from step s: `setup` with the values that change at s, if any do, then `train`.

Both ways must give the same weights, bit for bit, so that trials can share a beginning and move between workers. All
that `train` reads must therefore come from the arguments, from `setup`, from the state or from the global generators.
`evaluate` and `state_dict` may be called between any two steps, any number of times, or never.

An exception from any method fails the trial, with its traceback, and never the study.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stagetree.limits import MOST_METRICS
from stagetree.sequences import did_you_mean

if TYPE_CHECKING:
    from stagetree.trainer.ranks.group import Ranks


class MetricSums:
    """Sums of values by name. Nothing synchronizes with a device before `means`.

    row_sums: the shared sums of several lanes that these values are added to for now; its `leave` returns our share.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self.row_sums: Any = None

    def add(self, name: str, value: Any) -> None:
        """Add a value: a number, or a tensor with one element. Raises TypeError, ValueError."""
        self.settle()
        if hasattr(value, "detach"):
            if value.numel() != 1:
                raise ValueError(f"log takes one number at a time, got a tensor of {value.numel()} for {name}")
            value = value.detach().float().reshape(()).clone()
        else:
            value = float(value)
        self.add_total(name, value, 1)

    def totals(self) -> dict[str, tuple[Any, int]]:
        """The sum and the number of values of each name."""
        self.settle()
        return {name: (total, self._counts[name]) for name, total in self._sums.items()}

    def add_total(self, name: str, total: Any, count: int) -> None:
        """Add `count` values with this sum."""
        self._sums[name] = self._sums[name] + total if name in self._sums else total
        self._counts[name] = self._counts.get(name, 0) + count

    def means(self) -> dict[str, float | None]:
        """The mean of each name since the last call; None for one that is not finite."""
        self.settle()
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self.clear()
        return {name: mean if math.isfinite(mean) else None for name, mean in means.items()}

    def clear(self) -> None:
        """Drop all values."""
        self.settle()
        self._sums.clear()
        self._counts.clear()

    def settle(self) -> None:
        """Fetch the values that were added to shared sums."""
        if self.row_sums is not None:
            row_sums, self.row_sums = self.row_sums, None
            for name, total, count in row_sums.leave(self):
                self.add_total(name, total, count)


class _Here:
    """The ranks of this process. A trainer with an attribute of this name overrides it."""

    def __get__(self, trainer: object, kind: type) -> Ranks:
        from stagetree.trainer.ranks.group import here  # imports torch

        return here()


class Trainer(ABC):
    """A model in training. Subclass it, give it a `name`, and register the class with the server.

        class Digits(Trainer):
            name = "digits"

            def __init__(self, *, seed: int, device: str, width: int = 32) -> None: ...

    With PyTorch, `stagetree.TorchTrainer` has most of this written already.
    """

    name: ClassVar[str]
    """The name of this trainer in study files, `trainer: digits`. Part of the search plan's identity."""

    caches: ClassVar[tuple[str, ...]] = ()
    """Attributes and globals of the trainer's file that no step depends on, in addition to the base classes' caches.

    They need not be restored with the state, and are not compared.
    """

    ranks = _Here()
    """The processes that train this trial, and the shards of this one: see `stagetree.trainer.ranks.group.Ranks`."""

    def __init__(self, *, seed: int, device: str, **trainer_args: Any) -> None:
        """Build the model and read the data.

        The runner has just seeded the global generators, so random initial weights need no care. They depend on `seed`
        and `trainer_args` only, never on hyper-parameters: those arrive in `setup`.

        Args:
            seed: the study's seed, for what must not depend on the global generators, such as the order of the data.
            device: where to train, as torch writes it: `"cpu"`, `"cuda:0"`.
            trainer_args: of the study file. Name the ones that you take, so that a misspelt one is an error.
        """
        self.seed = seed
        self.device = device
        self.trainer_args = trainer_args

    @abstractmethod
    def setup(self, hp: dict[str, Any]) -> None:
        """Apply hyper-parameters, from the coming step on.

        Called before each step at which values change, with those values; at the first step, and before
        `load_state_dict`, with all of them. Names left out keep their values. Setting the same value twice must do no
        harm.

        Args:
            hp: value by name, as plain JSON values.

        Raises:
            ValueError: for a name or a value that this trainer does not know.
        """

    @abstractmethod
    def train(self) -> None:
        """Train one step, the unit of sequences, `max_steps` and `eval_every`: an epoch, or some batches."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Measure the current model without changing it.

        The runner restores the global generators afterwards; everything else that `train` reads must be unchanged.

        Returns:
            Value by metric name, always with the same names. The study's `metric` is one of them. NaN fails the trial.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that `train` reads and `setup` does not set: weights, optimizer, position in the data.

        The runner saves the global generators; they do not belong here. It copies or stores the result before the next
        step, so the result may hold the live tensors.

        Returns:
            Tensors, NumPy arrays, bytes and JSON values (None, bool, int, float, str), nested in lists, and in dicts
            with str or int keys.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned, in this process or another.

        Nothing of the present state may remain. Copy what you keep: the runner may load the same state again.

        Args:
            state: equal to the result of `state_dict`, with its tensors in host memory.

        Raises:
            KeyError, ValueError, RuntimeError: if the state is of another model.
        """

    def begin(self, weights: dict[str, Any]) -> None:
        """Load the weights of the study's `begin_from` before the first step.

        Called once, between `setup` with all values at step 0 and the first `train`, for each model that begins there;
        not when a state is loaded. The trainer decides which names it takes and what to do with the others: raise an
        error for names that do not fit. A trainer without this method cannot begin from weights.

        Args:
            weights: tensor by name, in host memory, as in the file. Copy what you keep.

        Raises:
            KeyError, ValueError, RuntimeError: if they are of another model.
        """
        raise NotImplementedError(
            f"trainer {self.name!r} has no method begin, which takes over the weights that a study begins from"
        )

    def average(self, states: Iterable[tuple[dict[str, Any], float]]) -> dict[str, Any]:
        """The mean of states, in the form of `state_dict`.

        states: each with its weight. Iterate over them once, and keep only the sums. Take values that have no mean from
        the first state, which was trained at least as long as any other.
        """
        raise NotImplementedError(f"trainer {self.name!r} has no method average, which takes the mean of states")

    def export(self, folder: Path) -> None:
        """Write the model in a form that other programs load, for `stagetree weights --export`.

        Called once, after a state was loaded. A trainer without this method exports the tensors that `stagetree
        weights` writes.

        Args:
            folder: a new, empty folder.
        """
        raise NotImplementedError

    def log(self, name: str, value: Any) -> None:
        """Log a number from within `train`: a loss, or the norm of a gradient.

        A logged value is not a metric: tuners do not see it. Logged values are fetched about once a second, as the mean
        of each name since the last time; a tensor stays on its device until then, so this does not block.

        Args:
            value: a number, or a tensor with one element.
        """
        vars(self).setdefault("_logged", MetricSums()).add(name, value)

    def close(self) -> None:  # noqa: B027 - most trainers hold nothing that outlives them
        """Release everything that would outlive the object, such as worker processes. Another model may take its place.

        Not called when the whole process ends.
        """


class TrainsAhead(Trainer):
    """A trainer whose model lives in another program, which may be ahead of the runner.

    `train` returns when the next step is done, however far ahead the program is.
    """

    @abstractmethod
    def expect(self, stop: int, evaluate: frozenset[int], at: Callable[[int], Mapping[str, Any]]) -> None:
        """Announce the coming steps, so that they can be done in one go.

        Args:
            stop: the step up to which to train before a state is requested.
            evaluate: the steps up to there after which to evaluate.
            at: returns all values in force at a step.
        """

    @abstractmethod
    def settle(self) -> tuple[int, Mapping[int, Mapping[str, float]]]:
        """Stop at a single step right away: training ends before the announced step.

        Returns:
            That step, which is the runner's or a later one, and the metrics of the evaluated steps between them.
        """


def construct(kind: type[Trainer], args: Mapping[str, Any], seed: int, device: str) -> Trainer:
    """The trainer object. Raises `TypeError` for missing methods, and for a constructor without `seed` or `device`."""
    if lacking := sorted(getattr(kind, "__abstractmethods__", ())):
        near = [each for each in vars(kind) if any(did_you_mean(name, [each]) for name in lacking)]
        there = f"; it has {', '.join(near)}" if near else ""
        raise TypeError(f"{kind.__name__} lacks {' and '.join(lacking)}{there}")
    if missing := [name for name in ("seed", "device") if not _takes(kind, name)]:
        wanted = ", ".join(["self", "*", "seed", "device", *args])
        raise TypeError(f"{kind.__name__}.__init__ must take {' and '.join(missing)}: def __init__({wanted})")
    return kind(seed=seed, device=device, **args)


def _takes(kind: type[Trainer], name: str) -> bool:
    """Whether the constructor takes an argument of this name, as far as its signature says."""
    try:
        parameters = inspect.signature(kind).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


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
    except (TypeError, ValueError, OverflowError):  # OverflowError: an integer too large for a float
        raise TypeError(f"evaluate must return a dict of numbers, got {value!r} for {name}") from None
    return number if math.isfinite(number) else None
