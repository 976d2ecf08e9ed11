"""A torch function mode that also sees the calls inside torch's multi-head attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from types import FunctionType
from typing import Any

from torch.nn import functional
from torch.overrides import TorchFunctionMode

CALLED = ("linear", "scaled_dot_product_attention")
"""Functions that multi-head attention calls and that a mode must see."""

PARTS = ("_in_projection_packed", "_in_projection", "multi_head_attention_forward")
"""torch's Python functions that make up multi-head attention."""


class AttentionFunctionMode(TorchFunctionMode):
    """Passes each call of a torch function to `handle_call`.

    torch hands a function written in Python to a mode as a whole and leaves the mode while it runs. A plain mode would
    miss the attention inside `nn.MultiheadAttention` and so `nn.TransformerEncoderLayer`.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.multi_head_attention_forward:
            return self._many_heads(*args, **(kwargs or {}))
        return self.handle_call(func, args, kwargs or {})

    def handle_call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of the call."""
        raise NotImplementedError

    @cached_property
    def _many_heads(self) -> Callable[..., Any]:
        """torch's own code with its callees replaced by `handle_call`."""
        names = {**vars(functional), "has_torch_function": lambda _: False}
        for name in CALLED:
            names[name] = partial(self._call, getattr(functional, name))
        for name in PARTS:
            torchs: FunctionType = getattr(functional, name)
            names[name] = FunctionType(torchs.__code__, names, name, torchs.__defaults__, torchs.__closure__)
        return names[PARTS[-1]]  # type: ignore[no-any-return]

    def _call(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.handle_call(func, args, kwargs)
