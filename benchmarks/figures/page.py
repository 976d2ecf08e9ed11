"""Make `docs/figures.md` and its pictures of what the figures have kept: `python -m benchmarks.figures.page`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from benchmarks.figures.simulated import DATA, ROOT, Json

DOCS = ROOT / "docs"
HERE, THEIRS = "#0072b2", "#c8c8c8"
Bar = tuple[str, float, float | None]
"""The quantity; its value here; its value in the paper."""

TEXT = """# The papers' figures

Each figure of the papers that can be made without their clusters is one command here, on virtual slots: the scheduler,
the tuners and the search plan are the product's own, and only the steps are not trained. Learning curves are drawn so
that they branch where trials do; a stage takes up to a tenth more or less than its steps; loading, evaluating and
saving take their time. Compared is the same product with and without sharing (`merge: false`), which the papers
call Hippo-Trial and found as fast as Ray Tune. Blue is here, grey is the paper. `make figures` makes this page.

## One study: Hippo Figure 12, TreeML Figure 6.1

`python -m benchmarks.figures.single_study`: {single_slots} slots, the mean of {single_seeds} draws.

{single_table}

![Times less slot time and time to the end, here and in the paper](pictures/figure-single-study.svg)

Slot time is saved by as much as the merge rate where all trials are trained to their end, and by more where early
stopping leaves the stages that are shared most, as the papers found. The time to the end has a bound that no order of
work can beat, since a trial's own steps come one after the other and the winner is trained for 100 steps more: it is in
the last column. The papers' factor is above it since their steps were not equal: 402.66 GPU-hours for the 13,540 steps
of ResNet56 by SHA are 107 s a step alone, while with sharing the winner's 220 steps took 5.76 hours,
which leaves 94 s a step at most.

## Several studies: Hippo Figures 13 and 14, TreeML Figures 6.2 and 6.3

`python -m benchmarks.figures.several_studies`: {several_slots} slots, the mean of {several_seeds} draws.

{several_table}

![Times less slot time by several studies at once](pictures/figure-several-studies.svg)

The papers report at most {much[0]} times less slot time and {much[1]} times less time to the end for the set that
shares much, and {little[0]} and {little[1]} times for the other. They do not list their spaces: these are drawn for
merge rates near theirs. Each study stops early by SHA, and its remaining steps are shared more than the merge rate
says.

## Orders of work: TreeML Figure 6.4

`python -m benchmarks.figures.scheduling`: hours to the end, at a merge rate of {merge_rate}, where the paper has 3.55.

{order_table}

The paper has the critical path 1.27 times as fast as most children first under ASHA. That does not come out, and the
bound says why: by grid, the critical path is within {worst_grid} % of what no order can beat, so that there is nothing
left to win, for any order. Under ASHA it is within {worst_asha} % of a bound that knows in advance which trials will
be promoted, which no scheduler does: on few slots orders differ either way, by whose results come first.

## Stragglers and dropped jobs: ASHA Figure 7

`python -m benchmarks.figures.stragglers`: {straggler_slots} slots, {until:.0f} units of
time, the mean of {straggler_seeds} draws.

{straggler_table}

As in the paper, ASHA trains more trials to the end, {fewest} to {most} times as many, and has its first sooner. A
dropped job costs less here than there, since it resumes from its last checkpoint.

## Elsewhere

- HyperDrive's time to a target: [POP](tuners/pop.md#how-good-it-is).
- Pack's packed Hyperband, and packs of one to 64 models: [measurements](measurements.md).
- Savings of SHA and ASHA on recorded curves: `benchmarks/sha_savings.py`.
"""


def main() -> None:
    single, several, order, stragglers = map(read, ("single_study", "several_studies", "scheduling", "stragglers"))
    values = {
        "single_slots": single["slots"],
        "single_seeds": single["seeds"],
        "single_table": single_table(single),
        "several_slots": several["slots"],
        "several_seeds": several["seeds"],
        "several_table": several_table(several),
        "much": several["paper"]["much"],
        "little": several["paper"]["little"],
        "merge_rate": order["merge_rate"],
        "order_table": order_table(order),
        "worst_grid": worst(order, "grid"),
        "worst_asha": worst(order, "ASHA"),
        "straggler_slots": stragglers["slots"],
        "until": stragglers["until"],
        "straggler_seeds": stragglers["seeds"],
        "straggler_table": straggler_table(stragglers),
        "fewest": min(times_as_many(stragglers)),
        "most": max(times_as_many(stragglers)),
    }
    (DOCS / "figures.md").write_text(TEXT.format(**values))
    save("single-study", single_bars(single))
    save("several-studies", several_bars(several))


def read(name: str) -> Json:
    kept: Json = json.loads((DATA / f"{name}.json").read_text())
    return kept


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def single_table(data: Json) -> str:
    header = ("study", "merge rate", "paper's", "slot time, times less", "paper", "to the end", "paper", "at most")
    return table(header, [_single_row(name, row) for name, row in data["rows"].items()])


def _single_row(name: str, row: Json) -> Sequence[object]:
    rate, slot, end = row["paper"]
    return name, row["merge_rate"], rate, row["slot_time"], slot, row["end_to_end"], end, row["at_most"]


def several_table(data: Json) -> str:
    header = ("shares", "studies", "merge rate", "paper's", "slot time, times less", "to the end, times less")
    fields = ("sharing", "studies", "merge_rate", "paper_merge_rate", "slot_time", "end_to_end")
    return table(header, [[row[field] or "" for field in fields] for row in data["rows"]])


def order_table(data: Json) -> str:
    names = list(data["rows"][0]["hours"])
    header = ("tuner", "slots", "bound", *(name.replace("_", " ") for name in names))
    return table(header, [(row["tuner"], row["slots"], row["bound"], *row["hours"].values()) for row in data["rows"]])


def worst(data: Json, tuner: str) -> int:
    """By how many per cent the critical path is longer than the bound, at most."""
    return max(
        round(100 * (row["hours"]["critical"] / row["bound"] - 1)) for row in data["rows"] if row["tuner"] == tuner
    )


def straggler_table(data: Json) -> str:
    header = (
        "spread of times",
        "dropped a unit",
        "SHA to the end",
        "ASHA to the end",
        "SHA's first at",
        "ASHA's first at",
    )
    rows = [
        (row["spread"], row["drop"], row["sha"][0], row["asha"][0], row["sha"][1], row["asha"][1])
        for row in data["rows"]
    ]
    return table(header, rows)


def times_as_many(data: Json) -> list[float]:
    """Trials that ASHA trains to the end, over trials of SHA."""
    return [round(row["asha"][0] / row["sha"][0], 1) for row in data["rows"]]


def single_bars(data: Json) -> list[Bar]:
    bars = list[Bar]()
    for name, row in data["rows"].items():
        bars += [(f"{name}: slot time", row["slot_time"], row["paper"][1])]
        bars += [(f"{name}: to the end", row["end_to_end"], row["paper"][2])]
    return bars


def several_bars(data: Json) -> list[Bar]:
    return [
        (f"{row['studies']} sharing {row['sharing']}: {name}", row[field], None)
        for name, field in (("slot time", "slot_time"), ("to the end", "end_to_end"))
        for row in data["rows"]
    ]


ROW, LEFT, WIDTH = 30, 230, 640


def save(name: str, bars: Sequence[Bar]) -> None:
    """A bar for each, with the paper's behind it."""
    unit = (WIDTH - LEFT - 50) / max(max(here, paper or 0) for _, here, paper in bars)
    rows = "".join(_bar(number, bar, unit) for number, bar in enumerate(bars))
    size = f'viewBox="0 0 {WIDTH} {ROW * len(bars) + 10}" width="{WIDTH}" height="{ROW * len(bars) + 10}"'
    (DOCS / "pictures" / f"figure-{name}.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="system-ui, sans-serif" font-size="12">'
        f'<title>Times less than without sharing</title><rect width="100%" height="100%" fill="#ffffff"/>{rows}</svg>\n'
    )


def _bar(number: int, bar: Bar, unit: float) -> str:
    name, here, paper = bar
    top = ROW * number + 8
    drawn = f'<text x="{LEFT - 8}" y="{top + 13}" text-anchor="end">{escape(name)}</text>'
    if paper is not None:
        drawn += f'<rect x="{LEFT}" y="{top + 9}" width="{paper * unit:.1f}" height="10" fill="{THEIRS}"/>'
    drawn += f'<rect x="{LEFT}" y="{top}" width="{here * unit:.1f}" height="{10 if paper else 16}" fill="{HERE}"/>'
    return drawn + f'<text x="{LEFT + here * unit + 5:.1f}" y="{top + 11}">{here}</text>'


if __name__ == "__main__":
    main()
