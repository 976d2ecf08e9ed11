"""What a module finds where its Trainer of Lightning's would be, and what it logs there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

COUNTED = ("current_epoch", "global_step", "batch_idx", "is_within_epoch")


class Place:
    """Stands where a module looks for its Trainer of Lightning's: what is true of our loop, and no more."""

    def __init__(self) -> None:
        self.current_epoch, self.global_step, self.batch_idx = 0, 0, 0
        self.is_within_epoch = False
        self.training, self.validating, self.sanity_checking = True, False, False
        self.is_global_zero, self.world_size, self.global_rank, self.local_rank = True, 1, 0, 0
        self.logger, self.progress_bar_callback = None, None
        self.loggers: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"there is no Trainer of Lightning's here, whose `{name}` the module asks for")


class Heard:
    """What a module logs, which else wants a Trainer of Lightning's.

    values: the numbers, by name. metrics: those of torchmetrics. means: the numbers, with the size of the batch where
    the module gives one.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self.values, self.metrics, self.means = dict[str, Any](), dict[str, Any](), dict[str, Any]()

    def __enter__(self) -> Heard:
        self._module.__dict__["log"] = self._log
        self._module.__dict__["log_dict"] = self._log_dict
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("log", "log_dict"):
            del self._module.__dict__[name]

    def _log(self, name: str, value: Any, *_: Any, **how: Any) -> None:
        if how.get("reduce_fx", "mean") not in ("mean", torch.mean):
            raise ValueError(f"{name} is logged with reduce_fx, and only means are taken: log a metric of torchmetrics")
        if hasattr(value, "compute") and hasattr(value, "reset"):
            self.metrics[name] = value
            return
        size = how.get("batch_size")
        self.values[name] = value
        self.means[name] = value if size is None else (torch.as_tensor(value) * size, size)

    def _log_dict(self, values: Mapping[str, Any], *_: Any, **how: Any) -> None:
        for name, value in values.items():
            self._log(name, value, **how)
