"""`parallel: fsdp`: each rank holds a part of every parameter, and any number of ranks has the bits of one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from math import prod
from typing import Any

import pytest
import torch
from bench import GROWING, PATIENT, Bench
from hypothesis import given
from hypothesis import strategies as st
from in_shards import InShards

from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.checkpoints.weight_files import is_divided, join_parts
from stagetree.runtime.failures import TrainerFailed
from stagetree.trainer.data_order import BatchSpan
from stagetree.trainer.divided_tensors import Parted
from stagetree.trainer.ranks.parallel import DividedSharding
from stagetree.trainer.ranks.sharding import shards_in

SHARDS = 8
DIVIDED: dict[str, Any] = {"shards": SHARDS, "parallel": "fsdp"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        {},
        {"precision": "bf16", "average_decay": 0.5, "counts": True},
        {"micro_batch_size": 5, "counts": True},
        {"micro_batch_size": 3, "precision": "fp16", "loud_at": 64},
    ],
)
def test_one_two_and_four_ranks_have_the_bits_of_undivided_parameters(bench: Bench, args: dict[str, Any]) -> None:
    found = [bench.train([(ranks, 9)], args, **DIVIDED) for ranks in (1, 2, 4)]
    assert found[0] == found[1] == found[2] == bench.train([(1, 9)], args, shards=SHARDS)


@pytest.mark.slow
@pytest.mark.parametrize("args", [{}, {"micro_batch_size": 2, "precision": "fp16", "loud_at": 64}])
def test_parts_of_four_ranks_resume_on_two_and_on_one(bench: Bench, args: dict[str, Any]) -> None:
    """With passes of two samples, the batch of 19 at the end of the epoch has shards of one pass, and of two."""
    way = [(4, 3), (2, 5), (1, 6), (4, 8)]
    assert bench.train(way, args, **DIVIDED) == bench.train([(1, 8)], args, **DIVIDED)


def test_a_rank_holds_only_its_part(bench: Bench) -> None:
    process = bench.begin(2, {}, **DIVIDED)
    process.train(GROWING, 1, deadline=PATIENT)
    with closing(process.save(deadline=PATIENT)) as state:
        (part,) = state.parts
        header = json.loads(bytes(part.view()[8 : 8 + int.from_bytes(part.view()[:8], "little")]))
        places = json.loads(header["__metadata__"]["parted"])
        assert places["trainer.model.hidden.weight"] == {"shape": [16, 256], "begin": [8, 0]}
        assert header["trainer.model.hidden.weight"]["shape"] == [8, 256]
        assert "trainer.model.norm.running_mean" not in header  # a buffer is not divided
        assert state.total == state.size + part.size < 1.5 * state.size + 2**16


def test_a_state_without_one_of_its_parts_is_refused(bench: Bench) -> None:
    process = bench.begin(2, {}, **DIVIDED)
    process.train(GROWING, 1, deadline=PATIENT)
    with closing(process.save(deadline=PATIENT)) as state:
        state.parts[0].close()
        state.parts = ()
        with pytest.raises(ValueError, match="a part of the checkpoint is missing"):
            b"".join(join_parts([state.view()]))
        with pytest.raises(TrainerFailed, match="numbers are in no part that was read"):
            bench.begin(1, {}, **DIVIDED).call(PATIENT).load(fds=state.lend(), hp=GROWING, step=1)
        bench.end(1)


@pytest.mark.parametrize(
    ("args", "said"), [({"parallel": "ddp"}, "parallel must be tree or fsdp in a trainer, not 'ddp'")]
)
def test_unsupported_trainers_are_refused_in_a_sentence(args: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        InShards(seed=0, device="cpu", shards=4, **{"parallel": "fsdp", **args})


def test_a_batch_that_is_too_small_is_refused_on_any_number_of_ranks(bench: Bench) -> None:
    for ranks in (1, 2):
        with pytest.raises(TrainerFailed, match="a batch of 5 samples is too small for 8 shards"):
            bench.begin(ranks, {}, **DIVIDED).train({"lr": 0.1, "bs": 5}, 1, deadline=PATIENT)
        bench.end(ranks)


def test_passes_of_one_sample_over_uneven_shards_are_refused(bench: Bench) -> None:
    with pytest.raises(TrainerFailed, match="give micro_batch_size 2, or another batch size"):
        bench.begin(1, {"micro_batch_size": 1}, **DIVIDED).train({"lr": 0.1, "bs": 19}, 1, deadline=PATIENT)
    bench.end(1)


# -------------------------------------------------------------------------------------------------------- by itself


@given(samples=st.integers(8, 200), size=st.integers(2, 40))
def test_all_shards_of_a_batch_have_equally_many_passes(samples: int, size: int) -> None:
    whole, sharding = BatchSpan(0, 10, tuple(range(samples))), DividedSharding(SHARDS, 0, "cpu")
    passes = [sharding.passes(whole, shard, size) for shard in shards_in(whole, SHARDS)]
    assert len({len(each) for each in passes}) == 1
    spans = [span for each in passes for span in each]
    assert all(0 < len(span.indices) <= size for span in spans)
    assert sum((span.indices for span in spans), ()) == whole.indices
    assert [span.offset for span in spans] == [10 + span.indices[0] for span in spans]


@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    dimension=st.integers(0, 2),
    cuts=st.lists(st.integers(0, 5), max_size=3),
    data=st.data(),
)
def test_any_block_is_taken_from_any_parts(
    shape: list[int], dimension: int, cuts: list[int], data: st.DataObject
) -> None:
    whole, dimension = torch.arange(prod(shape)).view(shape), dimension % len(shape)
    ends = [0, *sorted(min(cut, shape[dimension]) for cut in cuts), shape[dimension]]
    parts = []
    for first, end in pairwise(ends):
        begin = [first if at == dimension else 0 for at in range(len(shape))]
        parts.append((begin, whole.narrow(dimension, first, end - first)))
    begin = [data.draw(st.integers(0, length)) for length in shape]
    sizes = [data.draw(st.integers(0, length - first)) for first, length in zip(begin, shape, strict=True)]
    block = whole[tuple(slice(first, first + size) for first, size in zip(begin, sizes, strict=True))]
    assert torch.equal(Parted(shape, parts).take(begin, sizes), block)
    assert torch.equal(Parted(shape, parts).whole(), whole)
    assert torch.equal(put_together(whole, parts), whole)


def put_together(whole: torch.Tensor, parts: Sequence[tuple[Sequence[int], torch.Tensor]]) -> torch.Tensor:
    """Join the parts through the images of the ranks that had them."""
    images = []
    for number, (begin, part) in enumerate(parts):
        place = json.dumps({"trainer.w": {"shape": list(whole.shape), "begin": list(begin)}})
        tree = {"tree": json.dumps({"$pairs": [["trainer", {"$pairs": [["w", {"$parted": "trainer.w"}]]}]]})}
        said = {"parted": place, **({} if number else tree)}
        bytes_ = part.contiguous().numpy().tobytes()
        entry = {"dtype": "I64", "shape": list(part.shape), "data_offsets": [0, len(bytes_)]}
        text = json.dumps({"__metadata__": said, "trainer.w": entry}).encode()
        text += b" " * (-len(text) % 8)
        images.append(len(text).to_bytes(8, "little") + text + bytes_)
    assert is_divided(images[0])
    found = state_format.unpack(b"".join(join_parts(images)))["trainer"]["w"]
    assert isinstance(found, torch.Tensor)
    return found
