"""One kernel for all lanes equals the kernel of a single model: norms, pooling, linear layers, cross-entropies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kinds import IMAGES, NETS, Usual
from lanes import assert_same, new_pack, pack_as_alone, train_alone, train_packed, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d

from stagetree.packing.batched import Product

HPS = {number: {"lr": 0.1 / (1 + number), "bs": 6} for number in range(3)}


class Frozen(nn.BatchNorm2d):
    """A normalization by fixed statistics in training, too."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(False)
        return self


class Pools(nn.Module):
    """Once what each lane has, once what all have, and once the places of the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 32, 2), nn.Linear(32 * 16 + 16 + 32 * 9, 10)

    def forward(self, images: Tensor) -> Tensor:
        mine = self.first(images)
        largest, _ = max_pool2d(mine, 3, 2, return_indices=True)
        pooled = max_pool2d(mine, 2, ceil_mode=True), max_pool2d(images, 2), largest
        return self.last(torch.cat([each.flatten(1) for each in pooled], 1))


def normal(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 32, 2, bias=False), norm, nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), last_of(288))


def last_of(inputs: int) -> nn.Module:
    return nn.Linear(inputs, 10)


class Twice(nn.Module):
    """A normalization over several dimensions, which is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(1, 4, 1), nn.LayerNorm((8, 8)), last_of(256)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.norm(self.first(self.norm(images))).flatten(1))


def layer_norms(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), norm, nn.Tanh(), last_of(32))


def norm_without_weights(norm: nn.Module) -> nn.Module:
    return norm.requires_grad_(False)


def norm_with_bias(norm: nn.LayerNorm) -> nn.Module:
    norm.weight.requires_grad_(False)
    return norm


MODELS: dict[str, Callable[[], nn.Module]] = {
    "channelled": NETS["channelled"],
    "affine": lambda: normal(nn.BatchNorm2d(32)),
    "with a bias before it": lambda: nn.Sequential(
        nn.Conv2d(1, 32, 2), nn.Tanh(), nn.BatchNorm2d(32), nn.Flatten(), last_of(32 * 49)
    ),
    "plain": lambda: normal(nn.BatchNorm2d(32, affine=False)),
    "of the batch only": lambda: normal(nn.BatchNorm2d(32, track_running_stats=False)),
    "unlearned": lambda: normal(norm_without_weights(nn.BatchNorm2d(32))),
    "frozen": lambda: normal(Frozen(32, momentum=0.3)),
    "of the data": lambda: nn.Sequential(nn.BatchNorm2d(1), normal(nn.BatchNorm2d(32))),
    "of rows": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 7, bias=False), nn.BatchNorm1d(7), nn.ReLU(), last_of(7)
    ),
    "of lines": lambda: nn.Sequential(nn.Flatten(2), nn.BatchNorm1d(1), nn.Conv1d(1, 5, 3), nn.Flatten(), last_of(310)),
    "pools": Pools,
    "layer": lambda: layer_norms(nn.LayerNorm(32)),
    "layer without a bias": lambda: layer_norms(nn.LayerNorm(32, bias=False)),
    "layer without weights": lambda: layer_norms(nn.LayerNorm(32, elementwise_affine=False)),
    "layer unlearned": lambda: layer_norms(norm_without_weights(nn.LayerNorm(32))),
    "layer of which only a bias learns": lambda: layer_norms(norm_with_bias(nn.LayerNorm(32))),
    "layer of an odd size": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.LayerNorm(7, eps=0.1), last_of(7)),
    "layer of all": lambda: normal(nn.LayerNorm((32, 7, 7))),
    "layer called twice": Twice,
}


@pytest.fixture
def images(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model by its name, which learns of images."""
    monkeypatch.setitem(NETS, "tried", MODELS[request.param])
    monkeypatch.setattr("kinds.IMAGES", (*IMAGES, "tried"))
    return "tried"


@pytest.fixture(params=["a CPU's way", "a GPU's way"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The implementation of a normalization."""
    if request.param == "a GPU's way":
        monkeypatch.setattr("stagetree.packing.batched.SLOW_GROUP_NORM_DEVICES", frozenset())
    return str(request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("images", [each for each in MODELS if each.startswith("layer")], indirect=True)
def test_a_layer_is_normalized_as_that_of_the_model_alone(images: str) -> None:
    assert_as_alone(images)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("net", ["layered", "attending", "dropping"])
def test_what_reads_a_table_and_is_normalized_twice_is_as_alone(net: str) -> None:
    assert_as_alone(net)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("numbers", [{"dtype": "float64"}, {"dtype": "float32"}, {"precision": "bf16"}], ids=str)
@pytest.mark.parametrize("net", ["layered", "attending"])
def test_a_normalized_lane_is_the_same_to_the_bit_in_any_place(net: str, numbers: dict[str, str]) -> None:
    mine, others = {"lr": 0.1, "bs": 7}, {"lr": 50.0, "bs": 7}
    by_itself, last_of_all = (
        new_pack(5, [0], Usual, net=net, **numbers),
        new_pack(5, range(5), Usual, net=net, **numbers),
    )
    assert not train_packed(by_itself, {0: mine}, 3) and not by_itself.unpackable_reason
    train_packed(last_of_all, {**dict.fromkeys(range(4), others), 4: mine}, 3)
    assert_same(weights(last_of_all[4]), weights(by_itself[0]))


@pytest.mark.parametrize("images", [each for each in MODELS if not each.startswith("layer")], indirect=True)
def test_gradients_and_buffers_are_those_of_the_model_alone(images: str) -> None:
    assert_as_alone(images)


def assert_as_alone(net: str) -> None:
    pack_as_alone(4, HPS, 3, Usual, net=net, dtype="float64")


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_linear_layers_gradients_are_right_and_lie_as_what_they_are_of(has_bias: bool) -> None:
    chance = torch.Generator().manual_seed(0)
    numbers, weight, added = (
        torch.randn(shape, generator=chance, dtype=torch.float64) for shape in ((5, 3, 2), (3, 4, 2), (3, 1, 4))
    )
    numbers = numbers.movedim(1, 0).requires_grad_()  # lanes between samples
    of = numbers, weight.requires_grad_(), added.requires_grad_() if has_bias else None
    assert torch.autograd.gradcheck(Product.apply, of) and torch.autograd.gradgradcheck(Product.apply, of)
    result = Product.apply(*of)
    gradients = torch.autograd.grad(result, [numbers, weight], torch.ones_like(result))
    assert [each.stride() for each in gradients] == [numbers.stride(), weight.stride()]


class Masked(Usual):
    """A third of its samples has no label."""

    def loss(self, batch: list[Tensor]) -> Tensor:
        labels = batch[1].flatten()
        labels = torch.where(labels % 3 == 0, torch.full_like(labels, -100), labels)
        loss = cross_entropy(self.model(batch[0]), labels)
        self.log("loss", loss)
        return loss


@pytest.mark.parametrize("net", ["relu", "attending", "convolving", "channelled"])
def test_samples_without_a_label_count_for_nothing(net: str) -> None:
    how = {"net": net, "dtype": "float64"}
    pack = pack_as_alone(4, HPS, 3, Masked, **how)
    for number, hp in HPS.items():
        assert pack[number].logged_means() == pytest.approx(train_alone(hp, 3, Masked, **how).logged_means())


def test_a_batch_of_one_number_a_channel_fails_as_it_does_alone() -> None:
    hps: dict[int, dict[str, Any]] = {0: {"lr": 0.1, "bs": 1}}
    pack = new_pack(2, hps, Narrow, net="relu")
    failed = train_packed(pack, hps, 1)
    assert "more than 1 value per channel" in failed[0].error


class Narrow(Usual):
    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        self.model = nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Linear(7, 10))
