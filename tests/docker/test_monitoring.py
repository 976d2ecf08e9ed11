"""Alerts and the dashboard ask for numbers that the API gives."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from app.api.routes.service import LIVE_CHAINS
from app.domain.terms import StudyState
from app.service.slot_use import STATES

FOLDER = Path(__file__).parents[2] / "docker" / "monitoring"
OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
PANELS = json.loads((FOLDER / "grafana.json").read_text())["panels"]
EXPRESSIONS = [*(rule["expr"] for rule in RULES), *(each["expr"] for panel in PANELS for each in panel["targets"])]
CHECKS = {"database", "schema", "broker", "store", "scheduler", "slots"}
LABELS = {
    "stagetree_studies": ("state", set(StudyState)),
    "stagetree_slots": ("state", set(STATES)),
    "stagetree_chains": ("state", set(LIVE_CHAINS)),
    "stagetree_ready": ("check", CHECKS),
    "stagetree_log_head": ("", set[str]()),
    "stagetree_held_up": ("", set[str]()),
    "stagetree_scheduler_tick_age_seconds": ("", set[str]()),
}
"""What `GET /metrics` says, with the values of the label: `tests/api/test_service_routes.py` has its text."""


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_numbers_and_labels_that_there_are(expression: str) -> None:
    asked = re.findall(r"(stagetree_\w+)(?:\{(\w+)=~?\"([^\"]*)\"\})?", expression)
    assert asked
    for number, label, values in asked:
        known_label, known = LABELS[number]
        assert label in ("", known_label) and set(values.split("|") if values else ()) <= known


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_it_means_and_the_guide_what_to_do(rule: dict[str, str]) -> None:
    assert rule["annotations"]["summary"] and rule["labels"]["severity"] in ("critical", "warning")  # type: ignore[index]
    assert f"`{rule['alert']}`" in OPERATIONS


def test_the_panels_do_not_overlap() -> None:
    places = [
        (x, y)
        for place in (panel["gridPos"] for panel in PANELS)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(places) == len(set(places)) and max(x for x, _ in places) < 24
