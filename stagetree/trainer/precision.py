"""What a model computes in, and the scale of the losses that half precision needs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """name: `fp32`, or what autocast computes in: `bf16`, or `fp16` with its losses scaled.

    is_reduced: whether it is less than single precision. is_scaled: whether losses are. Raises ValueError.
    """

    def __init__(self, name: str, device: str) -> None:
        if name not in DTYPES:
            raise ValueError(f"precision must be one of {', '.join(DTYPES)}, not {name!r}")
        self._dtype, self._device_type = DTYPES[name], torch.device(device).type
        self._scaler = torch.amp.GradScaler(self._device_type, enabled=name == "fp16")
        self.is_reduced, self.is_scaled = self._dtype is not None, self._scaler.is_enabled()

    def autocast(self) -> AbstractContextManager[Any]:
        """Where the model computes in it."""
        return torch.autocast(self._device_type, self._dtype) if self._dtype else nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss, by the scale, to what is there."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def unscale(self, optimizer: Optimizer) -> None:
        """Take the scale out of the gradients that are there; `step` does it where this was not called."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        """Change the parameters, unless a gradient is no finite number; then the scale is less the next time."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """Empty where losses are not scaled."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scaler.load_state_dict(state)
