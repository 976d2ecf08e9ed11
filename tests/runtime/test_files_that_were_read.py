"""Data files that a process reads are noted, and nothing else that it opens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

READER = """
import json, os, sys
from pathlib import Path
from stagetree.runtime import reading

reading.watch()
reading.watch()  # once is enough
import colorsys, helper  # code is no data
Path("rows.csv").read_text()
open(b"weights.bin", "rb").close()
open(os.open("config.yaml", os.O_RDONLY)).close()
Path("log.txt").write_text("begun")
Path("log.txt").read_text()
open("state.json", "r+").close()
Path(".cache/tokens").read_text()
open("/dev/null").close()
open("/etc/hostname").close()
for name in ("nowhere", "a\\0b"):
    try:
        open(name)
    except (OSError, ValueError):
        pass
os.chdir("..")
Path("rows.csv").read_text()
print(json.dumps(reading.data_files()))
"""


def test_only_data_files_are_told_by_their_whole_paths_in_the_order_in_which_they_were_read(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    (folder / ".cache").mkdir(parents=True)
    for name in ("rows.csv", "../rows.csv", "weights.bin", "config.yaml", "state.json", ".cache/tokens", "helper.py"):
        (folder / name).touch()
    (folder / "read.py").write_text(READER)
    done = subprocess.run([sys.executable, "read.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = [folder / "rows.csv", folder / "weights.bin", folder / "config.yaml", tmp_path / "rows.csv"]
    assert json.loads(done.stdout) == [str(name) for name in names]
