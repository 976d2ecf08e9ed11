"""What the pages name exists: links, commands and options, settings, families, tuners, routes, dependencies."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import warnings
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from docs_pages import DOCS, LINK, PAGES, ROOT, anchors, blocks, commands, links, prose, rows
from toys import SMALLEST
from typer.main import get_command

import stagetree
from app.api.access import AccessPolicy
from app.api.application import make_app
from app.cli import errors as exits
from app.cli.commands import GROUPS, command_name
from app.cli.commands import app as cli
from app.events.housekeeping import AGES
from app.settings import Settings
from app.simulation.preview import preview
from app.workers.slot.outbox import CAPACITY
from app.workers.slot.saver import BACKLOG
from stagetree.limits import LIMITS, MOST_METRICS
from stagetree.sequences import FAMILIES, parse
from stagetree.spec import StudySpec

COMMANDS: dict[str, Any] = get_command(cli).commands  # type: ignore[attr-defined]
DECISIONS = sorted(DOCS.glob("decisions/0*.md"))
WORDS = re.compile(r"(?<![\w-])(--?[a-z][a-z-]*)")
OTHER_VARIABLES = {
    *("STAGETREE_URL", "STAGETREE_TOKEN"),
    *("STAGETREE_TEST_COSTS", "STAGETREE_TEST_DATABASE_URL", "STAGETREE_TEST_PART", "STAGETREE_TEST_PICTURES"),
}
"""Variables that are no settings of the service: of the client, and of the tests."""


def test_every_link_leads_somewhere() -> None:
    assert not [(str(page), link) for page in PAGES for link in links(page) if not is_found(page, link)]


def is_found(page: Path, link: str) -> bool:
    target, _, anchor = link.partition("#")
    if "://" in link:
        return True
    found = (page.parent / target).resolve() if target else page
    if found.parent == DOCS / "plots":
        return found.stem in FAMILIES
    return found.exists() and (not anchor or anchor in anchors(found))


def test_every_command_and_option_exists() -> None:
    for page, line in ((each, line) for each in PAGES for line in commands(each)):
        name, where = [*line.split(), ""][1], f"{page}: {line}"
        if name in ("", "COMMAND", "..."):
            continue
        if name.startswith("-"):
            assert name == "--help", where
            continue
        assert name in COMMANDS, where
        command = COMMANDS[name]
        inside = getattr(command, "commands", {})  # such as `token create`; `trial STUDY` is `trial show STUDY`
        command = inside.get([*line.split(), "", ""][2], inside.get("show", command))
        known = {"--help", *(option for parameter in command.params for option in parameter.opts)}
        assert set(WORDS.findall(line.partition(" > ")[0])) <= known, where


def test_every_variable_file_and_make_target_exists_and_no_place_is_elsewhere() -> None:
    variables = {f"STAGETREE_{name.upper()}" for name in Settings.model_fields} | OTHER_VARIABLES
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    folders = "app|stagetree|docs|docker|examples|tests|benchmarks"
    for page in PAGES:
        text = page.read_text()
        named = re.findall(rf"`((?:{folders})/[\w./-]+)`", prose(page))
        wrong = {*re.findall(r"STAGETREE_[A-Z_]*[A-Z]", text)} - variables
        wrong |= {*re.findall(r"`make ([a-z]+)`", text)} - targets
        wrong |= {path for path in named if not (ROOT / path).exists()}
        assert not wrong | {*re.findall(r"/work/|/tmp/|/root/", text)}, page


RECORDS = {"index.md", "measurements.md", "merge-or-decay.md", "figures.md", "licences.md", "peers.md"}
"""Pages that scripts write from measurements, and the home page, which is nothing but links."""


def test_a_page_ends_with_what_to_read_next() -> None:
    for page in {*DOCS.glob("*.md"), *DOCS.glob("tuners/*.md")} - {DOCS / name for name in RECORDS}:
        heads = re.findall(r"^## (.*)$", prose(page), re.MULTILINE)
        last = prose(page).rpartition("## Next\n")[2]
        assert heads[-1] == "Next" and LINK.findall(last), f"{page.name} must end with a section Next of links"


# ---------------------------------------------------------------------------------------------------- the command line


def test_every_command_is_described() -> None:
    page = DOCS / "command-line.md"
    described = set(re.findall(r"`stagetree ([\w-]+)[ `]", page.read_text())) - {"COMMAND"}
    assert described == set(COMMANDS), "docs/command-line.md must have each command, and no other"


def test_every_option_is_described() -> None:
    text = (DOCS / "commands.md").read_text()
    for name, command in COMMANDS.items():
        for parameter in command.params:
            for option in parameter.opts:
                assert not option.startswith("-") or f"`{option}" in text, f"{name} {option}"


def test_tables_of_the_command_line_can_be_read() -> None:
    """Some cells had 600 characters: options are on the page of the commands."""
    page = DOCS / "command-line.md"
    cells = [cell.strip() for line in prose(page).splitlines() if line.startswith("|") for cell in line.split("|")]
    assert max(map(len, cells)) <= 360, max(cells, key=len)


def test_commands_are_described_in_the_groups_of_the_help() -> None:
    text = (DOCS / "command-line.md").read_text()
    sections = {part.partition("\n")[0]: part for part in re.split(r"^## ", text, flags=re.MULTILINE)}
    for group, places in GROUPS.items():
        for place in places:
            name = command_name(place)
            assert re.search(rf"^(\| |### )`stagetree {name}\b", sections[group], re.MULTILINE), (group, name)


def test_exit_codes() -> None:
    known = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert {int(code) for code, _ in rows(DOCS / "command-line.md", "code")} == known


# ------------------------------------------------------------------------------------------------------- study files


def test_every_setting_is_described_as_the_code_does() -> None:
    described = {cells[0].strip("`"): cells[1:] for cells in rows(DOCS / "cluster.md", "variable")}
    for name, field in Settings.model_fields.items():
        default = f"`{field.default}`" if field.default != "" else ""
        assert described.pop(f"STAGETREE_{name.upper()}") == [default, field.description]
    assert not described


def test_study_files_in_the_pages_are_valid() -> None:
    whole = 0
    for page in PAGES:
        for block in blocks(page):
            if block.language == "yaml" and "\ntrainer:" in block.text:
                StudySpec.from_dict(yaml.safe_load(block.text))
                whole += 1
    assert whole >= 3


def test_parts_of_a_study_file_fit_the_first_one() -> None:
    first, *parts = [
        yaml.safe_load(block.text) for block in blocks(DOCS / "spaces-and-studies.md") if block.language == "yaml"
    ]
    checked = [part for part in parts if part.keys() <= StudySpec.model_fields.keys()]
    assert len(checked) > 10
    draws = {"kind": "random", "num_trials": 4, "max_steps": 40}
    for part in checked:
        part = {"tuner": draws, **part} if "space" in part else part
        without = {"metric", "mode"} if "metrics" in part else set()
        without |= {"space"} if part.get("tuner", {}).get("kind") == "trials" else set()
        StudySpec.from_dict({name: value for name, value in {**first, **part}.items() if name not in without})


# --------------------------------------------------------------------------------------------------------- sequences


def test_every_family_is_described_with_its_fields() -> None:
    page = (DOCS / "sequences.md").read_text()
    sections = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(FAMILIES)
    for name, family in FAMILIES.items():
        described = re.findall(r"^\| `(\w+)` \|(.*)\|$", sections[name], re.MULTILINE)
        assert [field for field, _ in described] == [field.name for field in fields(family)]  # type: ignore[arg-type]
        for field, (_, meaning) in zip(fields(family), described, strict=True):  # type: ignore[arg-type]
            assert (field.default is not MISSING) == ("if left out" in meaning), f"{name}.{field.name}"


def test_every_example_of_a_sequence_is_of_its_family() -> None:
    found = re.findall(r"^## `(\w+)`\n.*?^```json\n(.*?)^```$", (DOCS / "sequences.md").read_text(), re.M | re.S)
    assert [parse(json.loads(text)).family for _, text in found] == [name for name, _ in found] == list(FAMILIES)


def test_schedulers_of_torch_have_the_values_of_their_sequences() -> None:
    table = rows(DOCS / "from-torch-schedulers.md", "torch")
    assert len(table) == 11
    for theirs, ours in table:
        scheduler, sequence = theirs.strip("`"), ours.strip("`")
        if scheduler.startswith("ReduceLROnPlateau"):
            assert ours.startswith("none")
            continue
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of SequentialLR
            running = eval(scheduler, {**vars(torch.optim.lr_scheduler), "opt": optimizer})
            rates = [_rate_of_step(optimizer, running) for _ in range(100)]
        [configuration] = StudySpec.from_dict(SMALLEST | {"space": {"lr": yaml.safe_load(sequence)}}).configurations()
        assert [configuration["lr"].at(step) for step in range(100)] == pytest.approx(rates, abs=1e-9), scheduler


def _rate_of_step(optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler.LRScheduler) -> float:
    """The rate with which a step is made; after it, the scheduler looks ahead."""
    rate = float(optimizer.param_groups[0]["lr"])
    optimizer.step()
    scheduler.step()
    return rate


def test_plots_show_the_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import plots

    plots.draw(DOCS / "sequences.md", tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(FAMILIES)
    drawn = (tmp_path / "linear.svg").read_text()
    assert drawn.count("<circle") == plots.STEPS
    heights = [float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)"', drawn)]
    assert heights == sorted(heights)  # the example falls, and an SVG counts from the top


# -------------------------------------------------------------------------------------------------------------- REST


SERVICES: Any = SimpleNamespace(hosts=(), policy=AccessPolicy(), doorkeeper=None)


@cache
def routes() -> list[str]:
    return list(make_app(SERVICES).openapi()["paths"])


def test_every_route_named_exists() -> None:
    shapes = {re.sub(r"\{\w+\}", "*", path.replace("/api/v1", "")) for path in routes()}
    for page in PAGES:
        for path in re.findall(r"/api/v1(/[^\s`'\")?]*)", page.read_text()):
            shape = re.sub(r"\{\w+\}|\$STUDY|\bID\b", "*", path).replace("trials/0", "trials/*")
            assert shape.replace("trials/1", "trials/*") in shapes, f"{page.name}: {path}"


def test_every_route_is_described() -> None:
    text = (DOCS / "rest-api.md").read_text().replace("$STUDY", "{study}")
    for path in routes():
        assert path.replace("{number}", "0") in text, path


# --------------------------------------------------------------------------------------------------------- decisions


def test_each_decision_is_short_has_its_number_and_answers_a_question_of_the_index() -> None:
    for page in DECISIONS:
        lines = page.read_text().splitlines()
        assert len(lines) <= 30 and lines[0].startswith(f"# {page.stem[:4]} "), page
    named = set(links(DOCS / "decisions" / "index.md"))
    assert named == {page.name for page in DECISIONS} and len(DECISIONS) <= 40


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    extras = [each for extra in project["project"]["optional-dependencies"].values() for each in extra]
    listed = [*project["project"]["dependencies"], *extras, *groups["dev"], *groups["docs"], *groups["supply"]]
    wanted = {re.match(r"[\w-]+", each)[0].lower() for each in listed if isinstance(each, str)}  # type: ignore[index]
    wanted.discard(project["project"]["name"])  # `all` names the other extras
    page = DOCS / "decisions" / "0001-dependencies.md"
    cells = [cells[0] for first in ("package", "for development") for cells in rows(page, first)]
    given = {re.match(r"[\w-]+", each.strip())[0].lower() for cell in cells for each in cell.split(",")}  # type: ignore[index]
    assert given == wanted, "docs/decisions/0001-dependencies.md must have each dependency, and no other"


def test_every_benchmark_has_its_figures() -> None:
    shown = set(re.findall(r"`python (benchmarks/\w+\.py)", (DOCS / "measurements.md").read_text()))
    files = [path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()]
    assert shown == {f"benchmarks/{path.name}" for path in files}


# ------------------------------------------------------------------------------------------------- beside the guide


def test_what_the_readme_says_of_the_demo() -> None:
    readme = (ROOT / "README.md").read_text()
    [said] = re.findall(r"a grid of (\d+) trials on the digits: (\d+) steps instead of (\d+)", readme)
    found = preview(StudySpec.from_file(ROOT / "examples" / "digits" / "study.yaml"), slots=2)
    assert [int(number) for number in said] == [found["trials"], found["unique"], found["requested"]]


def test_what_the_readme_says_of_its_first_study() -> None:
    page = ROOT / "README.md"
    [study] = [yaml.safe_load(block.text) for block in blocks(page) if block.file == "cooldowns.yaml"]
    steps = r"^steps +(\d+) if each .* - (\d+) shared = (\d+) run, and \d+ verification steps\n"
    shown = steps + r"saved +(\d+)% by sharing: "
    [line] = re.findall(shown, page.read_text(), re.MULTILINE)
    found = preview(StudySpec.from_dict(study), slots=2)
    alone, different = found["requested"], found["unique"]
    saved = (100 * (alone - different)) / alone
    assert [int(number) for number in line[:3]] == [alone, alone - different, different]
    assert int(line[3]) == pytest.approx(saved, abs=0.5)


def test_what_the_picture_says() -> None:
    """Four trials of 40 steps, 160 in all: 80 different ones."""
    multistep = {"family": "multistep", "init": 0.1, "gamma": 0.1}
    rates = [0.1, *({**multistep, "milestones": milestones} for milestones in ([30], [20], [20, 30]))]
    common = {"name": "x", "trainer": "x", "metric": "x", "mode": "max"}
    spec = StudySpec(**common, space={"lr": rates}, tuner={"kind": "grid", "max_steps": 40})
    found = preview(spec, slots=1)
    assert (found["requested"], found["unique"]) == (160, 80)
    text = (DOCS / "pictures" / "shared-beginnings.svg").read_text()
    assert "160 steps" in text and "80 steps" in text


def test_the_walk_through_a_study_names_what_is_there() -> None:
    """Each of the ten steps names files, and in these the functions and classes to read."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    walk = re.search(r"## Follow one study\n(.*?)\n## ", text, re.DOTALL)[1]  # type: ignore[index]
    steps = re.split(r"^\d+\. ", walk, flags=re.MULTILINE)[1:]
    assert len(steps) == 10 and "docs/how-a-stage-runs.md" in walk
    made_elsewhere = {"StudySpec", "ChainAssigned"}  # what a step makes, and not where it happens
    for step in steps:
        files = re.findall(r"`((?:app|stagetree)/[\w/]+\.py)`", step)
        source = "\n".join((ROOT / file).read_text() for file in files)
        named = set(re.findall(r"`(\w+)`", step)) - made_elsewhere
        missing = {name for name in named if not re.search(rf"^ *(def|class) {name}\b", source, re.MULTILINE)}
        assert files and named and not missing, f"{missing} of {files}"


def test_the_citation_is_valid() -> None:
    schema = "vendor.citation-file-format"
    check = [Path(sys.executable).parent / "check-jsonschema", "--builtin-schema", schema, ROOT / "CITATION.cff"]
    found = subprocess.run(check, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_versions_agree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version == stagetree.__version__
    chart = yaml.safe_load((ROOT / "docker" / "helm" / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version
    changes = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert changes == ["Unreleased", version]


def test_every_promise_names_a_test_that_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (DOCS / "operations.md").read_text())
    assert len(named) > 20
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_the_limits_for_operators_are_those_of_the_code() -> None:
    text = (DOCS / "operations.md").read_text()
    limits = [LIMITS.trials, LIMITS.nodes, LIMITS.parameters, LIMITS.segments, LIMITS.evaluations]
    assert [limit for limit in (*limits, MOST_METRICS, CAPACITY) if f"{limit:,}" not in text] == []
    assert (LIMITS.steps, LIMITS.bytes, LIMITS.depth, BACKLOG) == (10**9, 2**20, 50, 4)
    assert (AGES.keys, AGES.chains, AGES.workers) == (7.0, 7.0, 1.0)
