"""Dropout that draws other numbers in a pack than alone is packed, with a notice; larger errors are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kinds import NETS, Usual
from lanes import DEVICE, distance, is_packed, new_pack, on_a_cpu, train_alone, train_packed, weights
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from stagetree import TorchTrainer
from stagetree.packing import Profile
from stagetree.packing.batched import Batched, decompose_attention
from stagetree.packing.gradient_check import DrawRecorder

WIDTH = 4
FIRST_OTHER = "encoder.dropout1" if DEVICE == "cpu" else "encoder.self_attn"
HP = {"lr": 0.05, "bs": 8}
PRECISIONS: list[dict[str, str]] = [{"dtype": "float64"}, {"dtype": "float32"}, {"precision": "bf16"}]


def packing_verdict(kind: type[TorchTrainer] = Usual, **how: Any) -> tuple[str, Profile | None]:
    """The reason why a trainer is not packed, and its profile otherwise."""
    pack = new_pack(WIDTH, [0], kind, batches_per_step=1, **how)
    assert not train_packed(pack, {0: HP}, 1)
    return pack.unpackable_reason, pack.profile()


@pytest.mark.slow
@pytest.mark.parametrize("numbers", PRECISIONS, ids=str)
def test_the_stock_transformer_layer_is_packed_and_its_draws_are_said_to_differ(numbers: dict[str, str]) -> None:
    unpackable_reason, profile = packing_verdict(net="encoding", **numbers)
    assert not unpackable_reason
    assert profile is not None and profile.other_draws == FIRST_OTHER and not profile.is_exact


@pytest.mark.slow
@pytest.mark.parametrize("net", [pytest.param("dropping", marks=on_a_cpu), "convolving", "attending"])
def test_draws_that_are_those_of_the_model_alone_are_not_said_to_differ(net: str) -> None:
    _, profile = packing_verdict(net=net)
    assert profile is not None and not profile.other_draws


def test_only_the_draws_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dropout, a packed transformer layer equals the one alone."""
    with_dropout = NETS["encoding"]
    assert distance_to_single("encoding") > 1e-4 or torch.__version__ < "2.7"  # which happens to draw the same
    monkeypatch.setitem(NETS, "encoding", lambda: remove_dropout(with_dropout()))
    assert distance_to_single("encoding") < 1e-9


def distance_to_single(net: str) -> float:
    how = {"net": net, "dtype": "float64", "batches_per_step": 1}
    pack = new_pack(WIDTH, [0], Usual, **how)
    assert not train_packed(pack, {0: HP}, 2) and not pack.unpackable_reason
    return distance(weights(pack[0]), weights(train_alone(HP, 2, Usual, **how)))


def remove_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model


class Turned(nn.Module):
    """The smallest that draws other numbers in a pack."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.dropout, self.scores = nn.Linear(6, 7), nn.Dropout(0.4), nn.Linear(7, 10)

    def forward(self, numbers: Tensor) -> Tensor:
        mixed = self.mixed(torch.stack([numbers, numbers.flip(1)]))  # 2, samples, 7
        return self.scores(self.dropout(mixed.transpose(0, 1)).mean(dim=1))


@pytest.mark.slow
@pytest.mark.parametrize("numbers", PRECISIONS, ids=str)
def test_dropout_on_a_transposed_tensor_draws_others(monkeypatch: pytest.MonkeyPatch, numbers: dict[str, str]) -> None:
    monkeypatch.setitem(NETS, "turned", Turned)
    unpackable_reason, profile = packing_verdict(net="turned", **numbers)
    assert not unpackable_reason and profile is not None and profile.other_draws == "dropout"


class Attention(nn.Module):
    """Attention that drops some of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.scores = nn.Embedding(11, 12), nn.Linear(12, 11)

    def forward(self, ids: Tensor) -> Tensor:
        found = self.letters(ids).unflatten(-1, (3, 4)).transpose(1, 2)
        mixed = scaled_dot_product_attention(found, found, found, dropout_p=0.2, is_causal=True)
        return self.scores(mixed.transpose(1, 2).flatten(2)).flatten(0, 1)


@on_a_cpu
def test_dropout_within_attention_is_packed_with_the_draws_of_the_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETS, "attending", Attention)
    unpackable_reason, profile = packing_verdict(net="attending", dtype="float64")
    assert not unpackable_reason and profile is not None and not profile.other_draws
    assert distance_to_single("attending") < 1e-12


class Kernels(TorchFunctionMode):
    """Notes for each attention whether it may be one kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.may_be_one: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is scaled_dot_product_attention:
            self.may_be_one.append(torch.backends.cuda.flash_sdp_enabled())
        return func(*args, **(kwargs or {}))


def test_attention_that_drops_is_taken_apart_wherever_it_is_called() -> None:
    """On an H100, the fused kernel of `nn.MultiheadAttention` drew other numbers, and the model was refused."""
    layer, numbers = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True), torch.randn(2, 3, 8)
    with Kernels() as kernels, DrawRecorder(layer).record_modules():
        layer(numbers, numbers, numbers, need_weights=False)
        layer.eval()(numbers, numbers, numbers, need_weights=False)
    assert kernels.may_be_one == [False, True]


def test_attention_that_drops_has_the_digits_that_autocast_gives_it_alone() -> None:
    """On an H100, autocast decomposed it, and one part has no gradient in bf16."""
    numbers = torch.randn(3, 2, 4, 5, 8, device=DEVICE)

    def attention(numbers: Tensor) -> Tensor:
        with Batched(3):
            return scaled_dot_product_attention(numbers, numbers, numbers, dropout_p=0.3)

    with (
        torch.autocast(numbers.device.type, torch.bfloat16),
        decompose_attention(),
        DrawRecorder(nn.Identity()).record_modules(),
    ):
        torch.manual_seed(0)
        packed = torch.func.vmap(attention, randomness="same")(numbers)
        torch.manual_seed(0)
        alone = scaled_dot_product_attention(numbers[0], numbers[0], numbers[0], dropout_p=0.3)
    assert packed[0].equal(alone) and packed.dtype == torch.bfloat16


class Larger(nn.Module):
    """Its output is another in a pack."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, numbers: Tensor) -> Tensor:
        return numbers * (1 + self.by * is_packed(numbers.sum()))


@pytest.mark.parametrize("numbers", PRECISIONS, ids=str)
@pytest.mark.parametrize("by", [0.03, 0.09, 2.0])
def test_a_loss_that_is_wrong_by_hundredths_is_refused_with_the_name_of_the_module(
    monkeypatch: pytest.MonkeyPatch, numbers: dict[str, str], by: float
) -> None:
    """Once losses with errors below a tenth were packed in bf16."""
    monkeypatch.setitem(NETS, "larger", lambda: nn.Sequential(nn.Linear(6, 9), Larger(by), nn.Linear(9, 10)))
    unpackable_reason, profile = packing_verdict(net="larger", **numbers)
    assert profile is None
    assert unpackable_reason.startswith(
        "packed, its loss is another: the first module with another output is `1` (Larger)"
    )


class Outside(Usual):
    """Its loss depends on a value outside all modules."""

    def loss(self, batch: list[Tensor]) -> Tensor:
        loss = super().loss(batch)
        return loss * (1.03 if is_packed(loss) else 1)


def test_where_every_module_gives_the_same_the_loss_itself_is_another() -> None:
    unpackable_reason, _ = packing_verdict(Outside, net="relu")
    assert unpackable_reason.startswith("packed, its loss is another, though all modules give the same")
