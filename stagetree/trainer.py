"""What a study trains: a `Trainer` turns hyper-parameters into weights, one step at a time.

The runner (the part of a worker that owns the loop) drives every trainer in the same way. From the beginning:

1. seed the global generators (Python, NumPy, torch on every device) with `seed`;
2. construct the trainer;
3. `setup` with all values at step 0, then `train`;
4. for each further step: `setup` with the values that change at that step, only if some do, then `train`.

From a checkpoint, to go on at step s > 0:

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

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from stagetree.logged import Logged


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
    """Attributes, such as `last_batch` or `model.calls`, and globals of its file that `train` does not depend on,
    besides those that the classes above name: it is not held against the trainer if they do not come back."""

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

    def log(self, name: str, value: Any) -> None:
        """Say a number from within `train`: a loss, the length of a gradient.

        It is no metric: no tuner sees it, and nothing waits for it. What was logged is fetched about once a second, as
        the mean of each name since the last time; a tensor stays on its device until then, so this costs no wait.

        Args:
            value: a number, or a tensor that holds one.
        """
        vars(self).setdefault("_logged", Logged()).add(name, value)

    def close(self) -> None:  # noqa: B027 - most trainers hold nothing that outlives them
        """End what would outlive the object, such as processes that read. Another model may take its place then.

        Not called when the process ends as a whole.
        """
