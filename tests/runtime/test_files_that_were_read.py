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


HOLDER = """
import ctypes, json, multiprocessing, os, sys
from stagetree.runtime import reading

reading.watch()
library = ctypes.CDLL(None)
library.mmap.restype, library.mmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, *[ctypes.c_long] * 5)
READ, WRITE, SHARED, PRIVATE = 1, 3, 1, 2
library.open(b"held.h5", os.O_RDONLY)
library.open(b"log.bin", os.O_RDWR)
mapped = ((b"mapped.safetensors", READ, SHARED), (b"copied.npy", WRITE, PRIVATE), (b"state.bin", WRITE, SHARED))
for name, rights, how in mapped:
    file = library.open(name, os.O_RDWR)
    assert library.mmap(None, 4096, rights, how, file, 0) not in (None, ctypes.c_void_p(-1).value)
    os.close(file)

def hold(told):
    library.open(b"shard.arrow", os.O_RDONLY)
    told.send(True)
    told.recv()

here, there = multiprocessing.get_context("fork").Pipe()
worker = multiprocessing.get_context("fork").Process(target=hold, args=(there,))
worker.start()
here.recv()
print(json.dumps(sorted(map(os.path.basename, reading.data_files()))))
here.send(True)
worker.join()
"""


def test_files_are_told_that_a_library_or_a_process_of_a_loader_holds(tmp_path: Path) -> None:
    for name in ("held.h5", "log.bin", "mapped.safetensors", "copied.npy", "state.bin", "shard.arrow"):
        (tmp_path / name).write_bytes(b"0" * 4096)
    (tmp_path / "hold.py").write_text(HOLDER)
    done = subprocess.run([sys.executable, "hold.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["copied.npy", "held.h5", "mapped.safetensors", "shard.arrow"]


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
