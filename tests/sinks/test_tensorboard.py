"""Event files, read back by TensorBoard itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stagetree.sinks import SinkError, follow, open_sink
from stagetree.sinks.tensorboard import FILE
from tests.sinks.scripted import ISOLATED, MARK, STRUCK, STUDY, Scripted, busy_study, isolated_study, write_study

SCALARS = {"tensors": 0}
"""Keep all."""


def read(folder: Path) -> dict[str, Any]:
    """By run: steps and values of each metric, and the texts."""
    runs: dict[str, Any] = {}
    for path in sorted((folder / STUDY).iterdir()):
        events = EventAccumulator(str(path), size_guidance=SCALARS).Reload()
        tags = [tag for tag in events.Tags()["tensors"] if not tag.startswith("_hparams_")]
        runs[path.name] = {tag: [_value(each) for each in events.Tensors(tag)] for tag in tags}
    return runs


def _value(each: Any) -> Any:
    tensor = each.tensor_proto
    return tensor.string_val[0].decode() if tensor.string_val else (each.step, round(_number(tensor), 3))


def _number(tensor: Any) -> float:
    from tensorboard.util.tensor_util import make_ndarray

    return float(make_ndarray(tensor))


def test_each_trial_has_a_run_with_its_whole_curve(tmp_path: Path) -> None:
    for _ in range(2):  # followed again, it gets nothing twice
        write_study(f"tensorboard:{tmp_path}")
    runs = read(tmp_path)
    assert runs["trial-0"]["accuracy"] == [(10, 0.1), (20, 0.2), (40, 0.4)]
    assert runs["trial-1"]["accuracy"] == [(10, 0.1), (20, 0.2), (30, 0.35), (40, 0.45)]
    assert [run["train/loss"] for run in runs.values()] == [[(7, 0.7), (25, 0.5)], [(7, 0.7), (27, 0.6)]]
    assert runs["trial-1"]["shared"] == [
        "Shares its steps up to 20 with trial 0: they were trained once, and are in both runs."
    ]
    assert [runs[run]["state"] for run in runs] == [["completed"], ["completed"]]


@pytest.mark.parametrize("writes", range(1, 17))
def test_a_sink_killed_after_any_write_resumes_exactly_once(tmp_path: Path, writes: int) -> None:
    write_study(f"tensorboard:{tmp_path / 'whole'}")
    address = f"tensorboard:{tmp_path / 'killed'}"
    write_study(address, killed_after=writes)
    write_study(address)
    assert read(tmp_path / "killed") == read(tmp_path / "whole")


def test_a_truncated_record_is_written_again(tmp_path: Path) -> None:
    address = f"tensorboard:{tmp_path}"
    follow(Scripted(busy_study()[:5]), STUDY, [open_sink(address)])
    for path in [*tmp_path.rglob(FILE), tmp_path / f"{STUDY}.positions.jsonl"]:
        path.write_bytes(path.read_bytes() + b"[3, tor")
    write_study(address)
    assert read(tmp_path)["trial-0"]["accuracy"] == [(10, 0.1), (20, 0.2), (40, 0.4)]
    assert read(tmp_path)["trial-1"]["accuracy"] == [(10, 0.1), (20, 0.2), (30, 0.35), (40, 0.45)]


def test_a_file_instead_of_a_folder_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="file: "):
        follow(Scripted(busy_study()), STUDY, [open_sink(f"tensorboard:{tmp_path / 'file'}")])


def test_struck_results_are_not_mixed_with_trials_trained_alone(tmp_path: Path) -> None:
    write_study(f"tensorboard:{tmp_path}", ISOLATED)
    runs = read(tmp_path)
    assert runs["trial-0"]["accuracy"] == [(10, 0.1), (20, 0.2)]
    assert runs["trial-0"]["struck"] == runs["trial-1"]["struck"] == [STRUCK]
    assert "state" not in runs["trial-0"]
    alone = [runs["trial-0-alone"], runs["trial-1-alone"]]
    assert [run["accuracy"] for run in alone] == [[(20, 0.1), (40, 0.3)], [(20, 0.15), (40, 0.35)]]
    assert [run["train/loss"] for run in alone] == [[(7, 0.8)], [(7, 0.9)]]
    assert [(run["state"], run["exactness"]) for run in alone] == [(["completed"], [MARK])] * 2


@pytest.mark.parametrize("writes", range(1, 19))
def test_a_sink_killed_around_a_strike_resumes(tmp_path: Path, writes: int) -> None:
    write_study(f"tensorboard:{tmp_path / 'whole'}", ISOLATED)
    address = f"tensorboard:{tmp_path / 'killed'}"
    write_study(address, ISOLATED, killed_after=writes)
    write_study(address, ISOLATED)
    assert read(tmp_path / "killed") == read(tmp_path / "whole")


def test_positions_before_a_strike_name_no_runs_of_trials_alone(tmp_path: Path) -> None:
    """A file of positions of an older version has no runs of trials alone."""
    address = f"tensorboard:{tmp_path}"
    follow(Scripted(isolated_study()[:6]), STUDY, [open_sink(address)])
    keys = (tmp_path / f"{STUDY}.positions.jsonl").read_text()
    assert '["point", 0, 20]' in keys and "alone" not in keys
