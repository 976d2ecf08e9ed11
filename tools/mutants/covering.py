"""A plugin of pytest: which test executes which lines, in this process, how long each takes, and what that depends on.

MUTANTS_MAP=FILE MUTANTS_SOURCE=FOLDER:FOLDER python -m pytest -p tools.mutants.covering ...
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

from tools.mutants.made_of import made_of


def _patterns(sources: str) -> list[str]:
    return [source if source.endswith(".py") else f"{source}/*" for source in sources.split(os.pathsep)]


MEASURED = coverage.Coverage(data_file=None, include=_patterns(os.environ["MUTANTS_SOURCE"]), config_file=False)
MEASURED.start()

seconds: dict[str, float] = defaultdict(float)
failed: set[str] = set()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Lines that are executed from here on belong to this test."""
    MEASURED.switch_context(item.nodeid)
    result = yield
    MEASURED.switch_context("")
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds[report.nodeid] += report.duration
    if report.failed:
        failed.add(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Write the map: for each file and line the tests that executed it; and the files that it was learnt from."""
    MEASURED.stop()
    files = made_of(Path.cwd(), [*sys.modules.values(), *config.pluginmanager.get_plugins()])
    data = MEASURED.get_data()
    here = os.getcwd() + os.sep
    lines = {file.removeprefix(here): data.contexts_by_lineno(file) for file in data.measured_files()}
    with open(os.environ["MUTANTS_MAP"], "w", encoding="utf-8") as file:
        json.dump({"seconds": seconds, "failed": sorted(failed), "lines": lines, "made_of": files}, file)
