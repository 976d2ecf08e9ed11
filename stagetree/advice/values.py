"""Advice on values that are probably not meant as they are written.

Only the trainer could notice: a text `no` is true in an `if`, and a batch size of 0 is a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from stagetree.limits import BATCH_SIZES
from stagetree.space.notation import call_hint
from stagetree.spec import StudySpec


def value_advice(spec: StudySpec) -> Iterator[str]:
    """Advice on the texts and numbers of the space, and on a mode that contradicts the metric's name."""
    space = spec.to_json().get("space") or {}
    for name, entry in space.items():
        yield from _odd_values(name, entry)
    if "seed" in space:
        yield (
            "seed is a hyper-parameter like any other here, and the study's own seed stays the same: repeats: 3 trains "
            "each trial with three orders of the data"
        )
    yield from _contradicting_mode(spec)


def _odd_values(name: str, entry: Any) -> Iterator[str]:
    if entry is None or entry == {"family": "constant", "value": None}:
        yield f"{name} is null, which trainers are given as None: write its values, or leave it out"
    for text in dict.fromkeys(_texts(entry)):
        if right := likely_value(text):
            yield f"{name} has the text {text!r} among its values: {right}"
    for number in dict.fromkeys(_numbers(entry)) if name in BATCH_SIZES else ():
        if number < 1:
            yield f"{name} has {number} among its values: it counts examples of a batch, of which there is at least one"


def _texts(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, Mapping | list):
        for name, each in entry.items() if isinstance(entry, Mapping) else enumerate(entry):
            if name not in ("family", "shape"):
                yield from _texts(each)


def _numbers(entry: Any) -> Iterator[float]:
    """The numbers that are listed as options, or are the only value."""
    options = entry if isinstance(entry, list) else [entry]
    yield from (each for each in options if isinstance(each, int | float) and not isinstance(each, bool))


_NUMBERS = re.compile(
    r"\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?(\s+[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?)*\s*", re.IGNORECASE
)
_GROUPED = re.compile(r"[-+]?\d{1,3}(_\d+)+(\.\d+)?")
_REFERENCE = re.compile(r"\$\w+|\$\{.*\}|\{\{.*\}\}")
_WORDS = {
    **dict.fromkeys(("yes", "on", "true"), "true is the value, without quotes; any text is true in an `if`"),
    **dict.fromkeys(("no", "off", "false"), "false is the value, without quotes; a text is true in an `if`"),
    **dict.fromkeys(("none", "null", "nil", "~"), "null is the value, which trainers are given as None"),
    **dict.fromkeys(("nan", "inf", "+inf", "-inf", "infinity"), "values are finite numbers: write one, or null"),
}
"""Texts that mean a value in YAML 1.1 or in a programming language, in lower case."""


def likely_value(text: str) -> str:
    """A clause on the value that a text probably stands for; empty if it looks like a text."""
    if _NUMBERS.fullmatch(text):
        numbers = text.split()
        right = f"[{', '.join(numbers)}] is a list" if len(numbers) > 1 else f"{text.strip()} is a number"
        return f"{right}, without quotes"
    if _GROUPED.fullmatch(text):
        return f"{text.replace('_', '')} is the number"
    if _REFERENCE.fullmatch(text.strip()):
        return "nothing is filled in for it: write the value, or pass it with --set"
    if written := call_hint(text):
        return f"{written} is the distribution"
    return _WORDS.get(text.strip().lower(), "")


_MORE_IS_BETTER = {
    *("accuracy", "acc", "auc", "auroc", "bleu", "dice", "f1", "iou", "map", "precision", "psnr", "r2", "recall"),
    *("reward", "rouge", "ssim"),
}
_LESS_IS_BETTER = {"bpb", "cer", "error", "fid", "loss", "mae", "mse", "nll", "perplexity", "ppl", "rmse", "wer"}


def _contradicting_mode(spec: StudySpec) -> Iterator[str]:
    """Warn if the mode is the opposite of the one that the metric's name suggests."""
    metrics = [(each.name, each.mode) for each in spec.metrics] or [(spec.metric, spec.mode)]
    for metric, mode in metrics:
        words = set(re.split(r"[^a-z0-9]+", metric.lower()))
        is_more, is_less = bool(words & _MORE_IS_BETTER), bool(words & _LESS_IS_BETTER)
        if is_more != is_less and mode != (right := "max" if is_more else "min"):
            worst = "smallest" if mode == "min" else "greatest"
            yield f"mode: {mode} takes the {worst} {metric} for the best: for this metric, {right} is usual"
