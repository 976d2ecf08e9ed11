"""`stagetree check` finds every example exact with its study's settings: split training equals whole, bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from forks import check_in_fork, run_in_fork

from app.cli.check import check_job
from stagetree.runtime.loading import load_trainer
from stagetree.spec import StudySpec

EXAMPLES = Path(__file__).parents[2] / "examples"
AT_NIGHT = ("nanogpt/study", "titan/study", "trl/study", "trl/dpo", "lightning_cli/study", "keras/study")
AT_NIGHT += ("charlm/mixes", "lora/study", "lightning/study", "program/study", "shapes/study")
"""Each way imports a framework, starts several processes, or trains for long."""


def report_on(study: str, folder: Path, **how: Any) -> dict[str, Any]:
    spec = StudySpec.from_file(EXAMPLES / study, limits=None)
    names = ("trainer.py", f"{spec.trainer}.py", "train.py")
    file = next(file for name in names if (file := (EXAMPLES / study).with_name(name)).exists())
    job = check_job(spec, str(file), "cpu")
    assert job is not None
    if study.startswith("shapes/"):
        job["args"]["data"] = run_in_fork(draw_pictures, job["file"], folder / "data")
    report = check_in_fork({**job, **how})
    assert spec.metric in report["metrics"]
    return report


def draw_pictures(file: str, folder: Path) -> str:
    """A folder of the test's own with the pictures of that example."""
    module = sys.modules[load_trainer(file, "shapes").__module__]
    return str(module.drawn(folder))


@pytest.mark.slow
def test_a_folder_that_a_study_names_is_only_read(tmp_path: Path) -> None:
    """Otherwise a submitted study could choose a folder to write into."""
    job = check_job(
        StudySpec.from_file(EXAMPLES / "shapes/study.yaml", limits=None), str(EXAMPLES / "shapes/trainer.py"), "cpu"
    )
    assert job is not None
    report = check_in_fork({**job, "args": {**job["args"], "data": str(tmp_path / "nowhere")}, "steps": 1})
    assert "nowhere" in report["failed"]
    assert not any(tmp_path.iterdir())


def exactly(report: dict[str, Any]) -> bool:
    return (report["failed"], report["differences"], report["not_exact"]) == ("", {}, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "study",
    [
        *("reinforce/study.yaml", "partial_fit/study.yaml", "charlm/bf16.yaml", "script/study.yaml", "ema/study.yaml"),
        *(pytest.param(f"{name}.yaml", marks=pytest.mark.night) for name in AT_NIGHT),
    ],
)
def test_split_in_a_fresh_process_equals_whole(study: str, tmp_path: Path) -> None:
    # Of pictures, the break is in the middle of an epoch, and two processes read.
    assert exactly(report_on(study, tmp_path, steps=2, broken=1))


def test_a_corpus_of_another_python_is_refused() -> None:
    """Its sources are another text, whose results must not pass for results of this one."""
    trainer = load_trainer(str(EXAMPLES / "charlm/trainer.py"), "charlm")
    with pytest.raises(ValueError, match=r"'python2\.7\.1' is not here: write alice or python3"):
        trainer(seed=0, device="cpu", text="python2.7.1")
