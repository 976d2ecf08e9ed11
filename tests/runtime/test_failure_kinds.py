"""Whose fault an error is, and which part of it is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer, function_trainer
from stagetree.runtime.failures import MAX_LENGTH, TrainerFailed, kind_of, plain, signature_of, user_code
from stagetree.runtime.model import HpTimeline, Model


def wrap(error: BaseException, *, in_sight: bool = True) -> BaseException:
    """The error of code that catches another one."""
    try:
        try:
            raise error
        except BaseException as caught:
            raise ValueError("wrapped") from (caught if in_sight else None)
    except ValueError as raised:
        return raised


def raise_and_describe(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


ACCELERATOR = [torch.AcceleratorError] if hasattr(torch, "AcceleratorError") else []
"""Older torch has a RuntimeError for it."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("CUDA error"), "exception"),
        (KeyboardInterrupt(), "exception"),
        (MemoryError(), "out_of_memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory"),
        (raise_and_describe(lambda: torch.zeros(10**15)), "out_of_memory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "device"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), "device"),
        *((kind("device-side assert"), "device") for kind in ACCELERATOR),
        (RuntimeError("shapes do not fit"), "exception"),
        (wrap(MemoryError()), "out_of_memory"),
        (wrap(RuntimeError("CUDA error: misaligned address")), "device"),
        (wrap(MemoryError(), in_sight=False), "exception"),
    ],
)
def test_an_error_is_of_one_kind_however_it_is_wrapped(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind


def test_an_error_that_is_its_own_context_is_no_endless_loop() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    assert kind_of(one) == "exception"


def test_every_error_of_user_code_is_the_users() -> None:
    for error in (ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()):
        with pytest.raises(TrainerFailed) as failed, user_code():
            raise error
        assert failed.value.kind == "exception" and type(error).__name__ in failed.value.error


def test_a_metric_beyond_floats_is_refused_in_a_sentence() -> None:
    """It was a traceback through our own files."""
    huge = function_trainer("huge", lambda seed, device: {}, lambda state, hp: None, lambda state: {"loss": 10**400})
    model = Model.build(huge, {}, 0, "cpu")
    with pytest.raises(TrainerFailed) as failed:
        model.evaluate()
    assert failed.value.error.startswith("TypeError: evaluate must return a dict of numbers, got 1000")


def test_text_is_bounded_and_can_be_stored_anywhere() -> None:
    text = plain("begin" + "\udcff\0ü" * MAX_LENGTH + "end")
    assert len(text) < 10 * MAX_LENGTH and text.startswith("begin\\udcff\\x00ü") and text.endswith("end")
    assert text.encode() and "\0" not in text


def test_equal_errors_have_equal_signatures_and_others_do_not() -> None:
    def fail(text: str) -> None:
        raise ValueError(text)

    one, other = (raise_and_describe(lambda text=text: fail(text)) for text in ("at 0x7f01", "at 0x7f02"))  # type: ignore[misc]
    assert signature_of(one) == signature_of(other) and " in fail, test_failure_kinds.py:" in signature_of(one)
    assert signature_of(one) != signature_of(raise_and_describe(lambda: int("x")))


def test_a_signature_has_the_users_line_and_not_the_librarys() -> None:
    error = raise_and_describe(lambda: torch.nn.Linear(2, 2)(torch.ones(3)))
    assert signature_of(error).startswith("RuntimeError in <lambda>, test_failure_kinds.py:")


class Plain(TorchTrainer):
    def make_optimizer(self, hp: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters())

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return self.model(batch[0]).sum()


def test_our_own_refusals_are_sentences_and_other_errors_tracebacks() -> None:
    data = TensorDataset(torch.ones(4, 2))
    args = {"model": torch.nn.Linear(2, 1), "train_data": data, "valid_data": data}
    model = Model.build(Plain, args, 0, "cpu")
    with pytest.raises(TrainerFailed, match=r"\AValueError: hyper-parameter 'speed' is none of the optimizer's \("):
        model.set_up({"speed": 1})
    with pytest.raises(TrainerFailed, match=r"torch_trainer\.py(?s:.*)KeyError: 'model'"):
        model.load({"trainer": {}}, HpTimeline({"lr": 0.1}), 1)
