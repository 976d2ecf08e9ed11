"""Sums that begin during the last backward pass have the bits of sums that begin after it, for any model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from early import CASES

from stagetree.trainer.ranks.summing import TreeSum


@pytest.mark.slow
def test_when_sums_begin_changes_no_bit() -> None:
    """In its own process, which has no threads when it forks the ranks."""
    script = [sys.executable, str(Path(__file__).parent / "early.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=True, timeout=600)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == CASES.keys()
    for name, (alone, after, *early) in found.items():
        assert {each["hash"] for each in (alone, after, *early)} == {alone["hash"]}, name
        assert [alone["world"], after["world"]] == [1, 2]
        assert all(each["exchanges"] > after["exchanges"] for each in early), name


def test_one_tensor_of_a_tree_is_that_of_the_whole() -> None:
    for shards in (1, 2, 4, 8):
        parts = [[torch.randn(5), torch.randn(3)] for _ in range(shards)]
        tree = TreeSum()
        for part in parts[:-1]:
            tree.add([each.clone() for each in part])
        alone = [tree.whole(number, each) for number, each in enumerate(parts[-1])]
        tree.add([each.clone() for each in parts[-1]])
        assert all(map(torch.equal, alone, tree.take()))
