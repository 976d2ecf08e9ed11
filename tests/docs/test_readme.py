"""The steps of the README work as written, and a test runs each block of every page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs_pages import DOCS, PAGES, ROOT, Block, blocks, prose

from app.cli.demo import NEXT
from app.simulation.preview import preview
from stagetree.spec import StudySpec

README = ROOT / "README.md"
WALKS = {
    "test_readme.py": ["README.md", "curves.md"],
    "test_first_hour.py": [
        *["first-hour.md", "rest-api.md", "trainers.md"],
        *["several-gpus.md", "sequences.md", "spaces-and-studies.md"],
    ],
    "../examples/test_ported.py": ["adapters.md"],
    "test_tutorials.py": ["write-a-space.md", "asha-tutorial.md", "recipes.md"],
    "test_python_pages.py": ["sdk.md", "coming-from-optuna.md", "coming-from-ray-tune.md", "coming-from-wandb.md"],
    "../cli/test_commands.py": ["sinks.md"],
    "../examples/test_flagship.py": ["which-decay.md"],
    "test_figures.py": ["merge-or-decay.md"],
    "test_guide.py": ["index.md", "sharing.md"],
    "../tuners/test_custom.py": ["writing.md"],
    "../cli/test_slurm.py": ["slurm-and-kubernetes.md"],
}
"""The tests that run the programs and commands of each page. Study files without more are parsed in test_pages.py."""

OTHER_TERMINAL = ("stagetree up", "stagetree submit", "stagetree watch", "stagetree open")
"""What the README does with a server, as the first hour does."""


def test_every_page_is_walked() -> None:
    for page in PAGES:
        languages = {block.language for block in blocks(page)}
        if languages & {"python", "sh"}:
            [test] = [Path(__file__).parent / test for test, pages in WALKS.items() if page.name in pages]
            assert page.name in test.read_text(), f"{page.name} is not run by {test.name}"


def test_blocks_without_a_language_are_commands_of_elsewhere() -> None:
    """They are shown, not run: they install, wait for ever, or are for another machine."""
    ours = ("up", "api", "worker", "sinks", "token", "backup", "erase", "archive")
    others = ("make ", "docker ", "helm ", "redis-server ", "curl -N", "celery ", "alembic ", "uvicorn ", "pip ")
    elsewhere = (*(f"stagetree {name}" for name in ours), *others, "STAGETREE_", "nvidia-cuda-mps-control ")
    for page in PAGES:
        for block in blocks(page):
            if block.language == "" and "eval-rst" not in block.text:
                assert block.text.startswith(elsewhere), f"{page.name}: {block.text}"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which the demo was run, with fewer steps, and with the files that the README shows."""
    folder = tmp_path_factory.mktemp("checkout")
    for block in blocks(README):
        if block.language in ("python", "yaml"):
            (folder / block.text.splitlines()[0].removeprefix("# ")).write_text(block.text)
    (folder / "examples").symlink_to(ROOT / "examples")
    said = _stagetree(folder, "demo", "--set", "tuner.max_steps=1", "--slots", "2")
    assert "Kept in .stagetree (" in said.stderr
    return folder


@pytest.mark.slow
def test_what_the_readme_and_the_demo_propose(ran: Path) -> None:
    proposed = dict.fromkeys([*re.findall(r"`(stagetree [^`]*)`", prose(README)), *NEXT])
    elsewhere = (*OTHER_TERMINAL, "stagetree run cooldowns.yaml", "stagetree demo")  # which have tests of their own
    here = [command for command in proposed if not command.startswith(elsewhere)]
    assert len(here) >= 5
    for command in here:
        assert _stagetree(ran, *command.split()[1:]).stdout, command


def test_what_the_readme_shows_is_run_here_or_in_the_first_hour() -> None:
    walked = {block.text for block in blocks(DOCS / "first-hour.md")}
    shown = [block.text for block in blocks(README) if block.language in ("python", "yaml")]
    assert len(shown) == 3 and walked.issuperset(text for text in shown if text != _cooldowns().text)


def _cooldowns() -> Block:
    [study] = [block for block in blocks(README) if block.file == "cooldowns.yaml"]
    return study


def _counts(printed: str) -> list[str]:
    """The lines of a result that count steps. Time and verification steps differ from run to run."""
    counted = re.findall(r"^(?:steps|  +[-\d]|saved).*$", printed, re.MULTILINE)
    return [re.split(", about|, and", line)[0] for line in counted if "wsd" not in line]


@pytest.mark.slow
def test_the_first_study_prints_what_the_readme_shows(ran: Path) -> None:
    [shown] = [block.text for block in blocks(README) if block.language == "text"]
    printed = _stagetree(ran, "run", "cooldowns.yaml", "--slots", "2").stdout
    assert len(_counts(shown)) == 2 and _counts(printed) == _counts(shown)


def _share_saved(spec: dict[str, Any]) -> float:
    found = preview(StudySpec.from_dict(spec), slots=1)
    return 1 - found["unique"] / found["requested"]


def test_sharing_saves_what_the_readme_says() -> None:
    """The table of the section "When it pays", counted by the preview, as it says."""
    pays = re.search(r"## When it pays\n(.*?)\n## ", README.read_text(), re.DOTALL)[1]  # type: ignore[index]
    tails = yaml.safe_load(_cooldowns().text)
    [(low, high)] = re.findall(r"\| cooldown tails .* one seed to four \| (\d+) to (\d+) % \|", pays)
    one, four = (tails | {"repeats": {"seeds": seeds, "from": "branch"}} for seeds in (1, 4))
    assert [100 * _share_saved(one), 100 * _share_saved(four)] == pytest.approx([int(low), int(high)], abs=0.7)
    rate = {"family": "wsd", "peak": {"choice": [0.01, 0.02, 0.05]}, "warmup": 10, "decay": {"ratio": 0.2}}
    sweep = {**tails, "space": {"lr": rate, "max_steps": [1000, 2000, 4000]}}
    assert "about a third" in pays and _share_saved(sweep) == pytest.approx(1 / 3, abs=0.02)
    drawn = {"lr": {"loguniform": [1e-3, 1e-1]}, "momentum": {"uniform": [0, 0.99]}}
    draws = {"kind": "random", "num_trials": 12, "max_steps": 100}
    assert "nothing" in pays and _share_saved({**tails, "space": drawn, "tuner": draws}) == 0


def test_the_readme_compares_with_optuna_as_the_peers_page_does() -> None:
    measured = re.findall(
        r"^\| (?:stagetree|Optuna) \| \d+ \| ([\d.]+) \|", (DOCS / "peers.md").read_text(), re.MULTILINE
    )
    assert len(measured) == 6  # a row of each for the ladder, the grid and ASHA
    for ours, theirs in (measured[:2], measured[4:]):
        said = rf"took {re.escape(ours)} s, where Optuna's( program)? took {re.escape(theirs)} s"
        assert re.search(said, " ".join(README.read_text().split()))


def _stagetree(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stagetree", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done


def test_the_programs_about_curves() -> None:
    """curves.md, with the curves of some trials that ended."""
    from app.search.curves import Curve

    steps = tuple(range(10, 101, 10))
    ended = [Curve(steps, tuple(0.5 + 0.03 * trial - 1 / step for step in steps)) for trial in range(8)]
    names: dict[str, object] = {"known": ended}
    for block in blocks(DOCS / "curves.md"):
        exec(compile(block.text, "curves.md", "exec"), names)
    assert names["first"]
