"""All that needs a GPU, by one command, without a network: tests, steps, packs; and which claims held.

    python benchmarks/gpu_figures.py [--device cuda:0] [--out gpu-figures.json] [--seconds S]

It runs `pytest -m gpu tests/gpu`, `benchmarks/gpu.py` and `benchmarks/packing.py`, the last one also with passes that
are recorded as CUDA graphs, each in a process of its own, and writes the results into one JSON file. Then a line
for each claim says whether it held: `held`, `not held`, or `not seen` where the programs did not come to it. It exits
with 1 unless all held. `make gpu-figures` is this, with its needs installed before. With `--device cpu` it is
rehearsed with small models; the tests are skipped then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

ROOT = Path(__file__).parent.parent
Found = Mapping[str, Any]

SMALL = {
    "step": ("--width", "32", "--layers", "1", "--steps", "10", "--rounds", "1"),
    "packs": ("--models", "mlp", "--widths", "1,4", "--seconds", "0.2"),
}
"""What a rehearsal asks of the programs."""

WHOLE = {"step": (), "packs": ("--widths", "1,2,4,8,16,32,64")}
ADAPTERS = ("--models", "lora,qlora", "--widths", "1,2,4,8")
"""Measured where bitsandbytes is installed."""


@dataclass(frozen=True, slots=True)
class Claim:
    """words: of the claim. seen: the figure, and whether that holds; raises `LookupError` if there is none.

    needs: a package without which it is not asked for.
    """

    words: str
    seen: Callable[[Found], tuple[str, bool]]
    needs: str = ""

    def line(self, found: Found) -> tuple[str, str]:
        """held, not held or not seen; and the claim with its measurement."""
        try:
            seen, holds = self.seen(found)
        except LookupError:
            return "not seen", self.words
        return "held" if holds else "not held", f"{self.words}: {seen}"


def _tests(found: Found) -> tuple[str, bool]:
    counts = found["tests"]
    if not counts["passed"] and not counts["failed"]:
        raise LookupError("all were skipped")
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped", not counts["failed"]


def _at_most(name: str, most: float) -> Callable[[Found], tuple[str, bool]]:
    def seen(found: Found) -> tuple[str, bool]:
        ratio = found["step"]["measured"][name]["ratio"]
        return f"{ratio:.2f}", ratio <= most

    return seen


def _model(packs: Found, name: str) -> Found:
    """Raises `LookupError` for one that was not measured."""
    return {each["model"]: each for each in packs["models"]}[name]


def _times(name: str, width: int, least: float, packs: str = "packs") -> Callable[[Found], tuple[str, bool]]:
    def seen(found: Found) -> tuple[str, bool]:
        times = _model(found[packs], name)["ratio"][str(width)]
        return f"{times:.2f}", times >= least

    return seen


def _never_slower(found: Found) -> tuple[str, bool]:
    """Of the widths that the product would choose; alone is 1."""
    chosen = {
        f"{each['model']} at {trials} of {packs}": each["ratio"][str(width)] if width else 1.0
        for packs in ("packs", "recorded")
        for each in found[packs]["models"]
        for trials, (width, _) in each["advised"].items()
    }
    if not chosen:
        raise LookupError("no model was measured")
    least = min(chosen, key=lambda name: chosen[name])
    return f"at worst {chosen[least]:.2f} times, {least}", chosen[least] >= 1.0


QUANTISES = "bitsandbytes"
CLAIMS: Sequence[Claim] = (
    Claim("every test that needs a GPU passes", _tests),
    Claim("a step takes at most 1.10 times as long as in a bare loop", _at_most("a step", 1.1)),
    Claim("a hand-over takes at most 2 times as long as one evaluation and one copy", _at_most("a hand-over", 2.0)),
    Claim("training waits for a checkpoint at most 1.5 times as long as for one copy", _at_most("saving", 1.5)),
    Claim("64 MLPs in a pack train at least 6 times as fast as one after the other", _times("mlp", 64, 6.0)),
    Claim("8 transformers in a pack train at least 2 times as fast", _times("charlm", 8, 2.0)),
    Claim(
        "4 MLPs in a recorded pack train at least 5 times as fast, as the paper's", _times("mlp", 4, 5.0, "recorded")
    ),
    Claim("8 convolutional networks, recorded, at least 5 times", _times("digits", 8, 5.0, "recorded")),
    Claim("8 transformers, recorded, at least 5 times", _times("charlm", 8, 5.0, "recorded")),
    Claim("8 sets of adapters on one Llama at least 2 times", _times("lora", 8, 2.0, "adapters"), QUANTISES),
    Claim(
        "8 sets of adapters on one Llama in four bits at least 2 times", _times("qlora", 8, 2.0, "adapters"), QUANTISES
    ),
    Claim("the width that would be chosen is never slower than alone", _never_slower),
)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """In the repository; its messages go to the terminal, and its standard output is kept."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, "PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False)


def tests(folder: Path) -> dict[str, int]:
    """How many of the tests that need a GPU passed, failed and were skipped."""
    report = folder / "tests.xml"
    done = run("-m", "pytest", "-n", "4", "-m", "gpu", "tests/gpu", f"--junitxml={report}")
    print(done.stdout, file=sys.stderr)
    if not report.exists():
        return {"passed": 0, "failed": done.returncode, "skipped": 0}
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    total, skipped = (sum(int(suite.attrib[name]) for suite in suites) for name in ("tests", "skipped"))
    failed = sum(int(suite.attrib[name]) for suite in suites for name in ("failures", "errors"))
    return {"passed": total - skipped - failed, "failed": failed, "skipped": skipped}


def measured(program: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a benchmark prints last; what went wrong if it does not come to its end."""
    done = run(f"benchmarks/{program}.py", *arguments)
    *said, last = done.stdout.splitlines() or [""]
    print(*said, sep="\n", file=sys.stderr)
    found: dict[str, Any] = {"failed": done.returncode} if done.returncode else json.loads(last)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=Path("gpu-figures.json"))
    parser.add_argument("--seconds", default="2.0", help="how long each width of packs is measured")
    given = parser.parse_args()
    is_rehearsal = given.device == "cpu"
    if not is_rehearsal and not torch.cuda.is_available():
        sys.exit("torch finds no GPU here; --device cpu rehearses the program")
    found: dict[str, Any] = {"device": given.device, "torch": torch.__version__}
    if not is_rehearsal:
        found["name"] = torch.cuda.get_device_name(given.device)
    step, packs = ((SMALL if is_rehearsal else WHOLE)[name] for name in ("step", "packs"))
    with tempfile.TemporaryDirectory() as folder:
        found["tests"] = tests(Path(folder))
    found["step"] = measured("gpu", "--json", "--device", given.device, *step)
    packs = ("--device", given.device, "--seconds", given.seconds, *packs)
    found["packs"], found["recorded"] = measured("packing", *packs), measured("packing", *packs, "--cuda-graphs")
    if find_spec(QUANTISES) and not is_rehearsal:
        found["adapters"] = measured("packing", "--device", given.device, "--seconds", given.seconds, *ADAPTERS)
    lines = [claim.line(found) for claim in CLAIMS if not claim.needs or find_spec(claim.needs)]
    found["claims"] = [{"verdict": verdict, "claim": words} for verdict, words in lines]
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(*(f"{verdict:8}  {words}" for verdict, words in lines), f"written to {given.out}", sep="\n")
    sys.exit(not all(verdict == "held" for verdict, _ in lines))


if __name__ == "__main__":
    main()
