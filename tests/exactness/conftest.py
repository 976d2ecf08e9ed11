from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "workers"))

from alone import Alone


@pytest.fixture(scope="session")
def alone() -> Iterator[Alone]:
    made = Alone()
    yield made
    made.close()
