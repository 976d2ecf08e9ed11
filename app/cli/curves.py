"""`stagetree export --curves`: what a study measured, for benchmarks and simulations, instead of how it came about."""

from __future__ import annotations

import json
from collections.abc import Iterator

from app.cli.errors import NOT_FOUND, fail


def curves(log: str, study: str) -> Iterator[str]:
    """The study's traces, line by line, from a log that `export` printed."""
    from app.domain.evolve import fold
    from app.domain.ids import StudyId
    from app.events.export import parse
    from app.simulation.traces import record

    plan = fold(event for _, event in parse(log.splitlines()))
    if study not in plan.studies:
        fail(f"the log holds no study {study}", NOT_FOUND)
    for line in record(plan, plan.studies[StudyId(study)]):
        yield json.dumps(line) + "\n"
