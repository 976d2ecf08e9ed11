"""A small Prometheus for tests: real answers of `/metrics` at virtual times, and the rules over them.

It means what Prometheus and `promtool test rules` mean by the part of the language that our rules use, and refuses all
else: the text format, staleness, lookback, vector matching, `for`.
"""

from __future__ import annotations

import operator
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import yaml

ALERTS = Path(__file__).parents[1] / "docker" / "monitoring" / "alerts.yaml"
INTERVAL = 30.0
"""Seconds from one scrape, and evaluation, to the next."""

LOOKBACK = 300.0
"""An older sample counts no more."""

NAME = "__name__"
Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Matcher = tuple[str, str, str]
Sample = tuple[float, float | None]


class NotUnderstood(ValueError):
    """Text that Prometheus would refuse, or that this module does not know."""


# ------------------------------------------------------------------------------------------------------ the text format

LABEL = r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\["\\n])*)"'
SERIES = re.compile(rf"([a-zA-Z_:][\w:]*)(?:\{{((?:{LABEL},?)*)\}})?")
SUFFIXES = {"gauge": ("",), "counter": ("",), "histogram": ("_bucket", "_sum", "_count")}


def parse_text(text: str) -> Vector:
    """The samples of an answer. Raises `NotUnderstood` for text that format 0.0.4 forbids, and for duplicates."""
    if not text.endswith("\n"):
        raise NotUnderstood("the last line has no end")
    kinds, found, family, helped = dict[str, str](), Vector(), "", set[str]()
    for line in text.splitlines():
        match line.split(" ", 3):
            case ["#", "HELP", name, _] if name not in helped:
                helped.add(name)
            case ["#", "TYPE", name, kind] if name not in kinds and kind in SUFFIXES:
                family, kinds[name] = name, kind
            case _:
                series, _, number = line.rpartition(" ")
                name, labels = _parse_series(series)
                if name not in [family + suffix for suffix in SUFFIXES.get(kinds.get(family, ""), ())]:
                    raise NotUnderstood(f"{line!r} stands outside of its metric")
                if labels in found:
                    raise NotUnderstood(f"{line!r} is there twice")
                found[labels] = float(number)
    return found


@cache
def _parse_series(text: str) -> tuple[str, Labels]:
    """A name with its labels. Cached, since scrapes have nearly the same series."""
    parsed = SERIES.fullmatch(text)
    if parsed is None:
        raise NotUnderstood(f"{text!r} is no series")
    pairs = re.findall(LABEL, parsed[2] or "")
    if len(dict(pairs)) < len(pairs):
        raise NotUnderstood(f"{text!r} has a label twice")
    texts = {name: re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), text) for name, text in pairs}
    return parsed[1], frozenset({NAME: parsed[1], **texts}.items())


# ---------------------------------------------------------------------------------------------------------- the samples


@dataclass
class Samples:
    """All series, each with its samples in order of time; None marks the series as stale."""

    series: dict[Labels, list[Sample]] = field(default_factory=dict)
    _by_name: defaultdict[str, list[tuple[dict[str, str], Labels]]] = field(default_factory=lambda: defaultdict(list))
    _last: dict[str, set[Labels]] = field(default_factory=dict)

    def add(self, at: float, job: str, instance: str, scraped: Vector | None) -> None:
        """Add the answer of a target; None if the scrape failed."""
        target = {"job": job, "instance": instance}
        now = {_with(labels, target): value for labels, value in (scraped or {}).items()}
        for gone in self._last.get(instance, set()) - now.keys():
            self.series[gone].append((at, None))
        self._last[instance] = set(now)
        up = {frozenset({NAME: "up", **target}.items()): float(scraped is not None)}
        for labels, value in {**now, **up}.items():
            if labels not in self.series:
                self.series[labels] = []
                self._by_name[(texts := dict(labels))[NAME]].append((texts, labels))
            self.series[labels].append((at, value))

    def instant(self, at: float, matchers: Sequence[Matcher]) -> Vector:
        found = Vector()
        for labels, samples in self._select(at, LOOKBACK, matchers):
            if samples and (last := samples[-1][1]) is not None:
                found[labels] = last
        return found

    def span(self, at: float, seconds: float, matchers: Sequence[Matcher]) -> Iterator[tuple[Labels, list[float]]]:
        for labels, samples in self._select(at, seconds, matchers):
            seen = [value for _, value in samples if value is not None]
            if seen:
                yield labels, seen

    def _select(
        self, at: float, seconds: float, matchers: Sequence[Matcher]
    ) -> Iterator[tuple[Labels, Sequence[Sample]]]:
        """The samples of the last seconds of each matching series. matchers: the first matches the name."""
        (_, _, metric), *others = matchers
        for texts, labels in self._by_name.get(metric, ()):
            if all(MATCHES[how](texts.get(name, ""), text) for name, how, text in others):
                samples = self.series[labels]
                first, end = (bisect_right(samples, when, key=itemgetter(0)) for when in (at - seconds, at))
                yield labels, samples[first:end]


MATCHES: Mapping[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "=~": lambda text, pattern: re.fullmatch(pattern, text) is not None,
    "!~": lambda text, pattern: re.fullmatch(pattern, text) is None,
}


def _with(labels: Labels, more: Mapping[str, str]) -> Labels:
    return frozenset({**dict(labels), **more}.items())


def _drop_name(labels: Labels) -> Labels:
    return frozenset(pair for pair in labels if pair[0] != NAME)


# ------------------------------------------------------------------------------------------------------ the expressions

Evaluate = Callable[[Samples, float], Vector]
TOKEN = re.compile(
    r'\s*(?:(\d+(?:\.\d+)?(?![\w.]))|([a-zA-Z_]\w*)|("[^"\\]*")|(\[\d+[smh]\])|(=~|!~|[=!<>]=|[=<>(){},]))'
)
COMPARE = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    if not re.fullmatch(r"\d+[smh]", text):
        raise NotUnderstood(f"{text!r} is no duration")
    return int(text[:-1]) * UNITS[text[-1]]


@dataclass
class Expression:
    """A query: `selectors` are its metrics with their matchers, `evaluate` its value at a time."""

    text: str
    selectors: list[list[Matcher]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tokens = list(self._split(self.text))
        self.evaluate: Evaluate = self._sets()
        if self._tokens:
            raise NotUnderstood(f"{self.text!r}: {self._tokens[0]!r} is not expected there")

    @staticmethod
    def _split(text: str) -> Iterator[str]:
        place, text = 0, text.strip()
        while place < len(text):
            found = TOKEN.match(text, place)
            if found is None:
                raise NotUnderstood(f"{text[place:]!r} of {text!r}")
            place = found.end()
            yield found[0].strip()

    def _next(self, *wanted: str) -> str:
        token = self._tokens.pop(0) if self._tokens else "the end"
        if wanted and token not in wanted:
            raise NotUnderstood(f"{self.text!r} has {token!r} instead of {' or '.join(wanted)}")
        return token

    def _is(self, *tokens: str) -> bool:
        return bool(self._tokens) and self._tokens[0] in tokens

    def _sets(self) -> Evaluate:
        left = self._comparison()
        while self._is("and", "unless"):
            keeps = self._next() == "and"
            self._next("on")
            left = self._set_operation(left, keeps, self._names(), self._comparison())
        return left

    @staticmethod
    def _set_operation(left: Evaluate, keeps: bool, on: list[str], right: Evaluate) -> Evaluate:
        def key(labels: Labels) -> list[str]:
            return [dict(labels).get(name, "") for name in on]

        def evaluate(samples: Samples, at: float) -> Vector:
            there = [key(labels) for labels in right(samples, at)]
            return {labels: value for labels, value in left(samples, at).items() if (key(labels) in there) is keeps}

        return evaluate

    def _names(self) -> list[str]:
        self._next("(")
        names = []
        while not self._is(")"):
            names.append(self._next())
            if not self._is(")"):
                self._next(",")
        self._next(")")
        return names

    def _comparison(self) -> Evaluate:
        left = self._value()
        if not self._is(*COMPARE):
            return left
        holds, token = COMPARE[self._next()], self._next()
        if not re.fullmatch(r"\d+(\.\d+)?", token):
            raise NotUnderstood(f"{self.text!r} compares with {token!r}, which is no number")
        number = float(token)
        return lambda samples, at: {each: value for each, value in left(samples, at).items() if holds(value, number)}

    def _value(self) -> Evaluate:
        token = self._next()
        if token == "(":
            inner = self._sets()
            self._next(")")
            return inner
        if not re.fullmatch(r"[a-zA-Z_]\w*", token):
            raise NotUnderstood(f"{self.text!r} has {token!r} instead of a metric")
        if self._is("("):
            return self._function(token)
        matchers = self._selector(token)
        return lambda samples, at: samples.instant(at, matchers)

    def _selector(self, name: str) -> list[Matcher]:
        matchers = [(NAME, "=", name)]
        if self._is("{"):
            self._next()
            while not self._is("}"):
                label, how, text = self._next(), self._next(*MATCHES), self._next()
                if not text.startswith('"'):
                    raise NotUnderstood(f"{self.text!r} has {text!r} instead of a text")
                matchers.append((label, how, text[1:-1]))
                if not self._is("}"):
                    self._next(",")
            self._next("}")
        self.selectors.append(matchers)
        return matchers

    def _function(self, name: str) -> Evaluate:
        self._next("(")
        match name:
            case "sum":
                summed = self._sets()
                evaluate: Evaluate = lambda samples, at: _sum(summed(samples, at))  # noqa: E731
            case "absent":
                matchers = self._selector(self._next())
                evaluate = lambda samples, at: _absent(samples.instant(at, matchers), matchers)  # noqa: E731
            case "max_over_time":
                chosen = self._selector(self._next())
                seconds = seconds_of(self._next().strip("[]"))
                evaluate = lambda samples, at: {  # noqa: E731
                    _drop_name(labels): max(values) for labels, values in samples.span(at, seconds, chosen)
                }
            case "increase":
                chosen = self._selector(self._next())
                seconds = seconds_of(self._next().strip("[]"))
                evaluate = lambda samples, at: {  # noqa: E731
                    _drop_name(labels): _increase(values) for labels, values in samples.span(at, seconds, chosen)
                }
            case _:
                raise NotUnderstood(f"{self.text!r} calls {name}")
        self._next(")")
        return evaluate


def _increase(values: Sequence[float]) -> float:
    """By how much a counter has grown, resets included. Prometheus also extrapolates to the ends of the range."""
    return sum(after - before if after >= before else after for before, after in pairwise(values))


def _sum(vector: Vector) -> Vector:
    return {frozenset(): sum(vector.values())} if vector else {}


def _absent(vector: Vector, matchers: list[Matcher]) -> Vector:
    told = frozenset((name, text) for name, how, text in matchers if how == "=" and name != NAME)
    return {} if vector else {told: 1.0}


# ------------------------------------------------------------------------------------------------------------ the rules

TEMPLATE = re.compile(r"\{\{ (?:\$labels\.(\w+)|(\$value(?: \| humanizeDuration)?)) \}\}")


@dataclass
class Rule:
    """An alerting rule; `active` has, for each set of labels, since when it holds."""

    alert: str
    expression: Expression
    seconds: float
    labels: Mapping[str, str]
    summary: str
    active: dict[Labels, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, rule: Mapping[str, Any]) -> Rule:
        if rule.keys() != {"alert", "expr", "for", "labels", "annotations"} or rule["annotations"].keys() != {
            "summary"
        }:
            raise NotUnderstood(f"a rule with {sorted(rule)}")
        summary = str(rule["annotations"]["summary"])
        if "{{" in TEMPLATE.sub("", summary):
            raise NotUnderstood(f"the template {summary!r}")
        return cls(rule["alert"], Expression(rule["expr"]), seconds_of(rule["for"]), rule["labels"], summary)

    def evaluate(self, samples: Samples, at: float) -> list[str]:
        """The summaries of the alerts that fire."""
        found = {_drop_name(labels): value for labels, value in self.expression.evaluate(samples, at).items()}
        self.active = {labels: self.active.get(labels, at) for labels in found}
        firing = [labels for labels, since in self.active.items() if at - since >= self.seconds]
        return [self._say(dict(labels), found[labels]) for labels in firing]

    def _say(self, labels: Mapping[str, str], value: float) -> str:
        """Raises KeyError for a label that the alert does not have: Prometheus would leave it empty."""
        return TEMPLATE.sub(lambda found: labels[found[1]] if found[1] else f"{value:g}", self.summary)


def read_rules(path: Path = ALERTS) -> list[Rule]:
    groups = yaml.safe_load(path.read_text())["groups"]
    return [Rule.parse(rule) for group in groups for rule in group["rules"]]


class Prometheus:
    """targets: for each instance, a function that scrapes it, and returns None if that fails."""

    def __init__(self, targets: Mapping[str, Callable[[], str | None]], job: str = "stagetree") -> None:
        self.rules, self.samples, self.now = read_rules(), Samples(), 0.0
        self._targets, self._job = targets, job

    def scrape(self) -> dict[str, list[str]]:
        """Scrape all targets, evaluate the rules, and return the summaries of firing alerts by name."""
        self.now += INTERVAL
        for instance, ask in self._targets.items():
            text = ask()
            self.samples.add(self.now, self._job, instance, None if text is None else parse_text(text))
        said = {rule.alert: rule.evaluate(self.samples, self.now) for rule in self.rules}
        return {alert: summaries for alert, summaries in said.items() if summaries}

    def watch(self, minutes: float, meanwhile: Callable[[], object] = lambda: None) -> dict[str, list[str]]:
        """Scrape for some virtual minutes, and return all alerts that fired. meanwhile: called before each scrape."""
        fired = dict[str, list[str]]()
        for _ in range(round(minutes * 60 / INTERVAL)):
            meanwhile()
            for alert, summaries in self.scrape().items():
                fired.setdefault(alert, []).extend(each for each in summaries if each not in fired.get(alert, []))
        return fired

    def value(self, name: str, **labels: str) -> float:
        """The value of the one series of that name with these labels."""
        matchers = [(NAME, "=", name), *((label, "=", text) for label, text in labels.items())]
        (value,) = self.samples.instant(self.now, matchers).values()
        return value
