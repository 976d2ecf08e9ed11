"""What only Linux has is behind one package, and each part of it has a fallback."""

from __future__ import annotations

import ast
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stagetree.system import files, folder_events, memory, processes, sockets
from tools.shape import ROOT, source_files

CALLS = re.compile(
    r"set_pdeathsig|prctl|inotify_\w+|memfd_create|pidfd_\w+|sched_getaffinity|SO_PEERCRED|madvise|mallopt"
)
FOLDERS = re.compile(r"/(proc|sys)\b")
NAMES_OF_FOLDERS = {
    "app/input_fingerprints.py",
    "stagetree/runtime/reads/file_reads.py",
    "stagetree/source/importing.py",
}
"""They list folders that hold no data of users, and read nothing there."""


def linux_only(path: Path) -> Iterator[str]:
    """The names and texts of a file that mean something on Linux only."""
    source = path.read_text()
    is_worth_parsing = CALLS.search(source) or FOLDERS.search(source)
    for node in ast.walk(ast.parse(source)) if is_worth_parsing else ():
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if CALLS.fullmatch(name):
            yield name
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (each[0] for each in [FOLDERS.match(node.value), CALLS.fullmatch(node.value)] if each)


def test_only_one_module_uses_linux_features() -> None:
    found = {str(each.path.relative_to(ROOT)): set(linux_only(each.path)) for each in source_files()}
    asking = {path for path, names in found.items() if names and not path.startswith("stagetree/system/")}
    assert asking == NAMES_OF_FOLDERS
    assert len([path for path, names in found.items() if names and path.startswith("stagetree/system/")]) >= 4


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without /proc, control groups, memfds, pidfds and the like."""
    for module in (files, memory, processes):
        monkeypatch.setattr(module, "PROC", tmp_path / "none")
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "none")
    monkeypatch.setattr(sockets, "TABLES", tmp_path / "none")
    for name in ("memfd_create", "pidfd_open", "sched_getaffinity", "posix_fallocate"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.delattr(socket, "SO_PEERCRED", raising=False)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (memory.available_bytes, 0),
        (memory.take_peak_bytes, 0),
        (lambda: memory.resident_bytes(os.getpid()), 0),
        (memory.gather_memory, None),
        (memory.keep_freed_memory, None),
        (memory.return_freed_memory, None),
        (processes.prefer_for_killing, None),
        (lambda: processes.kill_marked("A=1"), None),
        (lambda: processes.is_stopped(os.getpid()), False),
        (lambda: [*processes.fields_of_processor()], []),
        (lambda: files.loaded_libraries("python"), set()),
        (lambda: [*files.files_held("self")], []),
        (lambda: files.descriptor_path(7), "/dev/fd/7"),
        (files.lists_descriptors, False),
    ],
)
def test_where_it_is_missing_the_answer_is_that_nothing_is_known(ask: Callable[[], object], answer: object) -> None:
    assert ask() == answer


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "ask",
    [
        processes.thread_count,
        processes.children,
        files.mappings,
        memory.mapped_bytes,
        lambda: [*files.descriptors()],
        lambda: files.target(0),
        lambda: sockets.unix_owner(socket.socket(socket.AF_UNIX)),
        lambda: sockets.tcp_owner((sockets.IPv4Address("127.0.0.1"), 1), (sockets.IPv4Address("127.0.0.1"), 2)),
    ],
)
def test_missing_required_features_raise_oserror(ask: Callable[[], object]) -> None:
    with pytest.raises(OSError):
        ask()


@pytest.mark.usefixtures("elsewhere")
def test_the_machine_is_known_all_the_same() -> None:
    assert processes.usable_cores() == os.cpu_count()
    assert memory.total_bytes() > 2**20
    fd = files.anonymous_file(4096)
    try:
        assert os.fstat(fd).st_size == 4096 and os.pwrite(fd, b"x", 4095) == 1
    finally:
        os.close(fd)


def test_a_library_without_the_calls_watches_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(folder_events.ctypes, "CDLL", lambda _: object())
    events = folder_events.FolderEvents()
    assert events.watch(str(tmp_path)) == -1 and [*events.closed()] == []
    events.close()
    memory.keep_freed_memory()
    memory.return_freed_memory()


def test_closed_files_are_reported(tmp_path: Path) -> None:
    events = folder_events.FolderEvents()
    number = events.watch(str(tmp_path))
    (tmp_path / "new.csv").write_text("1")
    (tmp_path / "new.csv").read_text()
    assert [*events.closed()] == [(number, True, "new.csv"), (number, False, "new.csv")]
    events.close()


def test_a_name_of_the_kernel_is_one_processs(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"stagetree test {os.getpid()}"
    held = sockets.take_kernel_name(name)
    assert held is not None
    with held, pytest.raises(OSError, match="in use"):
        sockets.take_kernel_name(name)
    again = sockets.take_kernel_name(name)
    assert again is not None
    again.close()
