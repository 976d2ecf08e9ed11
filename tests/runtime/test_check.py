"""`check` says of an exact trainer that it is, and of each other where it differs first and why."""

from __future__ import annotations

import json
import subprocess
import sys
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forks import check_in_fork

from stagetree.runtime.exactness.differences import first_difference, leaves

FILE = Path(__file__).with_name("inexact.py")


def job(name: str, **args: Any) -> dict[str, Any]:
    return {"file": str(FILE), "name": name, "args": args, "seed": 0, "hp": {"lr": 0.001}}


def command(job: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-P", "-m", "stagetree.runtime.check", str(folder / "report")]
    done = subprocess.run(line, input=json.dumps(job), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def check_by_command(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    command(job, folder)
    report: dict[str, Any] = json.loads((folder / "report").read_text())
    return report


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_an_exact_trainer_is_reported_exact(tmp_path: Path, workers: int) -> None:
    asked = job("exact", workers=workers)
    report = check_in_fork(asked) if workers else check_by_command(asked, tmp_path)
    assert report["failed"] == "" and report["differences"] == {}
    assert report["metrics"].keys() == {"value"}
    assert report["checkpoint_bytes"] > 1000 and report["step_seconds"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args", "ways", "words"),
    [
        ("persistent", {"workers": 2}, {"split"}, "self.loader._iterator not restored"),
        ("forgot-train", {}, {"watched"}, "evaluate() or state_dict() changes something that train() reads"),
        ("counting", {}, {"split"}, "self.chance not restored"),
        ("clock", {}, {"again", "split", "watched"}, "not repeatable even without a break"),
    ],
)
def test_an_inexact_trainer_is_reported_with_its_cause(
    name: str, args: dict[str, Any], ways: set[str], words: str
) -> None:
    differences = check_in_fork(job(name, **args))["differences"]
    assert differences.keys() == ways
    for text in differences.values():
        assert words in text and "the first is trainer.net." in text


@pytest.mark.slow
def test_a_warning_of_the_trainer_is_shown_once(tmp_path: Path) -> None:
    """Each way to train showed it again."""
    said = command(job("warned"), tmp_path).stderr
    assert tuple(
        said.count(f"UserWarning: the module {each}") for each in ("has a scheduler", "says another thing")
    ) == (1, 1), said


@pytest.mark.slow
def test_modes_that_change_nothing_are_not_blamed() -> None:
    """A moving average in evaluation mode was named where workers that outlive an epoch were the cause."""
    differences = check_in_fork(job("averaged", workers=2))["differences"]
    assert differences.keys() == {"split"}
    for text in differences.values():
        assert "self.loader._iterator not restored" in text and "self.ema" not in text


def test_long_lists_of_arrays_are_compared() -> None:
    """A replay buffer ended the check with an error of NumPy's."""
    one, other = ([(np.ones(2), {"done": torch.tensor(number == 500)}) for number in range(200)] for _ in range(2))
    assert first_difference({"buffer": one}, {"buffer": other}) == ""
    other[150][0][1] = 2
    assert first_difference({"buffer": one}, {"buffer": other}) == "1 of 1 leaves differ, the first is buffer"
    assert first_difference({"buffer": one}, {"buffer": one[1:]}) != ""


def test_no_leaf_hides_behind_another_one_of_its_name() -> None:
    one, other = ({"net.bias": value, "net": {"bias": 2.0}} for value in (1.0, 3.0))
    there, here = leaves(one), leaves(other)
    assert first_difference(there, here) == "1 of 2 leaves differ, the first is net.bias (1.0 and 3.0)"


@pytest.mark.parametrize("value, same", [(0.0, True), (-0.0, False)])
def test_the_sign_of_zero_counts(value: float, same: bool) -> None:
    assert (first_difference({"sum": 0.0}, {"sum": value}) == "") is same
    assert first_difference({"sum": nan}, {"sum": nan}) == ""


def test_differing_pickles_are_reported_as_pickles() -> None:
    assert "pickles of equal objects may differ" in first_difference({"clf": b"12"}, {"clf": b"13"})


@pytest.mark.slow
def test_equal_weights_with_different_metrics_are_reported() -> None:
    differences = check_in_fork(job("wandering"))["differences"]
    assert differences.keys() == {"watched"}
    assert all(text.startswith("of equal weights, value is ") for text in differences.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"), [("broken", "ValueError: no luck"), ("crashing", "process was ended by signal 11 (SIGSEGV)")]
)
def test_a_failure_of_the_trainer_is_reported(name: str, words: str) -> None:
    assert words in check_in_fork(job(name))["failed"]


SHARDED = Path(__file__).parents[1] / "ranks" / "in_shards.py"


def rank_job(**more: Any) -> dict[str, Any]:
    return {"file": str(SHARDED), "name": "in_shards", "args": {}, "seed": 0, "hp": {"lr": 0.01, "bs": 30}, **more}


@pytest.mark.slow
def test_ranks_with_the_same_bits_are_reported_exact() -> None:
    report = check_in_fork(rank_job(shards=4, ranks=[1, 2, 4], steps=3, broken=1))
    assert (report["failed"], report["differences"]) == ("", {})


@pytest.mark.slow
def test_torchs_own_sums_are_checked_with_the_plans_ranks() -> None:
    ddp = rank_job(parallel="ddp:2", steps=3, broken=1) | {
        "name": "in_ddp",
        "file": str(SHARDED.with_name("in_ddp.py")),
    }
    report = check_in_fork(ddp)
    assert (report["failed"], report["differences"]) == ("", {})


@pytest.mark.slow
def test_a_trainer_that_depends_on_its_rank_is_named() -> None:
    report = check_in_fork(job("ranked") | {"ranks": [2]})
    assert report["differences"].keys() == {"ranks 2"}
    assert "depends on its rank" in report["differences"]["ranks 2"]


@pytest.mark.slow
def test_an_error_in_one_rank_ends_all() -> None:
    report = check_in_fork(job("ranked", fails=True) | {"ranks": [2]})
    assert "In rank 1 of 2" in report["failed"] and "ArithmeticError" in report["failed"]


@pytest.mark.slow
def test_diverging_ranks_are_reported_without_a_wait() -> None:
    """As they would be for half an hour."""
    report = check_in_fork(job("ranked", strays=True) | {"ranks": [2]})
    assert "Detected mismatch between collectives on ranks" in report["failed"]
