"""`stagetree import`: from a file of another tool to a study that previews."""

from __future__ import annotations

from pathlib import Path

from commandline import Stagetree

SWEEP = """
method: random
project: paper
run_cap: 4
metric: {name: loss, goal: minimize}
parameters:
  lr: {distribution: log_uniform_values, min: 1e-4, max: 0.1}
  word: {values: ['1e-3', 'no']}
  epochs: {value: 6}
"""


def test_a_sweep_becomes_a_study_that_previews(stagetree: Stagetree, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    study = tmp_path / "study.yaml"
    said = stagetree("import", tmp_path / "sweep.yaml", "--trainer", "not-installed", "--to", study)
    assert said.code == 0 and said.out == ""
    assert "Note: parameters.epochs: is max_steps here, 6" in said.err and f"stagetree preview {study}" in said.err
    assert study.read_text().startswith("# project: is left out: sinks: [wandb:paper]")
    assert stagetree("preview", study, "-o", "json").json["requested"] == 24
    printed = stagetree("import", tmp_path / "sweep.yaml", "--trainer", "not-installed")
    assert printed.out == study.read_text()
    found = stagetree("import", tmp_path / "sweep.yaml", "--trainer", "t", "-o", "json").json
    assert found["study"]["space"]["word"] == ["1e-3", "no"] and len(found["notes"]) == 2


def test_missing_values_are_requested_by_name(stagetree: Stagetree, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("{method: random, parameters: {lr: }}")
    said = stagetree("import", path)
    assert said.code == 2 and said.out == ""
    for option in ("--trainer", "--metric", "--mode", "--max-steps", "--num-trials"):
        assert f"or {option}" in said.err
    assert f"{path}: parameters.lr: must have value, values, or min and max" in said.err
    path.write_text("{a: 1}")
    assert f"{path}: is none of" in stagetree("import", path).err
    assert "cannot be read" in stagetree("import", tmp_path / "nowhere.yaml").err
