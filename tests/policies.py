"""All policies: those of the service, and those that only benchmarks compare."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

from app.scheduling.policies import Policy

POLICIES: dict[str, Policy] = run_path(str(Path(__file__).parents[1] / "benchmarks" / "policies.py"))["COMPARED"]
