"""The page on processes and threads says what the code does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from docs_pages import DOCS, ROOT

WORKERS = ROOT / "app" / "workers"
PAGE = (Path(DOCS) / "how-a-stage-runs.md").read_text(encoding="utf-8")
FILES = sorted(path.relative_to(WORKERS) for path in WORKERS.rglob("*.py"))

PLACES = (
    "any process",
    "any thread",
    "a worker's main process",
    "the interpreter that workers are forked from",
    "the process that runs a worker's tasks",
    "the thread that trains",
    "the outbox's thread",
    "the saver's thread",
    "the heartbeat's thread",
    "the sender's thread",
    "the message's thread",
    "the preparation's thread",
    "the notifier's thread",
    "the tick's thread",
    "the ticking thread",
    "the retention thread",
)
"""Where a file of workers may run."""


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of the tables, without their heads."""
    lines = [line.strip("| ") for line in text.splitlines() if line.startswith("|") and not line.startswith("|--")]
    return [[cell.strip() for cell in line.split(" | ")] for line in lines][1:]


def test_each_file_of_workers_says_where_it_runs() -> None:
    """After the purpose of the module, in a last paragraph."""
    for file in FILES:
        text = ast.get_docstring(ast.parse((WORKERS / file).read_text(encoding="utf-8"))) or ""
        last = " ".join(text.split("\n\n")[-1].split())
        assert last.startswith("Runs on: ") and last.endswith(".") and "\n\n" in text, file
        assert last.removeprefix("Runs on: ").startswith(PLACES), f"{file} runs on none of {PLACES}"


def test_the_page_names_each_thread() -> None:
    named = [row[0] for row in rows(section("The threads"))]
    assert sorted(named) == sorted(place for place in PLACES if "thread" in place and not place.startswith("any"))


def test_there_is_no_thread_that_the_page_does_not_name() -> None:
    made = set[str]()
    for file in FILES:
        text = (WORKERS / file).read_text(encoding="utf-8")
        made |= set(re.findall(r'(?:WorkerThread(?:\[\w+\])?|PeriodicThread)\("(\w+)"|spawn\("(\w+)"', text))
    names = {first or second for first, second in made}
    of_slots = {"outbox", "saver", "heartbeat", "sender", "message", "preparation", "notifier"}
    assert names == of_slots | {"ticking", "retention"}
    assert all(any(name in row[0] for row in rows(section("The threads"))) for name in names)


def parts_of_a_tick() -> Iterator[str]:
    """What `Scheduler._tick` calls, in the order in which that is done."""
    tree = ast.parse((WORKERS / "scheduler" / "tick.py").read_text(encoding="utf-8"))
    (tick,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "_tick"]
    calls = [node for node in ast.walk(tick) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda call: (call.end_lineno, call.end_col_offset)):
        name = ast.unparse(call.func)
        if name.startswith("self._") and not name.startswith("self._frontiers.usable"):
            yield name.removeprefix("self._")


def test_the_parts_of_a_tick_are_those_of_the_page_in_their_order() -> None:
    named = [name for row in rows(section("A tick")) for name in re.findall(r"`([\w.]+)`", row[0])]
    done = list(parts_of_a_tick())
    # the second one, where the reaper ended a chain
    assert done[:3] == ["cluster.look", "reaper.reap", "cluster.look"]
    assert named == [*done[:2], *done[3:]]


def test_what_the_page_says_of_files_is_there() -> None:
    for name in re.findall(r"`((?:app|stagetree)/[\w/.]+)`", PAGE):
        assert (ROOT / name).exists(), name
    assert (WORKERS / "slot" / "group.py").exists()
