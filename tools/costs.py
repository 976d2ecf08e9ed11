"""What tests cost in processor time, dearest first: `python -m tools.costs FILE [--by folder|file|function|test]`.

FILE is written by `STAGETREE_TEST_COSTS=FILE python -m pytest ...`.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections import defaultdict
from pathlib import Path


def group(line: dict[str, str], by: str) -> str:
    """What a line is a part of. A fixture that tests share stands for itself, and is a part of its first test too."""
    name = line["name"]
    if line["what"] != "test":
        return f"({line['what']} {name})"
    file = name.partition("::")[0]
    return {
        "folder": "/".join(file.split("/")[:2]),
        "file": file,
        "function": name.partition("[")[0],
        "test": name,
    }[by]


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--by", choices=["folder", "file", "function", "test"], default="folder")
    parser.add_argument("--most", type=int, default=40)
    given = parser.parse_args()
    cost: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    total = 0.0
    for line in map(json.loads, given.file.read_text().splitlines()):
        row = cost[group(line, given.by)]
        row[0], row[1], row[2] = row[0] + line["seconds"], row[1] + line["wall"], row[2] + 1
        total += line["seconds"] if line["what"] != "fixture" else 0
    print(f"{'CPU s':>8} {'wall s':>8} {'times':>6}   all: {total:.0f} s of processors")
    for name, (seconds, wall, times) in sorted(cost.items(), key=lambda each: -each[1][0])[: given.most]:
        print(f"{seconds:8.1f} {wall:8.1f} {times:6.0f}   {name}")


if __name__ == "__main__":
    main()
