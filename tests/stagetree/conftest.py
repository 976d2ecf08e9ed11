"""The real application, for what users import; and numbers that are computed on one thread, as slots compute them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from resuming import one_thread

from stagetree.runtime.loading import load_trainer
from stagetree.runtime.model import Model
from tests.api.conftest import app, make_app, server, trainers, use, wake_ups, workers

__all__ = ["app", "make_app", "server", "trainers", "use", "wake_ups", "workers"]


@pytest.fixture(autouse=True, scope="module")
def to_the_bit() -> Iterator[None]:
    """Several threads divide a sum by the load of the moment."""
    with one_thread():
        yield


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Builds the model of a script's text, each in a file of its own."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # where a script is, while it is run

    def build_model(text: str, **args: Any) -> Model:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        file = folder / "walk.py"
        file.write_text(text)
        return Model.build(load_trainer(file, "walk"), args, 3, "cpu")

    return build_model
