"""Where the calls that only Linux has are missing, a study runs to its end, with the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from stacks import ROOT, TOYS
from toys import grid

WITHOUT = (ROOT / "tests" / "without_linux.py").read_text()

RUNTIME = ("buffers", "check", "dcp", "deadline", "determinism", "digests", "state_format", "trainer_process")
RUNTIME += ("weight_files",)
"""The tests of training processes, without tests that read /proc."""

MEASURES_MEMORY = "test_training_reports_the_memory_of_its_own_model"


def linux_free_environment(folder: Path) -> dict[str, str]:
    """The environment of a Python in which the calls are missing."""
    (folder / "sitecustomize.py").write_text(WITHOUT)
    given = {name: value for name, value in os.environ.items() if name != "STAGETREE_TEST_PART"}
    return {**given, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


@pytest.mark.slow
def test_a_study_completes_without_linux_features(tmp_path: Path) -> None:
    environment = linux_free_environment(tmp_path)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(grid("elsewhere")))
    command = [sys.executable, "-P", "-m", "stagetree", "run", "study.yaml", "--slots", "1", "-o", "json"]
    whole = [*command, "--trainers", TOYS[0]]
    done = subprocess.run(
        whole, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    study = json.loads(done.stdout)
    assert study["state"] == "completed" and study["not_exact"] == []


@pytest.mark.slow
def test_tests_of_training_processes_pass_without_linux_features(tmp_path: Path) -> None:
    files = [str(ROOT / "tests" / "runtime" / f"test_{name}.py") for name in RUNTIME]
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", f"not {MEASURES_MEMORY}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=ROOT, env=linux_free_environment(tmp_path), capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_calls_are_missing(tmp_path: Path) -> None:
    """Otherwise the tests above would try nothing."""
    code = "import os; from stagetree.system import files, processes; print(files.lists_descriptors(), " \
        "hasattr(os, 'pidfd_open'), [*processes.fields_of_processor()])"  # fmt: skip
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=linux_free_environment(tmp_path), capture_output=True, text=True, check=True)
    assert done.stdout == "False False []\n"
