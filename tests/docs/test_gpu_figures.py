"""Which claims about a GPU hold, by figures that were measured there: no GPU is needed to tell."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from benchmarks.gpu_figures import CLAIMS

GOOD: dict[str, Any] = {
    "tests": {"passed": 47, "failed": 0, "skipped": 0},
    "step": {"measured": {name: {"ratio": 1.0} for name in ("a step", "a hand-over", "saving", "loading")}},
    "packs": {
        "models": [
            {
                "model": name,
                "ratio": {"1": 0.5, "4": 3.5, "8": 4.0, "64": 7.0},
                "advised": {"1": [0, 1.0], "64": [64, 7.0]},
            }
            for name in ("mlp", "digits", "charlm")
        ]
    },
    "adapters": {"models": [{"model": name, "ratio": {"8": 5.0}} for name in ("lora", "qlora")]},
    "recorded": {
        "models": [
            {"model": name, "ratio": {"1": 2.0, "4": 8.0, "8": 9.0}, "advised": {"1": [1, 2.0]}}
            for name in ("mlp", "digits", "charlm")
        ]
    },
}


def verdicts(found: dict[str, Any]) -> list[str]:
    return [claim.line(found)[0] for claim in CLAIMS]


def test_all_claims_hold_by_good_figures() -> None:
    assert set(verdicts(GOOD)) == {"held"}


def test_nothing_is_said_of_what_did_not_run() -> None:
    tests = {"passed": 0, "failed": 0, "skipped": 47}
    failed = {"tests": tests, "step": {"failed": 1}, "packs": {"models": []}, "recorded": {"failed": 1}}
    assert set(verdicts(failed)) == {"not seen"}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("tests", "failed"), 1),
        (("step", "measured", "a step", "ratio"), 1.2),
        (("packs", "models", 0, "ratio", "64"), 5.9),
        (("packs", "models", 2, "ratio", "8"), 1.9),
        (("packs", "models", 1, "advised", "1"), [1, 1.3]),
        (("recorded", "models", 0, "ratio", "4"), 4.9),
        (("recorded", "models", 1, "ratio", "1"), 0.9),
    ],
    ids=str,
)
def test_one_bad_figure_breaks_its_claim(place: tuple[Any, ...], value: Any) -> None:
    found = deepcopy(GOOD)
    *path, last = place
    inner = found
    for each in path:
        inner = inner[each]
    inner[last] = value
    assert verdicts(found).count("not held") == 1
