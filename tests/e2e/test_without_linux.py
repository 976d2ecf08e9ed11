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

WITHOUT = """
import builtins, ctypes, io, os, signal, socket

for module, names in {
    os: ("memfd_create", "pidfd_open", "eventfd", "sched_getaffinity"),
    signal: ("pidfd_send_signal",),
    socket: ("SO_PEERCRED",),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

def is_hidden(path):
    return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(("/proc", "/sys"))

def without(call):
    def guarded(path=".", *rest, **more):
        if is_hidden(path):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return call(path, *rest, **more)
    return guarded

builtins.open = io.open = without(io.open)
os.listdir, os.readlink, os.scandir = without(os.listdir), without(os.readlink), without(os.scandir)
exists = os.path.exists
os.path.exists = lambda path: not is_hidden(path) and exists(path)

class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("prctl", "inotify_init1", "inotify_add_watch"):
            raise AttributeError(name)
        return super().__getattr__(name)

ctypes.CDLL = Library
"""
"""A `sitecustomize` that takes them away: prctl, inotify, pidfds, memfds, procfs and the peers of sockets."""


@pytest.mark.slow
def test_a_study_runs_to_its_end_without_what_only_linux_has(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(grid("elsewhere")))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-P", "-m", "stagetree", "run", "study.yaml", "--slots", "1", "-o", "json"]
    whole = [*command, "--trainers", TOYS[0]]
    done = subprocess.run(
        whole, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    study = json.loads(done.stdout)
    assert study["state"] == "completed" and study["not_exact"] == []
