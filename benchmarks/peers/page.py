"""Make `docs/peers.md` of what the programs have kept: `python -m benchmarks.peers.page`."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from benchmarks.peers.environments import HERE, OURS, ROOT, STOPPING, lines_of, python_lines

Json = dict[str, Any]

PEERS = {"optuna": "Optuna", "ray": "Ray Tune", "syne_tune": "Syne Tune", "neps": "NePS"}
NAMES = {OURS: "stagetree", STOPPING: "stagetree, stopping", **PEERS}

TEXT = """# Beside other tools

The same three searches with stagetree, Optuna, Ray Tune, Syne Tune and NePS, on two slots of one machine. Each tool
has a program as an experienced user would write it, and an environment of its own. All train the same network in
the same module, `benchmarks/peers/model.py`, so that equal steps give equal bits, and evaluate as often.
`python -m benchmarks.peers` makes the environments, runs the programs in turn, and writes this page.

This run was of {date}, on {cores} cores ({cpu}), Python {python}, torch {torch}, without a GPU. {load}

Rounds: {rounds}. A figure is the middle of a tool's rounds, and "times" the middle of its ratios to
stagetree in each: where two were run in other rounds, only "times" compares them.

| column | meaning |
|---|---|
| wall | seconds from the command's start to its end |
| first step | seconds until the first step of training begins |
| slot seconds | seconds in steps and evaluations, summed over both slots |
| processor | the processor's time in them, which other work on the machine lengthens less |
| steps, evaluations | how many were run, those of stagetree's proofs included |
| best | the lowest validation loss of all evaluations |

## Where a peer wins

{wins}

## A ladder of cooldowns

Four lengths of a training, 20 to 80 steps at the full rate, and three cooldowns from each: 12 trials, 712 steps one
by one. They differ only from step 20, 40, 60 or 80 on.

{ladder}

## The reference grid

32 trials of 40 steps: [the space of the reference study](examples.md), four ways to begin, and changes of three
hyper-parameters later. 1280 steps one by one, 608 of them different.

{grid}

## ASHA to a target

48 configurations of rate, momentum and weight decay, drawn over a wide range; rungs at 2, 6, 18 and 54 steps, one of
three continues. The search ends at a loss of {target}. Trials differ from step 0, so **there is nothing to share**:
this is the task for which the other tools are made. All but NePS, whose `asha` takes no list, begin with the same
configurations in the same order.

{asha}

stagetree and NePS promote: a trial waits at its rung, and is resumed when it is among the best third: of all that came
there, or with NePS of trials that were not promoted before, so that few are left behind in the end. Optuna, Ray
Tune and Syne Tune stop: it is decided once, when a trial comes to its rung, and the first ones there continue in any
case. stagetree has that rule, too, as `type: stopping`. Which configuration comes to the target first is also a matter
of luck, for which these rounds are few.

## Lines to write

Lines of the program for all three tasks, without blanks, comments, docstrings and the model; of stagetree three study
files and a trainer. The peers also share the {shared} lines of `benchmarks/peers/tasks.py`, in which spaces are listed
and schedules are written as functions of a step; stagetree's are fields of its study files.

{lines}

## Not compared

- **ifBO**, the method with which NePS freezes and thaws trials, takes the weights of its surrogate from a site that
  could not be reached when this was run. NePS is shown with ASHA.
- **A trunk written by hand.** A peer's trial begins at step 0 (but in population based training, which copies states),
  and yet a program may save the states of a trunk and load them in its trials. For one ladder that is a few lines
  more; stagetree does it for any space, and verifies that the bits are equal.
- **Kept models.** stagetree, Ray Tune and NePS store states here, and the programs of Optuna and Syne Tune none:
  theirs would have to train the best configuration again to have its weights.
- **Steps of minutes.** These take {step} s of the processor. The longer a step is, the less does it matter how a tool
  starts and hands over, and the more how many steps it runs.
- Samplers that learn, several machines, and GPUs. [When not to use it](when-not.md) says more about those.

Versions: {versions}. The programs are in `benchmarks/peers/programs`, the figures in `benchmarks/peers/results.json`.
"""

WHY = {
    "wall": "where trials share nothing, stagetree only has its costs: its processes, and its storage",
    "to_target": "which tool meets a good configuration early is a matter of luck, for which these rounds are few",
    "slot_seconds": "with fewer steps to the target, fewer seconds",
    "first_step": "stagetree starts Redis, an API, a scheduler and slots, and checks the trainer, before it trains",
}
MEASURES = {
    "wall": "the time to the end",
    "to_target": "the time to the target",
    "slot_seconds": "slot seconds",
    "first_step": "the time to the first step",
}
HELD_UP = 5
"""A run that waited for the processor for a multiple of its processor time is no measurement of the tool."""

TASK_NAMES = {"ladder": "the ladder", "grid": "the grid", "asha": "ASHA"}


def main() -> None:
    kept = json.loads((HERE / "results.json").read_text())
    (ROOT / "docs" / "peers.md").write_text(text_of(kept))


def text_of(kept: Json) -> str:
    """The page."""
    runs = kept["runs"]
    rounds = {
        task: 1 + max(run["round"] for run in runs if run["task"] == task) for task in TASK_NAMES if of(runs, task)
    }
    steps = [run["processor_seconds"] / run["steps"] for run in runs if run["steps"]]
    return TEXT.format(
        **{name: kept[name] for name in ("date", "cores", "cpu", "python", "target")},
        rounds=", ".join(f"{count} of {TASK_NAMES[task]}" for task, count in rounds.items()),
        torch=kept["versions"]["torch"],
        load=quiet_or_not(runs),
        wins=wins(runs),
        **{task: section(runs, task) for task in TASK_NAMES},
        lines=table(["tool", "lines"], [[NAMES[name], str(lines_of(name))] for name in (OURS, *PEERS)]),
        shared=python_lines(HERE / "tasks.py"),
        step=f"{median(steps):.2f}",
        versions=", ".join(versions(kept["versions"])),
    )


def quiet_or_not(runs: list[Json]) -> str:
    """What else ran on the machine, and how much that changed the same run from round to round."""
    loads = [run["load"] for run in runs]
    text = f"was {min(loads):.1f} to {max(loads):.1f} when programs were started."
    if max(loads) <= 3:
        return f"The load of the machine, these runs included, {text}"
    walls = [[run["wall"] for run in of(runs, task, program)] for task in ("ladder", "grid") for program in NAMES]
    spread = max((max(each) / min(each) for each in walls if each), default=1.0)
    return (
        f"**The machine was not quiet**: its load {text} The same program took up to {spread:.1f} times as long in one "
        "round as in another, so steps and the processor's time are the steadier figures."
    )


def versions(known: dict[str, str]) -> list[str]:
    return [value.replace("==", " ") if "==" in value else f"{name} {value}" for name, value in known.items()]


def of(runs: list[Json], task: str, program: str | None = None) -> list[Json]:
    """The runs of a task that ended well: of one program, or of all."""
    return [run for run in runs if run["task"] == task and program in (None, run["program"]) and not run["failed"]]


def middle(found: list[Json], measure: str) -> float | None:
    """Of the rounds; none where there is none, or where one of them did not get there."""
    values = [run[measure] for run in found]
    return None if not values or None in values else median(values)


def times(runs: list[Json], task: str, program: str, measure: str) -> float | None:
    """How many times as much a program takes as stagetree did in the same round."""
    ours = {run["round"]: run[measure] for run in of(runs, task, OURS)}
    theirs = {run["round"]: run[measure] for run in of(runs, task, program)}
    pairs = [theirs[each] / ours[each] for each in theirs if ours.get(each) and theirs[each] is not None]
    return median(pairs) if pairs else None


def section(runs: list[Json], task: str) -> str:
    """The table of a task, and its first tool."""
    if not of(runs, task):
        return "It was left out of this run."
    target = ["to the target"] if task == "asha" else []
    head = ["tool", "rounds", "wall", "times stagetree's", *target, "first step", "slot seconds", "processor"]
    rows = []
    for program in NAMES:
        if found := of(runs, task, program):
            factor = times(runs, task, program, "wall")
            row = [NAMES[program], str(len(found)), shown(middle(found, "wall"))]
            row.append("" if program == OURS or factor is None else f"{factor:.1f}")
            row += [shown(middle(found, "to_target")) or f"{reached(found)} of {len(found)}"] if target else []
            row += [shown(middle(found, each)) for each in ("first_step", "slot_seconds", "processor_seconds")]
            row += [f"{middle(found, each):.0f}" for each in ("steps", "evaluations")]
            rows.append([*row, f"{middle(found, 'best'):.4f}"])
    head += ["steps", "evaluations", "best"]
    return "\n\n".join([table(head, rows), first_of(runs, task), *failures(runs, task)])


def failures(runs: list[Json], task: str) -> list[str]:
    """Sentences about programs that did not come to their end, that other work held up, and that were not run."""
    failed = [NAMES[run["program"]] for run in runs if run["task"] == task and run["failed"]]
    without = [name for program, name in PEERS.items() if not of(runs, task, program) and name not in failed]
    lines = [f"Failed, and left out: {', '.join(failed)}, once for each time it is named."] if failed else []
    for program in NAMES:
        held = [run for run in of(runs, task, program) if run["slot_seconds"] > HELD_UP * run["processor_seconds"]]
        if len(held) * 2 > len(of(runs, task, program)):
            slots, processor = (f"{held[0][each]:.0f}" for each in ("slot_seconds", "processor_seconds"))
            lines.append(
                f"Other work held {NAMES[program]} up: of {slots} slot seconds the processor worked {processor}. "
                "**Its wall and slot seconds here say nothing about it.**"
            )
    return lines + ([f"Not run here: {', '.join(without)}."] if without else [])


def reached(found: list[Json]) -> int:
    return sum(run["to_target"] is not None for run in found)


def first_of(runs: list[Json], task: str) -> str:
    """A sentence about who ended first, by what each took beside stagetree in the same rounds."""
    walls = {program: took for program in NAMES if (took := times(runs, task, program, "wall")) is not None}
    ranked = sorted(walls, key=lambda program: walls[program])
    took = ", ".join(f"{NAMES[each]} {walls[each]:.1f}" for each in ranked)
    text = f"**{NAMES[ranked[0]]} was first**: times stagetree's wall in the same rounds, {took}."
    steps = {program: middle(of(runs, task, program), "steps") or 0.0 for program in walls}
    if task != "asha" and OURS in steps:
        most = max(steps.values())
        text += f" stagetree ran {steps[OURS]:.0f} steps, where trials that share nothing take {most:.0f}."
    return text


def wins(runs: list[Json]) -> str:
    """A line for each measure in which a peer was ahead, by how much, and why."""
    lines = []
    for measure, words in MEASURES.items():
        ahead = []
        for task in TASK_NAMES:
            for program in PEERS:
                factor = times(runs, task, program, measure)
                if factor is not None and factor < 0.995 and (measure != "to_target" or task == "asha"):
                    ahead.append(f"{NAMES[program]} on {TASK_NAMES[task]} ({factor:.2f} times)")
        if ahead:
            lines.append(
                f"- **{words[0].upper()}{words[1:]}**, stagetree's being 1: {', '.join(ahead)}. Why: {WHY[measure]}."
            )
    fewer = [f"{PEERS[name]} {lines_of(name)}" for name in PEERS if lines_of(name) < lines_of(OURS)]
    if fewer:
        lines.append(f"- **Lines to write**: {', '.join(fewer)}, against {lines_of(OURS)}: a study file for each task.")
    return "\n".join(lines) or "In this run, in no measurement."


def shown(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
