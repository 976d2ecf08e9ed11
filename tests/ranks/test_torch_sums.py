"""`parallel: ddp`, and `fsdp` without shards: the sums of torch, exact on the number of ranks in the plan's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bench import Bench
from in_ddp import InDdp

from app.workers.warm import Warm
from stagetree.runtime import inexact_reasons
from stagetree.runtime.failures import TrainerFailed
from stagetree.trainer.ranks import group as ranks

HP = {"lr": 0.01, "bs": {"family": "values", "values": [64, 96], "milestones": [4]}}


@pytest.fixture(scope="module")
def four(warm: Warm) -> Iterator[Bench]:
    """Four ranks."""
    made = Bench(warm, "in_ddp")
    yield made
    made.close()


def train(four: Bench, parallel: str, stages: list[int], **args: Any) -> tuple[str, Any]:
    return four.train([(4, until) for until in stages], args, HP, parallel=parallel)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp:4", "fsdp:4"])
@pytest.mark.parametrize("args", [{}, {"micro_batch_size": 9}])
def test_resumed_training_has_the_bits_of_uninterrupted_training(
    four: Bench, parallel: str, args: dict[str, Any]
) -> None:
    assert train(four, parallel, [3, 6], **args) == train(four, parallel, [6], **args)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp:4", "fsdp:4"])
def test_smaller_passes_learn_the_same_up_to_rounding(four: Bench, parallel: str) -> None:
    """Also when some ranks have one more pass, and buckets have another order."""
    calm = {"norm": "layer", "dropout": 0.0}
    (one, whole), (other, smaller) = (
        train(four, parallel, [6], **calm, **more) for more in ({}, {"micro_batch_size": 15})
    )
    assert smaller == pytest.approx(whole, rel=1e-3) and one != other


@pytest.mark.slow
def test_ddp_without_a_warm_up_sums_in_another_order(four: Bench) -> None:
    """The warm-up pass before loading prevents this."""
    assert train(four, "ddp:4", [3, 6], forgets_to_warm_up=True) != train(four, "ddp:4", [6], forgets_to_warm_up=True)


@pytest.mark.parametrize(
    ("parallel", "args", "said"),
    [
        ("ddp:2", {}, "2 ranks are part of the study's results, with parallel: ddp, not 1"),
        ("ddp:1", {"shards": 4}, "needs a trainer without shards"),
    ],
)
def test_incompatible_arguments_are_refused(
    parallel: str, args: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks.here(), "parallel", parallel)
    with pytest.raises(ValueError, match=said):
        InDdp(seed=0, device="cpu", **args)


def test_states_record_how_nccl_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the tree does not depend on NCCL's settings; the order of NCCL does."""
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: (2, 27, 5))
    for name, value in ranks.PINNED.items():
        monkeypatch.setenv(name, value)
    before = {"torch": "2.13.0", "nccl": "of another model"}
    for parallel, device, said in (
        ("ddp:2", "cuda:0", "2.27.5 Ring Simple"),
        ("fsdp:2", "cuda:0", "2.27.5 Ring Simple"),
        ("tree", "cuda:0", None),
        ("fsdp", "cuda:0", None),
        ("ddp:2", "cpu", None),
    ):
        noted = ranks.Ranks(0, 2, parallel=parallel).with_nccl_settings(before, device)
        assert noted == {"torch": "2.13.0"} | ({"nccl": said} if said else {})
    there, here = ({"nccl": version, "torch": "2.13.0"} for version in ("2.27.5 Ring Simple", "2.27.5 Tree Simple"))
    assert inexact_reasons.changes(there, here) == [
        "resumed under another NCCL (2.27.5 Tree Simple after 2.27.5 Ring Simple)"
    ]


def test_another_number_of_ranks_is_refused(four: Bench) -> None:
    with pytest.raises(TrainerFailed, match="2 ranks are part of the study's results, with parallel: ddp, not 4"):
        four.begin(4, {}, parallel="ddp:2")
