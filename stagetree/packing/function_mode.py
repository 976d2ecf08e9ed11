"""A mode that is asked for what torch's attention of many heads calls, too, and not for the whole of it only."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from types import FunctionType
from typing import Any

from torch.nn import functional
from torch.overrides import TorchFunctionMode

CALLED = ("linear", "scaled_dot_product_attention")
"""Functions of torch's that it calls, and for which a mode is asked."""

PARTS = ("_in_projection_packed", "_in_projection", "multi_head_attention_forward")
"""Its parts: functions of Python's, which call them."""


class Inside(TorchFunctionMode):
    """Asks `called` for each function of torch's.

    torch hands a function that is written in Python to a mode as a whole, and has left the mode while that runs: of the
    attention of `nn.MultiheadAttention`, and so of `nn.TransformerEncoderLayer`, a mode would see nothing.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.multi_head_attention_forward:
            return self._many_heads(*args, **(kwargs or {}))
        return self.called(func, args, kwargs or {})

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a function."""
        raise NotImplementedError

    @cached_property
    def _many_heads(self) -> Callable[..., Any]:
        """torch's own code, in which the names of functions that it calls stand for `called`."""
        names = {**vars(functional), "has_torch_function": lambda _: False}
        for name in CALLED:
            names[name] = partial(self._call, getattr(functional, name))
        for name in PARTS:
            torchs: FunctionType = getattr(functional, name)
            names[name] = FunctionType(torchs.__code__, names, name, torchs.__defaults__, torchs.__closure__)
        return names[PARTS[-1]]  # type: ignore[no-any-return]

    def _call(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.called(func, args, kwargs)
