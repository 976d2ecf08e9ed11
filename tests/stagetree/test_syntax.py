"""Source is parsed in several threads at once."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from stagetree.source import syntax
from stagetree.source.syntax import syntax_tree

SOURCE = Path(syntax.__file__).parents[1].joinpath("study.py").read_bytes()


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads take turns within a parse, which they may where Python code runs in it: that of a collection."""

    def callback(*_: object) -> None:
        sum(range(50))

    before, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.callbacks.append(callback)
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*before)
    gc.callbacks.remove(callback)


def test_threads_that_parse_at_once_have_their_trees(frequent_switches: None) -> None:
    def parse(depth: int) -> int:
        return parse(depth - 1) if depth else sum(len(syntax_tree(SOURCE).body) for _ in range(20))

    with ThreadPoolExecutor(6) as pool:
        sizes = set(pool.map(parse, range(0, 42, 7)))
    assert len(sizes) == 1 and sizes.pop() > 0


def test_a_parse_that_another_thread_spoilt_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([SystemError("AST constructor recursion depth mismatch"), None])

    def spoilt(source: str, *how: str) -> object:
        if error := next(errors):
            raise error
        return ast.parse(source, *how)

    monkeypatch.setattr(syntax, "ast", SimpleNamespace(parse=spoilt))
    assert len(syntax_tree("a = 1").body) == 1


def test_invalid_python_is_reported() -> None:
    with pytest.raises(SyntaxError):
        syntax_tree("a =")
