"""`stagetree check` finds every example exact: as its study file has it, and split equals whole to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forks import checked

from app.cli.checking import job_of
from stagetree.spec import StudySpec

EXAMPLES = Path(__file__).parents[2] / "examples"


def report_on(study: str, folder: Path, **how: Any) -> dict[str, Any]:
    spec = StudySpec.from_file(EXAMPLES / study, limits=None)
    file = "train.py" if study.startswith("script/") else "trainer.py"
    job = job_of(spec, str((EXAMPLES / study).with_name(file)), "cpu")
    assert job is not None
    if "data" in job["args"]:
        job["args"]["data"] = str(folder / "data")
    report = checked({**job, **how})
    assert spec.metric in report["metrics"]
    return report


def exactly(report: dict[str, Any]) -> bool:
    return (report["failed"], report["differences"], report["not_exact"]) == ("", {}, [])


@pytest.mark.parametrize(
    "study",
    [
        *("shapes/study.yaml", "reinforce/study.yaml", "partial_fit/study.yaml"),
        *("charlm/bf16.yaml", "lora/study.yaml", "lightning/study.yaml", "script/study.yaml", "program/study.yaml"),
    ],
)
def test_split_in_a_fresh_process_equals_whole(study: str, tmp_path: Path) -> None:
    # Of pictures, the break is in the middle of an epoch, and two processes read.
    assert exactly(report_on(study, tmp_path, steps=2, broken=1))
