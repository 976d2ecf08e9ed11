"""Data files that a process reads are noted, and nothing else that it opens."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

READER = """
import json, os, sys
from pathlib import Path
from stagetree.runtime.reads import file_reads as reading

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
from stagetree.runtime.reads import file_reads as reading

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


def test_files_held_by_libraries_and_loader_processes_are_reported(tmp_path: Path) -> None:
    for name in ("held.h5", "log.bin", "mapped.safetensors", "copied.npy", "state.bin", "shard.arrow"):
        (tmp_path / name).write_bytes(b"0" * 4096)
    (tmp_path / "hold.py").write_text(HOLDER)
    done = subprocess.run([sys.executable, "hold.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["copied.npy", "held.h5", "mapped.safetensors", "shard.arrow"]


PICTURES = """
import json, os, sys
from pathlib import Path
from torch.utils.data import DataLoader, Dataset
from stagetree.runtime.reads import file_reads as reading

class Files(Dataset):
    def __init__(self, names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return len(Path(self.names[index]).read_bytes())

def read_files(names, workers, out):
    reading.watch()
    for size in DataLoader(Files(names), batch_size=4, num_workers=workers):
        assert size.sum() == 4
    if out:
        Path(out).write_text("a picture of mine")
    print(json.dumps(sorted(reading.data_files())), flush=True)

for line in sys.stdin:
    if os.fork() == 0:
        read_files(*json.loads(line))
        os._exit(0)
    assert os.wait()[1] == 0
"""

ReportedReads = Callable[..., list[str]]


@pytest.fixture(scope="module")
def reported_reads() -> Iterator[ReportedReads]:
    """The reported reads of a process with some workers of a data loader that reads these files and writes one.

    Each is a fork of one that has read nothing, and imported torch once for all of them.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PICTURES], stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        assert process.stdin is not None and process.stdout is not None

        def reported_reads(names: Sequence[Path], workers: int, written: Path | None = None) -> list[str]:
            for name in names:
                name.parent.mkdir(parents=True, exist_ok=True)
                name.write_text("1")
            print(json.dumps([[*map(str, names)], workers, str(written or "")]), file=process.stdin)
            told: list[str] = json.loads(process.stdout.readline())  # type: ignore[union-attr]
            return told

        yield reported_reads


@pytest.mark.parametrize("workers", [0, 2])
def test_many_files_of_one_kind_are_a_pattern_in_any_process(
    tmp_path: Path, workers: int, reported_reads: ReportedReads
) -> None:
    """More files than a pipe holds, too: a few of them tell the pattern."""
    train = [tmp_path / "train" / f"{number}-{'x' * 100}.png" for number in range(800)]
    few = [tmp_path / "val" / f"{number}.png" for number in range(4)]
    assert reported_reads([*few, *train], workers) == [f"{tmp_path}/train/*.png", *map(str, few)]


def test_few_files_of_many_classes_are_reported_as_one_pattern(tmp_path: Path, reported_reads: ReportedReads) -> None:
    classes = [tmp_path / "train" / f"class {number}" / f"{kind}.png" for number in range(20) for kind in ("a", "b")]
    assert reported_reads(classes, 2) == [f"{tmp_path}/train/*/*.png"]
    few = [tmp_path / "val" / f"class {number}" / f"{kind}.png" for number in range(4) for kind in range(8)]
    assert reported_reads(few, 0) == [f"{tmp_path}/val/*/*.png"]


LISTER = """
import ctypes, json, os, sys
from stagetree.runtime.reads import file_reads as reading

reading.watch()
library = ctypes.CDLL(None)
names = [f"{folder}/{name}".encode() for folder, _, names in os.walk("data") for name in names]
for name in (*names, b"elsewhere/unlisted.png"):
    os.close(library.open(name, os.O_RDWR if b"out" in name else os.O_RDONLY))
print(json.dumps(sorted(map(os.path.relpath, reading.data_files()))))
"""


def test_files_of_a_listed_folder_that_a_library_opens_are_reported(tmp_path: Path) -> None:
    names = ["data/a.parquet", "data/cat/1.JPG", "data/cat/2.png", "data/out.npy", "data/notes.yaml"]
    for name in (*names, "elsewhere/unlisted.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    command = [sys.executable, "-c", LISTER]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert json.loads(told) == names[:3]


def test_no_pattern_covers_written_files(tmp_path: Path, reported_reads: ReportedReads) -> None:
    names = [tmp_path / "cache" / f"{number}.npy" for number in range(20)]
    assert reported_reads(names, 2, written=tmp_path / "cache" / "new.npy") == sorted(map(str, names))
    assert reported_reads(names, 2, written=tmp_path / "cache" / "log.txt") == [f"{tmp_path}/cache/*.npy"]


def test_only_data_files_are_reported_by_path_in_order_of_reads(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    (folder / ".cache").mkdir(parents=True)
    for name in ("rows.csv", "../rows.csv", "weights.bin", "config.yaml", "state.json", ".cache/tokens", "helper.py"):
        (folder / name).touch()
    (folder / "read.py").write_text(READER)
    done = subprocess.run([sys.executable, "read.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = [folder / "rows.csv", folder / "weights.bin", folder / "config.yaml", tmp_path / "rows.csv"]
    assert json.loads(done.stdout) == [str(name) for name in names]
