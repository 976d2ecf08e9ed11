"""Draws a plot of the first sequence under each heading of `sequences.md`, so page and picture cannot disagree.

python docs/plots.py        writes docs/plots/*.svg
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stagetree.sequences import Sequence, parse

STEPS = 60
WIDTH, HEIGHT = 460, 170
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 28

SECTION = re.compile(r"^## `(\w+)`$.*?^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: str) -> Iterator[tuple[str, Sequence]]:
    """Each family with the first example in its section."""
    for family, text in SECTION.findall(page):
        yield family, parse(json.loads(text))


def draw(page: Path, folder: Path) -> None:
    """One SVG a family."""
    folder.mkdir(exist_ok=True)
    for family, sequence in examples(page.read_text()):
        (folder / f"{family}.svg").write_text(svg(family, sequence.take(STEPS)))


def svg(family: str, values: list[Any]) -> str:
    """The values as a line of steps, with a dot for each."""
    low, high = bounds(values)
    points = [(x_of(t), y_of(value, low, high)) for t, value in enumerate(values)]
    half = (x_of(1) - x_of(0)) / 2
    line = " ".join(f"{x - half:.1f},{y:.1f} {x + half:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.8"/>' for x, y in points)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        f' role="img" font-family="system-ui, sans-serif" font-size="11"><title>{family}</title>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#ffffff"/>'
        f"{grid(low, high)}"
        f'<polyline points="{line}" fill="none" stroke="#0072b2" stroke-opacity="0.35" stroke-width="1.2"/>'
        f'<g fill="#0072b2">{dots}</g></svg>\n'
    )


def bounds(values: list[Any]) -> tuple[float, float]:
    low, high = float(min(values)), float(max(values))
    return (low, high) if high > low else (0.0, 2 * high)


def x_of(t: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (t + 0.5) / STEPS


def y_of(value: float, low: float, high: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)


def grid(low: float, high: float) -> str:
    parts = [
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#9aa0a6"/>',
        *(label(x_of(t), HEIGHT - BOTTOM + 16, str(t), "middle") for t in range(0, STEPS, 10)),
        *(label(LEFT - 6, y_of(value, low, high) + 4, f"{value:.4g}", "end") for value in (low, high)),
        label(WIDTH - RIGHT, HEIGHT - BOTTOM + 16, "step", "end"),
    ]
    return "".join(parts)


def label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#444746">{text}</text>'


if __name__ == "__main__":
    here = Path(__file__).parent
    draw(here / "sequences.md", here / "plots")
