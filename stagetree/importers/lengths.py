"""Hyper-parameters that are the length of a run: names such as `epochs`, `trainer.max_epochs` and `num-epochs`.

Here a length is no hyper-parameter: it is `max_steps`, of the tuner or, where it is searched, of the space.
"""

from __future__ import annotations

from typing import Any

from stagetree.sequences import SequenceError, check_count

NAMES = frozenset(
    {
        "epoch",
        "epochs",
        "max_epoch",
        "max_epochs",
        "max_iters",
        "max_steps",
        "max_train_steps",
        "n_epoch",
        "n_epochs",
        "nb_epochs",
        "nepoch",
        "nepochs",
        "num_epoch",
        "num_epochs",
        "num_train_epochs",
        "steps",
        "total_epochs",
        "total_steps",
        "train_epochs",
        "train_steps",
        "training_steps",
    }
)


def is_length(name: str) -> bool:
    """Whether a hyper-parameter counts the epochs or steps of a run, by the last part of its name."""
    return name.rsplit(".", 1)[-1].rsplit("/", 1)[-1].replace("-", "_").lower() in NAMES


def length_of(entry: Any, place: str) -> Any:
    """A number of steps, or the lengths of a space: a list or a range. Raises `SequenceError`."""
    options = entry["choice"] if isinstance(entry, dict) and entry.keys() == {"choice"} else entry
    if isinstance(options, dict):
        if "randint" not in options:
            raise SequenceError(place, f"must be whole numbers of steps, got {options}: pass max_steps")
        return options
    for option in options if isinstance(options, list) else [options]:
        if isinstance(option, float) and option.is_integer():
            raise SequenceError(place, f"must be a whole number of steps, got {option}: write {int(option)}")
        check_count(place, option)
    return options[0] if isinstance(options, list) and len(options) == 1 else options
