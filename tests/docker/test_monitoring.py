"""Alerts and the dashboard query metrics of the API; each alert is explained, and a test provokes its cause."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from app.api.metrics import LIVE_CHAINS, QUEUES
from app.domain.terms import FAILURES, StudyState
from app.service.slot_use import STATES
from tests.promql import Rule, read_rules

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker" / "monitoring"
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
CAUSES = [
    (ROOT / "tests" / path).read_text()
    for path in ("e2e/test_alerts.py", "workers/test_slot_alerts.py", "api/test_lost_log.py")
]
RULES = read_rules()
PANELS = json.loads((FOLDER / "grafana.json").read_text())["panels"]
QUERIES = [each["expr"] for panel in PANELS for each in panel["targets"]]
CONFIGURATION = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
CHECKS = {"database", "schema", "broker", "store", "scheduler", "slots"}
LABELS: dict[str, dict[str, set[str] | None]] = {
    "stagetree_studies": {"state": set(StudyState)},
    "stagetree_slots": {"state": set(STATES)},
    "stagetree_chains": {"state": set(LIVE_CHAINS)},
    "stagetree_ready": {"check": CHECKS},
    "stagetree_failures_total": {"kind": set(FAILURES)},
    "stagetree_request_seconds_bucket": {"route": None, "le": None},
    "stagetree_scheduler_memory_bytes": {"process": None},
    "stagetree_trainer_memory_bytes": {"slot": None},
    "stagetree_slot_memory_bytes": {"slot": None},
    "stagetree_slot_step_age_seconds": {"slot": None},
    "stagetree_slot_backlog": {"slot": None, "queue": set(QUEUES)},
    "stagetree_slot_backlog_seconds": {"slot": None, "queue": set(QUEUES)},
    **{
        f"stagetree_{name}": {}
        for name in (
            "log_head",
            "held_up",
            "lost_commits",
            "scheduler_tick_age_seconds",
            "undelivered_messages",
            "api_memory_bytes",
        )
    },
}
"""The metrics of `GET /metrics`, with the values of their labels; None for any."""


@pytest.mark.parametrize("query", QUERIES)
def test_panels_query_existing_metrics_and_labels(query: str) -> None:
    asked = re.findall(r"(stagetree_\w+)(?:\{(\w+)=~?\"([^\"]*)\"\})?", query)
    assert asked
    for number, label, values in asked:
        assert not label or set(values.split("|")) <= (LABELS[number][label] or set())
    grouped = re.findall(r"by \(([\w, ]+)\)", query)
    assert {label for labels in grouped for label in labels.split(", ")} <= LABELS[asked[0][0]].keys()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.alert)
def test_alerts_query_existing_metrics_and_labels(rule: Rule) -> None:
    jobs = {each["job_name"] for each in CONFIGURATION["scrape_configs"]}
    assert rule.expression.selectors
    for (_, _, name), *matchers in rule.expression.selectors:
        known = {"job": jobs} if name == "up" else LABELS[name]
        for label, _, values in matchers:
            assert set(values.split("|")) <= (known[label] or set()), (name, label)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.alert)
def test_each_alert_has_a_meaning_and_the_guide_a_remedy(rule: Rule) -> None:
    assert rule.summary and rule.labels["severity"] in ("critical", "warning")
    assert f"| `{rule.alert}` |" in OPERATIONS
    assert any(f'"{rule.alert}"' in text for text in CAUSES), "no test provokes its cause"


def test_the_guide_explains_only_existing_alerts() -> None:
    assert set(re.findall(r"`(Stagetree\w+)`", OPERATIONS)) == {rule.alert for rule in RULES}


def test_prometheus_is_configured_with_the_existing_rules() -> None:
    assert [(FOLDER / name).is_file() for name in CONFIGURATION["rule_files"]] == [True]


def test_the_panels_do_not_overlap() -> None:
    places = [
        (x, y)
        for place in (panel["gridPos"] for panel in PANELS)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(places) == len(set(places)) and max(x for x, _ in places) < 24
