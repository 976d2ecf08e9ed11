"""The first picture of the README: its study of cooldowns as one trunk with its branches, and what sharing saves.

    python -m tools.readme_figure        writes docs/pictures/cooldowns-light.svg and cooldowns-dark.svg

The study is the first file in the README, and the numbers come from `stagetree preview`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
INTO = ROOT / "docs" / "pictures"
STUDY_FILE = re.compile(r"^```yaml\n# cooldowns\.yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)

WIDTH, HEIGHT = 880, 372
LEFT, RIGHT, TRUNK, FAN = 40, 590, 126, 34
"""The ends of the epochs, the height of the trunk, and the distance between the ends of branches."""
BARS, BAR = 268, 22
NAMES = ("paper", "ink", "soft", "line", "accent", "good")
COLOURS = {
    "light": dict(zip(NAMES, ("#fdfdfc", "#1d2126", "#5c6570", "#c9cfd6", "#1f63d0", "#00795a"), strict=True)),
    "dark": dict(zip(NAMES, ("#14171b", "#e6e9ed", "#a0a9b4", "#454d57", "#78a9ff", "#3fbf95"), strict=True)),
}


@dataclass(frozen=True)
class Ladder:
    """A study of cooldowns. starts: the epochs after which the decays of its trials begin."""

    steps: int
    starts: tuple[int, ...]
    alone: int
    unique: int

    @property
    def saved(self) -> int:
        return round(100 * (1 - self.unique / self.alone))


def ladder() -> Ladder:
    """The README's study, as it is previewed."""
    found = STUDY_FILE.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found, "the README has no cooldowns.yaml"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cooldowns.yaml"
        file.write_text(found[1], encoding="utf-8")
        command = [sys.executable, "-m", "stagetree", "preview", str(file), "-o", "json"]
        shown = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    return of_preview(shown)


def of_preview(shown: dict[str, Any]) -> Ladder:
    starts = sorted(each["value"] for each in shown["choices"] if each["field"] == "lr.stable_until")
    return Ladder(shown["alone"] // shown["trials"], tuple(starts), shown["alone"], shown["unique"])


def svg(shown: Ladder, theme: str) -> str:
    colours, trials = COLOURS[theme], len(shown.starts)
    words = f"One trunk with {trials} cooldowns: {shown.unique} epochs are trained instead of {shown.alone}"
    question = f"{trials} trials of {shown.steps} epochs. Until its decay begins, each trains what the others train."
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" font-family="system-ui, -apple-system, Segoe UI, sans-serif">',
        f"<title>{words}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{colours["paper"]}"/>',
        text(LEFT, 40, "Which cooldown is best?", colours["ink"], 22, "600"),
        text(LEFT, 66, question, colours["soft"], 15),
        *tree(shown, colours),
        *bars(shown, colours),
        "</svg>\n",
    ]
    return "\n".join(parts)


def tree(shown: Ladder, colours: dict[str, str]) -> Iterator[str]:
    """The trunk, as wide as trials share it, and a branch for each decay. The earliest one ends lowest."""
    many, places = len(shown.starts), [LEFT, *(across(shown, start) for start in shown.starts)]
    for number, start in enumerate(shown.starts):
        x, y = across(shown, start), TRUNK + FAN * (many - 1 - number)
        yield path(f"M{x:g} {TRUNK}C{x + 16:g} {y:g} {x + 16:g} {y:g} {RIGHT} {y:g}", 3, colours)
        yield f'<circle cx="{RIGHT}" cy="{y:g}" r="5" fill="{colours["accent"]}"/>'
        yield text(RIGHT + 16, y + 5, f"decay over {shown.steps - start} epochs", colours["ink"], 15)
    for number, (begin, end) in enumerate(pairwise(places)):
        yield path(f"M{begin:g} {TRUNK}H{end:g}", 4 + 3 * (many - number), colours)
    yield text(LEFT, TRUNK - 20, f"trained once, for {many} trials", colours["accent"], 15, "600")
    yield text(LEFT, TRUNK + 32, "epoch 0", colours["soft"], 13)
    yield text(across(shown, shown.starts[0]) - 14, TRUNK + 32, str(shown.starts[0]), colours["soft"], 13, anchor="end")


def path(line: str, width: int, colours: dict[str, str]) -> str:
    return f'<path d="{line}" stroke="{colours["accent"]}" stroke-width="{width}" fill="none"/>'


def bars(shown: Ladder, colours: dict[str, str]) -> Iterator[str]:
    """The epochs without and with sharing, on one scale."""
    whole = RIGHT - LEFT
    for row, (steps, colour, label) in enumerate(
        ((shown.alone, colours["line"], "each alone"), (shown.unique, colours["accent"], "with stagetree"))
    ):
        y, width = BARS + row * (BAR + 10), whole * steps / shown.alone
        yield f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3" fill="{colour}"/>'
        yield text(LEFT + width + 16, y + 16, f"{steps} epochs {label}", colours["ink"], 15)
    saving = f"{shown.saved} % saved. Every trial has the bits that it would have alone."
    yield text(LEFT, BARS + 2 * (BAR + 10) + 22, saving, colours["good"], 16, "600")


def across(shown: Ladder, step: int) -> float:
    return LEFT + (RIGHT - LEFT) * step / shown.steps


def text(x: float, y: float, words: str, colour: str, size: int, weight: str = "400", anchor: str = "start") -> str:
    look = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x:g}" y="{y:g}" {look}>{words}</text>'


def main() -> None:
    shown = ladder()
    for theme in COLOURS:
        (INTO / f"cooldowns-{theme}.svg").write_text(svg(shown, theme), encoding="utf-8")


if __name__ == "__main__":
    main()
