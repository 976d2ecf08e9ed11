"""The tests' small Prometheus, by examples of the real one's behaviour."""

from __future__ import annotations

import pytest
import yaml

from tests.promql import ALERTS, INTERVAL, NAME, Expression, NotUnderstood, Rule, Samples, Vector, parse_text

TEXT = """# HELP a What a is.
# TYPE a gauge
a{x="1"} 2
a{x="2",y="q\\"\\\\n"} 0.5
# HELP t Times.
# TYPE t histogram
t_bucket{le="+Inf"} 3
t_sum 1.5
t_count 3
"""


def values_by_label(vector: Vector) -> dict[str, float]:
    """The values by their labels in alphabetical order, without the labels of the target."""
    return {
        ",".join(f"{name}={text}" for name, text in sorted(labels) if name not in (NAME, "job", "instance")): value
        for labels, value in vector.items()
    }


def at(expression: str, *texts: str | None, later: float = 0.0) -> dict[str, float]:
    """The value after scrapes with these answers."""
    samples = Samples()
    for number, text in enumerate(texts):
        samples.add(number * INTERVAL, "j", "i", None if text is None else parse_text(text))
    return values_by_label(Expression(expression).evaluate(samples, (len(texts) - 1) * INTERVAL + later))


def a(*values: float) -> str:
    return "# TYPE a gauge\n" + "".join(f'a{{x="{number}"}} {value}\n' for number, value in enumerate(values))


def test_the_text_format() -> None:
    assert values_by_label(parse_text(TEXT)) == {"x=1": 2.0, 'x=2,y=q"\\n': 0.5, "le=+Inf": 3.0, "": 3.0}


@pytest.mark.parametrize(
    "text",
    [
        "# TYPE a gauge\na 1",
        "a 1\n",
        "# TYPE a gauge\nb 1\n",
        "# TYPE a gauge\na 1\na 2\n",
        "# TYPE a gauge\n# TYPE a gauge\n",
        "# TYPE a thing\n",
        '# TYPE a gauge\na{x="1",x="2"} 1\n',
        '# TYPE a gauge\na{x="1} 1\n',
        "# TYPE a gauge\na  1\n",
    ],
)
def test_invalid_text_is_refused(text: str) -> None:
    with pytest.raises((NotUnderstood, ValueError)):
        parse_text(text)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a", {"x=0": 0.0, "x=1": 3.0}),
        ("a > 0", {"x=1": 3.0}),
        ('a{x="0"}', {"x=0": 0.0}),
        ('a{x!="0"}', {"x=1": 3.0}),
        ('a{x=~"0|1"}', {"x=0": 0.0, "x=1": 3.0}),
        ('a{x=~"[1-9]"} == 3', {"x=1": 3.0}),
        ('a{x!~"0"} == 0', {}),
        ("sum(a)", {"": 3.0}),
        ("sum(b)", {}),
        ("sum(a) == 3 and on() a > 0", {"": 3.0}),
        ("a unless on(x) a > 0", {"x=0": 0.0}),
        ("a and on(x) a > 0", {"x=1": 3.0}),
        ("a and on() b", {}),
        ("a > 0 unless on(instance) a == 0", {}),
        ("absent(a)", {}),
        ("absent(b)", {"": 1.0}),
        ('absent(b{x="0",y=~"q"})', {"x=0": 1.0}),
        ("up", {"": 1.0}),
        ("(a > 0)", {"x=1": 3.0}),
    ],
)
def test_an_expression(expression: str, expected: dict[str, float]) -> None:
    assert at(expression, a(0, 3)) == expected


def test_a_missing_series_is_stale_at_once_and_a_failed_target_after_five_minutes() -> None:
    assert at("a", a(1, 1), a(1)) == {"x=0": 1.0}
    assert at("a", a(1), None) == {} and at("up", a(1), None) == {"": 0.0} and at("absent(a)", a(1), None) == {"": 1.0}
    assert at("a", a(1), later=299) == {"x=0": 1.0} and at("a", a(1), later=300) == {}


def test_max_over_time() -> None:
    assert at("max_over_time(a[1m])", a(5), a(2), a(1)) == {"x=0": 2.0}
    assert at("max_over_time(a[2m]) > 2", a(5), a(2), None) == {"x=0": 5.0}


@pytest.mark.parametrize(
    "expression",
    [
        "rate(a[1m])",
        "a + 1",
        "a > b",
        "a or b",
        "a and b",
        "a[5m]",
        "a{x=1}",
        "sum by (x) (a)",
        "a offset 5m",
        "a >",
        "a b",
        "5",
    ],
)
def test_unknown_expressions_are_refused(expression: str) -> None:
    with pytest.raises(NotUnderstood):
        Expression(expression)


def test_an_alert_fires_when_it_has_held_for_its_time_without_a_gap() -> None:
    rule = Rule.parse(
        {
            "alert": "A",
            "expr": "a > 1",
            "for": "1m",
            "labels": {},
            "annotations": {"summary": "{{ $labels.x }} {{ $value }}"},
        }
    )
    samples, said = Samples(), list[list[str]]()
    for number, value in enumerate([2, 2, 0, 2, 2, 3]):
        samples.add(number * INTERVAL, "j", "i", parse_text(a(value)))
        said.append(rule.evaluate(samples, number * INTERVAL))
    assert said == [[], [], [], [], [], ["0 3"]]


@pytest.mark.parametrize(
    "change", [{"keep_firing_for": "5m"}, {"annotations": {"summary": "{{ $externalURL }}"}}, {"for": "5 m"}]
)
def test_a_rule_that_it_does_not_know_it_refuses(change: dict[str, object]) -> None:
    rule = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"][0]
    assert Rule.parse(rule)
    with pytest.raises(NotUnderstood):
        Rule.parse({**rule, **change})
