"""Writes docs/measurements.md from the figures on record: `python -m tools.measurements`.

`benchmarks/data/measurements.jsonl` has a line for each figure. To record one, run its command, and add a line or
change the one that is there, with the date and the commit that was measured; then run this. A test compares the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "data" / "measurements.jsonl"
PAGE = ROOT / "docs" / "measurements.md"

MACHINES = {
    "cpu": "a virtual machine with two to four cores and no GPU, Python 3.11, nothing else running",
    "cpu-busy": "the same, with other work on it",
    "h100": "one NVIDIA H100",
}

GUIDE = {
    "The reference study": "[Examples](examples.md) describes it.",
    "From stage to stage": "[How a stage runs](how-a-stage-runs.md) says what happens there.",
    "The API and the page": "[The page](page.md) is drawn by this code.",
    "Estimates and simulation": "`benchmarks/makespan.py` says in its docstring what a simulation has of a run.",
    "Agents": "[Agents](agents.md) describes the tools. Both ways run one study to an answer, four characters a token.",
    "Several ranks": "On gloo. [Several devices](several-gpus.md) explains the tree and the shards.",
    "Packs": "[Packing](packing.md) says when it pays. Liu et al. (2020) have 5 times for four MLPs on a GPU.",
    "Search": "[Samplers](samplers.md#trunks) and [ASHA](tuners/asha.md#cooldowns-at-rungs) explain these comparisons.",
    "Learning curves and POP": "[Curves](curves.md) and [POP](tuners/pop.md) explain the models. The tasks are ones on"
    " which no constant was chosen.",
}
"""What to read beside the figures of a subject."""

HEAD = """# Measurements

<!-- `python -m tools.measurements` writes this page from benchmarks/data/measurements.jsonl: change that file. -->

Each figure is a result of the command above its table, run from a checkout. Where two things are compared, the command
runs both in turn. The value is the median of the runs, or the worse end where only a range is on record. *Recorded* is
the day and the commit with which the figure came into this record.

| machine | description |
|---|---|
"""

FOOT = """
## Without figures here

- [Beside other tools](peers.md): `python -m benchmarks.peers` runs Optuna, Ray Tune, Syne Tune and NePS on three tasks.
- `python benchmarks/pop_choosing.py --data FOLDER` plays the workloads on which POP's rules were chosen.
- `make gpu-figures` runs everything that needs a GPU, and says for each claim whether it held.
"""


@dataclass(frozen=True)
class Figure:
    """A line of the record. spread: how far the runs were apart, or what the value is compared with. goal: the limit
    that was set before."""

    subject: str
    what: str
    value: float
    unit: str
    spread: str
    goal: str
    command: str
    machine: str
    commit: str
    date: str

    def row(self) -> str:
        """Of its table."""
        value = f"{self.value:,}" if self.value >= 10_000 else f"{self.value}"
        recorded = f"{self.date}, `{self.commit}`"
        return f"| {self.what} | {value} | {self.unit} | {self.spread} | {self.goal} | {self.machine} | {recorded} |"


def figures() -> list[Figure]:
    """Those on record. Raises TypeError for a line that lacks a field or has another one."""
    return [Figure(**json.loads(line)) for line in DATA.read_text().splitlines()]


def page(recorded: list[Figure]) -> str:
    """The page as it must be."""
    machines = "".join(f"| {name} | {what} |\n" for name, what in MACHINES.items())
    sections = (_section(subject, [*some]) for subject, some in groupby(recorded, lambda figure: figure.subject))
    return HEAD + machines + "".join(sections) + FOOT


def _section(subject: str, some: list[Figure]) -> str:
    beside = [GUIDE[subject], ""] if subject in GUIDE else []
    return "\n".join(["", f"## {subject}", "", *beside, *_tables(some)])


def _tables(some: list[Figure]) -> Iterator[str]:
    for command, rows in groupby(some, lambda figure: figure.command):
        yield from (f"`{command}`", "")
        yield from ("| what | value | unit | spread | goal | machine | recorded |", "|---|---|---|---|---|---|---|")
        yield from (figure.row() for figure in rows)
        yield ""


if __name__ == "__main__":
    PAGE.write_text(page(figures()))
