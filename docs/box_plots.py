"""Draws how soon each policy reached the target, as in Figures 7 and 12 of the HyperDrive paper.

python docs/box_plots.py benchmarks/data/pop_times.jsonl        writes docs/pictures/pop.svg

The file is what `benchmarks/pop.py --save` wrote. A box holds the middle half of the orders, its line is the median,
and the whiskers go from the best order to the worst. What never came lies at the right edge.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Times = dict[str, list[float]]
"""Of each policy the minutes of each order, ascending; infinite where the target was never reached."""

POLICIES = ("pop", "bandit", "early_term", "asha")
FIGURE_SLOTS = 5
COLUMNS, PANEL, ROW = 2, 330, 17
LEFT, TOP, WIDTH = 70, 24, 240
HEIGHT = TOP + ROW * len(POLICIES) + 26
COLOURS = {"pop": "#0072b2"}
OTHER = "#7f7f7f"


def read(lines: Sequence[str]) -> dict[str, Times]:
    """By workload, in the order of the file."""
    workloads: dict[str, Times] = {}
    for line in map(json.loads, lines):
        if line["slots"] == FIGURE_SLOTS and line["policy"] in POLICIES:
            minutes = sorted(math.inf if each is None else each / 60 for each in line["seconds"])
            workloads.setdefault(line["workload"], {})[line["policy"]] = minutes
    return workloads


def svg(workloads: dict[str, Times]) -> str:
    """All workloads, two side by side."""
    rows = -(-len(workloads) // COLUMNS)
    panels = "".join(
        f'<g transform="translate({PANEL * (number % COLUMNS)} {HEIGHT * (number // COLUMNS)})">{panel(*item)}</g>'
        for number, item in enumerate(workloads.items())
    )
    size = f'viewBox="0 0 {PANEL * COLUMNS} {HEIGHT * rows}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="system-ui, sans-serif" font-size="10">'
        f'<title>Time to the target</title><rect width="100%" height="100%" fill="#ffffff"/>{panels}</svg>\n'
    )


def panel(workload: str, times: Times) -> str:
    """A workload: a box for each policy, over a scale of minutes."""
    edge = max(time for minutes in times.values() for time in minutes if math.isfinite(time)) * 1.05
    name = workload.removeprefix("imdb_").split("-curves")[0]
    boxes = "".join(
        box(number, policy, times[policy], edge) for number, policy in enumerate(POLICIES) if policy in times
    )
    return f'<text x="{LEFT}" y="14" font-weight="600">{name}</text>{boxes}{scale(edge)}'


def box(number: int, policy: str, minutes: Sequence[float], edge: float) -> str:
    least, low, middle, high, most = (x_of(quantile(minutes, share), edge) for share in (0, 0.25, 0.5, 0.75, 1))
    y, colour = TOP + ROW * number + ROW / 2, COLOURS.get(policy, OTHER)
    never = sum(not math.isfinite(time) for time in minutes)
    words = f'<text x="{LEFT + WIDTH + 2}" y="{y + 3:.0f}" font-size="8">{never}x never</text>' if never else ""
    return (
        f'<text x="{LEFT - 6}" y="{y + 3:.0f}" text-anchor="end">{policy}</text>'
        f'<path d="M{least:.1f} {y:.1f}H{most:.1f}" stroke="{colour}"/>'
        f'<rect x="{low:.1f}" y="{y - 5:.1f}" width="{max(high - low, 0.5):.1f}" height="10" fill="{colour}"'
        f' fill-opacity="0.3" stroke="{colour}"/>'
        f'<path d="M{middle:.1f} {y - 5:.1f}v10" stroke="#000000" stroke-width="1.6"/>{words}'
    )


def scale(edge: float) -> str:
    y = TOP + ROW * len(POLICIES) + 4
    marks = "".join(
        f'<path d="M{x_of(value, edge):.1f} {y}v4" stroke="#000000"/>'
        f'<text x="{x_of(value, edge):.1f}" y="{y + 13}" text-anchor="middle">{value:g}</text>'
        for value in ticks(edge)
    )
    return f'<path d="M{LEFT} {y}h{WIDTH}" stroke="#000000"/>{marks}<text x="6" y="{y + 13}">minutes</text>'


def ticks(edge: float) -> Iterator[float]:
    """Four or so round numbers from 0 on."""
    step = 10 ** math.floor(math.log10(edge / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if edge / (step * factor) <= 5)
    return (round(step * number, 6) for number in range(int(edge / step) + 1))


def quantile(minutes: Sequence[float], share: float) -> float:
    return minutes[math.floor(share * (len(minutes) - 1))]


def x_of(minutes: float, edge: float) -> float:
    return LEFT + WIDTH * min(minutes / edge, 1.0)


def main(arguments: list[str]) -> None:
    workloads: dict[str, Any] = read(Path(arguments[0]).read_text().splitlines())
    (Path(__file__).parent / "pictures" / "pop.svg").write_text(svg(workloads))


if __name__ == "__main__":
    main(sys.argv[1:])
