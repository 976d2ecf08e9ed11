"""Make `docs/merge-or-decay.md` of the numbers that `benchmarks.figures.merge_or_decay` has measured.

python -m benchmarks.figures.merge_or_decay_page
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

from benchmarks.figures.simulated import DATA as FOLDER
from benchmarks.figures.simulated import ROOT

Json = dict[str, Any]
DATA = FOLDER / "merge_or_decay.json"
PAGE = ROOT / "docs" / "merge-or-decay.md"

QUANTILES = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 12: 2.20}
"""By the number of values, how many standard errors of their mean hold it with 95 % (Student's t)."""

TEXT = """# Merge or decay?

A training at a constant learning rate ends with a decay, or with the mean of its last states, for which nothing is
trained. Is the mean as good? And may trials be ranked by it? This page asks both of a small transformer on *Alice in
Wonderland*. One command has measured every number, in {minutes:g} minutes on {slots} CPU slots, and has
written this page:

```sh
python -m benchmarks.figures.merge_or_decay
```

## Ask

For each of {seeds} seeds there is one trunk: 5 steps of warm-up, then a constant rate, {longest} steps in all. At
{lengths} steps a training may end. It ends as it is, or with a decay (`1 - sqrt`) over {shares} of its length, or
with the mean of all states of the trunk over the same shares. Weights are equal, or [imitate the
decay](tuners/asha.md#means-of-states-at-rungs). A seed is one study, which is submitted as any other:

```yaml
seed: 0
keep_every: 1
space:
  max_steps: {lengths_list}
  lr:
    - {{family: warmup, steps: 5, then: 0.01}}
    - {{family: wsd, peak: 0.01, warmup: 5, decay: {{choice: {decays_list}}}, shape: sqrt}}
  bs: 32
  weight_decay: 0.1
tuner: {{kind: grid}}
```

Its {trials} trainings take {requested} steps one by one, and {unique} with one trunk. The means are averages of the
last kept states of one trial, as `stagetree soup STUDY --trials N --last K --weights ...` makes them.

## Values

The validation loss, the mean over seeds ± its standard error. The best of each row is bold.

{values_table}

Seeds shift all columns together, so what counts is the difference within a seed: the mean over the {seeds} seeds, ±
its standard error. The decay of the same share is subtracted from each.

{differences_table}

{values_verdict}

## Rungs

May trials be ranked by means? {tasks} tasks have {configurations} configurations each, drawn over a factor of 60 in
the rate, with weight decay and batch size. Successive halving compares them after 6, 18 and 54 steps: by their own
losses, by those of a cooldown of a fifth, or by losses of the mean of three states over a fifth, with the weights of
that decay. To know what each choice is worth, all configurations are trained to step 54 and cooled. The regret is the
distance of the chosen one from the best one, in loss; ± is the standard error over tasks.

{rungs_table}

`order` is Spearman's rank correlation between the values at the first rung and the losses in the end. Within a task:

{rungs_differences_table}

{rungs_verdict}

## What this does not say

- One small model, one data set, AdamW, one peak for the first part, and trainings of minutes. Published results for
  means are of billions of tokens: [Tian et al. 2025](https://arxiv.org/abs/2507.17634) find them better than decays.
  What holds there may fail here, and the other way round.
- {seeds} seeds and {tasks} tasks. "Shown" means beyond the 95 % interval of Student's t, which is {quantile_seeds:g}
  standard errors of {seeds} values and {quantile_tasks:g} of {tasks}. A difference that is not shown may still exist.
- The best mean is chosen among {means} and the best decay among {decays}, by the seeds that they are compared on. That
  favours means a little.
- While the loss still falls fast, any mean looks back at worse models, and any decay gives up steps: the trunk's column
  shows where neither is of use.
- In theory an imitating mean takes the reduced steps of its decay, along the gradients of the trunk. The difference
  between both is what gradients are worth that are computed anew, where the smaller steps have led.

## Ask your own

Replace the trainer, and keep the space. `rung_value: {{merge: 5}}` [ranks
trials](tuners/asha.md#means-of-states-at-rungs) by means, and costs an evaluation at each rung; `rung_value:
{{cooldown: 0.2}}` costs steps. [Which decay length is best?](which-decay.md) asks the question before this one.
"""


def main() -> None:
    found = json.loads(DATA.read_text())
    PAGE.write_text(page(found))


def page(found: Json) -> str:
    values, rungs = found["values"], found["rungs"]
    seeds, tasks = len({row["seed"] for row in values}), len({row["task"] for row in rungs})
    lengths, shares = distinct(values, "length"), [share for share in distinct(values, "share") if share]
    return TEXT.format(
        minutes=found["minutes"],
        slots=found["slots"],
        seeds=seeds,
        tasks=tasks,
        configurations=found["configurations"],
        longest=max(lengths),
        lengths=listed(map(str, lengths)),
        shares=listed(percent(share) for share in shares),
        lengths_list=lengths,
        decays_list="[" + ", ".join(f"{{ratio: {share:g}}}" for share in shares) + "]",
        trials=len(lengths) * (1 + len(shares)),
        requested=sum(lengths) * (1 + len(shares)),
        unique=found["unique"],
        values_table=values_table(values, lengths, shares),
        differences_table=differences_table(values, lengths, shares),
        values_verdict=values_verdict(values, lengths, shares),
        rungs_table=rungs_table(rungs),
        rungs_differences_table=rungs_differences_table(rungs),
        rungs_verdict=rungs_verdict(rungs),
        means=2 * len(shares),
        decays=len(shares),
        quantile_seeds=quantile(seeds),
        quantile_tasks=quantile(tasks),
    )


# ------------------------------------------------------------------------------------------------------------- values

WAYS = ("decay", "imitating mean", "equal mean")


def values_table(values: list[Json], lengths: list[int], shares: list[float]) -> str:
    columns = [("trunk", 0.0), *((by, share) for share in shares for by in WAYS)]
    rows = []
    for length in lengths:
        cells = [losses(values, by, share, length) for by, share in columns]
        best = min(map(fmean, cells))
        rows.append([str(length), *(marked(each, fmean(each) == best) for each in cells)])
    heads = ["trunk", *(f"{by}, {percent(share)}" for share in shares for by in WAYS)]
    return table(["steps", *heads], rows)


def differences_table(values: list[Json], lengths: list[int], shares: list[float]) -> str:
    """The loss of each way to end, less that of the decay of the same share."""
    rows = []
    for length in lengths:
        for share in shares:
            ways = [("trunk", 0.0), *((by, share) for by in WAYS[1:])]
            found = [with_error(difference(values, [length], way, ("decay", share))) for way in ways]
            rows.append([str(length), percent(share), *found])
    return table(["steps", "share", "trunk - decay", "imitating mean - decay", "equal mean - decay"], rows)


def difference(values: list[Json], lengths: list[int], one: tuple[str, float], other: tuple[str, float]) -> list[float]:
    """By seed, how much higher the loss of one way is than that of another one, on average over lengths."""
    pairs = [(losses(values, *one, length), losses(values, *other, length)) for length in lengths]
    return [fmean(first[seed] - second[seed] for first, second in pairs) for seed in range(len(pairs[0][0]))]


def losses(values: list[Json], by: str, share: float, length: int) -> list[float]:
    """By seed, the losses of one way to end at a length."""
    rows = [row for row in values if (row["by"], row["length"]) == (by, length) and abs(row["share"] - share) < 0.01]
    return [row["loss"] for row in sorted(rows, key=lambda row: row["seed"])]


def values_verdict(values: list[Json], lengths: list[int], shares: list[float]) -> str:
    sentences = [best_at(values, length, shares) for length in lengths]
    for one, other, than in (
        ("imitating mean", "decay", "the decays that they imitate"),
        ("equal mean", "imitating mean", "imitating ones"),
    ):
        by_share = [difference(values, lengths, (one, share), (other, share)) for share in shares]
        overall = [fmean(each[seed] for each in by_share) for seed in range(len(by_share[0]))]
        sentences.append(f"- Over all lengths and shares, {one}s are {judged(overall, than)}.")
    return "\n".join(sentences)


def best_at(values: list[Json], length: int, shares: list[float]) -> str:
    """Which mean and which decay are best at a length, and how they differ. Each is best over all seeds."""
    options = {(by, share): losses(values, by, share, length) for by in WAYS for share in shares}
    decay, mean = (
        min(some, key=lambda each: fmean(options[each]))
        for some in (
            [each for each in options if each[0] == WAYS[0]],
            [each for each in options if each[0] != WAYS[0]],
        )
    )
    differences = difference(values, [length], mean, decay)
    what = f"the best mean ({mean[0].removesuffix(' mean')}, {percent(mean[1])})"
    gained = difference(values, [length], ("trunk", 0.0), decay)
    sentence = f"- At {length} steps, {what} is {judged(differences, f'the best decay, {percent(decay[1])}')}."
    if fmean(gained) <= 0 or not is_shown(gained):
        return sentence
    return f"{sentence} It has {percent(1 - fmean(differences) / fmean(gained))} of what that gains over the trunk."


# -------------------------------------------------------------------------------------------------------------- rungs

RANKED = ("own losses", "cooldowns", "means")
PAIRS = (("means", "own losses"), ("cooldowns", "own losses"), ("means", "cooldowns"))


def rungs_table(rungs: list[Json]) -> str:
    rows = []
    for by in RANKED:
        found = [row for row in rungs if row["by"] == by]
        best = sum(row["is_best"] for row in found)
        rows.append(
            [
                by,
                with_error([row["regret"] for row in found]),
                f"{best} of {len(found)}",
                with_error([row["order"] for row in found], 2),
                f"{fmean(row['steps'] for row in found):.0f}",
            ]
        )
    return table(["ranked by", "regret", "best found", "order", "steps"], rows)


def rungs_differences_table(rungs: list[Json]) -> str:
    rows = [
        [
            f"{one} - {other}",
            with_error(paired(rungs, one, other, "regret")),
            with_error(paired(rungs, one, other, "order"), 2),
        ]
        for one, other in (("means", "own losses"), ("cooldowns", "own losses"), ("means", "cooldowns"))
    ]
    return table(["difference", "regret", "order"], rows)


def paired(rungs: list[Json], one: str, other: str, field: str) -> list[float]:
    by_task = {(row["task"], row["by"]): row[field] for row in rungs}
    return [by_task[task, one] - by_task[task, other] for task in distinct(rungs, "task")]


def rungs_verdict(rungs: list[Json]) -> str:
    return "\n".join(f"- {one.capitalize()} against {other}: {compared(rungs, one, other)}." for one, other in PAIRS)


def compared(rungs: list[Json], one: str, other: str) -> str:
    """The differences between two ways to rank that are shown."""
    found = {field: paired(rungs, one, other, field) for field in ("regret", "order")}
    shown = [
        f"the {field} is {'higher' if fmean(values) > 0 else 'lower'} ({with_error(values)})"
        for field, values in found.items()
        if is_shown(values)
    ]
    return " and ".join(shown) or "no difference is shown"


# --------------------------------------------------------------------------------------------------------------- words


def judged(differences: Sequence[float], than: str) -> str:
    """A difference of losses in words, with its error."""
    if not is_shown(differences):
        return f"not shown to differ from {than} ({with_error(differences)})"
    return f"{'worse' if fmean(differences) > 0 else 'better'} than {than} ({with_error(differences)})"


def is_shown(differences: Sequence[float]) -> bool:
    """Whether a mean difference is beyond its 95 % interval."""
    return abs(fmean(differences)) > quantile(len(differences)) * error(differences)


def quantile(number: int) -> float:
    return QUANTILES[max(known for known in QUANTILES if known <= number)]


def error(values: Sequence[float]) -> float:
    """The standard error of the mean."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("inf")


def with_error(values: Sequence[float], digits: int = 4) -> str:
    return f"{round(fmean(values), digits) + 0.0:.{digits}f} ± {error(values):.{digits}f}"


def marked(values: Sequence[float], is_best: bool) -> str:
    text = with_error(values)
    return f"**{text}**" if is_best else text


def percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def listed(words: Iterable[str]) -> str:
    words = list(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def distinct(rows: list[Json], field: str) -> list[Any]:
    return sorted({row[field] for row in rows})


if __name__ == "__main__":
    main()
