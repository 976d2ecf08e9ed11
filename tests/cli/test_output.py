"""What people read at the end of a study."""

from __future__ import annotations

from typing import Any

import pytest

from app.cli.output import print_result


def study(executed: int, **counts: int) -> dict[str, Any]:
    return {
        "steps": {"requested": 100, "unique": 60, "executed": executed},
        "counts": {"completed": 9, "failed": 0, "cancelled": 0} | counts,
        "gpu_seconds": 2.0 * executed,
        "wall_seconds": 200.0,
        "merge_rate": 1.667,
        "metric": "score",
        "mode": "max",
        "trials": [],
    }


@pytest.mark.parametrize(
    "found, saved",
    [
        (study(60), "40 steps (40%), about 1:20"),
        (study(20), "80 steps (80%), about 2:40"),  # another study had trained the rest
        (study(50, failed=1), "40 steps (40%), about 1:20"),  # what was not trained because of a failure is not saved
        (study(10, cancelled=1), "40 steps (40%), about 1:20"),
    ],
)
def test_what_is_saved(found: dict[str, Any], saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_result(found)
    assert f"saved      {saved} of slot time; merge rate 1.667" in capsys.readouterr().out
