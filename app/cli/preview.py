"""`stagetree preview`: the cost of a study, with packs and gangs by the measurements of earlier studies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import study_files
from app.cli.errors import USAGE, fail
from app.cli.options import DEFAULT_DIR, Changes, Output, Store, StudyFile, Trainers, is_store
from app.cli.output import Format, one_line, plural, print_json
from stagetree.text import percent, rough_duration

if TYPE_CHECKING:
    from app.registry import TrainerSource
    from stagetree.spec import StudySpec

Json = dict[str, Any]


@contextmanager
def local_measurements(
    spec: StudySpec, source: TrainerSource | None, folder: Path | None
) -> Iterator[tuple[Json, list[str]]]:
    """The store's measurements for the study's trainer, and sentences on what the study would learn from others.

    Raises `SpecError` if the study cannot learn from the studies in `learn_from`.
    """
    where = folder or DEFAULT_DIR
    if not (folder or is_store(where)) or not (source or spec.learn_from):
        no_store = "learn_from is looked at when the study is submitted: there is no store here"
        yield {}, [no_store] if spec.learn_from else []
        return
    from app.cli.store import Store
    from app.service.submission import opening_event

    with Store(where) as store:
        learned = store.learned(spec) if spec.learn_from else []
        if source is None:
            yield {}, learned
            return
        plan = opening_event(spec, source)
        profiles: Json = {"measured": lambda batch, kind: store.profile(plan, batch, kind, spec.devices)}
        yield profiles | store.measured(plan), learned


def choice_lines(choices: list[Json]) -> Iterator[str]:
    """By field, the steps saved by removing each of its values."""
    for field, options in groupby(choices, key=lambda each: each["field"]):
        priced = (f"{json.dumps(option['value'])}: {option['steps']}" for option in options)
        yield f"{field}  {', '.join(priced)} fewer steps without it"


def saving_lines(costs: Json) -> Iterator[str]:
    """The savings by sharing and by early stopping, each of its own baseline."""
    if costs["saved_by_sharing"]:
        yield f"{percent(costs['saved_by_sharing'])} by sharing: of the {costs['requested']} steps that the trials take"
    if costs["saved_by_stopping"]:
        whole = f"of {costs['alone']} steps to every trial's end"
        yield f"{percent(costs['saved_by_stopping'])} by early stopping: {whole}"
    if costs["by_results"]:
        yield "a guess, as if all results were equal: in a run they are not, and its numbers are others"


def budget_lines(costs: Json) -> Iterator[str]:
    """The budgets that will end the study."""
    budget = costs.get("budget") or {}
    if ends := budget.get("ends"):
        done = f"{ends['trials']} of {plural(costs['trials'], 'trial')} reach their end"
        yield f"{ends['by']} ends it after {plural(ends['steps'], 'step')}: {done}"
    if seconds := budget.get("seconds_per_step"):
        yield f"max_slot_seconds ends it before that, if a step takes a slot more than {seconds:g} s on average"


def time_text(time: Json, slots: int) -> str:
    """The estimated time with its error, on one line."""
    whole, makespan = rough_duration(time["slot_seconds"]), rough_duration(time["makespan_seconds"])
    off = f"{percent(time['error'])} off" if time["error"] < 1 else "off by more than itself"
    how = f"steps of {time['settings']} settings were measured here, an estimate is {off} (median)"
    return f"about {whole} of slot time, {makespan} on {plural(slots, 'slot')}; {how}"


def memory_text(memory: Json) -> str:
    """The measured peak memory, on one line."""
    where = f" on {one_line(memory['gpu'])}" if memory["gpu"] else ""
    which = "" if memory["seen"] == memory["sizes"] else f"{memory['seen']} of {plural(memory['sizes'], 'size')} of "
    return f"about {memory['bytes'] / 2**30:.2g} GiB{where}, the most that stages here took with {which}such batches"


def packed_text(costs: Json) -> str:
    """The effect of packs on the time, on one line."""
    width, device = costs["packing"]["width"], costs["packing"]["device"]
    if not width:
        return f"none: trials alone are faster, as measured on {one_line(device)}"
    packs = f"makespan {costs['packed_makespan_steps']} steps of time, with packs of {width}"
    if device is None:
        return f"{packs}, if a pack takes no longer than a trial: nothing was measured yet"
    return f"{packs}, as measured on {one_line(device)}"


def ranks_text(costs: Json) -> str:
    """The assumed speed-up by several devices, on one line."""
    times_faster, assumed = costs["ranks"]["times_faster"], costs["ranks"]["assumed"]
    faster = ", ".join(f"{ranks}: {times}" for ranks, times in times_faster.items())
    how = "nothing was measured yet"
    if kind := costs["ranks"]["kind"]:
        how = f"measured on {one_line(kind)}"
        how += f", but for {', '.join(map(str, assumed))}" if assumed else ""
    return f"times faster, by how many devices train a stage: {faster}; {how}"


def cost_lines(costs: Json, slots: int) -> Iterator[str]:
    """The cost of a study, line by line."""
    yield f"trials          {costs['trials']}"
    unique = f"{costs['unique']} unique: merge rate {costs['merge_rate']}"
    yield f"steps           {costs['requested']} that the trials take, {unique}"
    for number, line in enumerate(saving_lines(costs)):
        yield f"{'' if number else 'saved':<15} {line}"
    if merges := costs.get("merges"):
        states = f"{merges['states']} states that are saved for them"
        yield f"merges          {merges['trials']} of the trials, from {states}: values at rungs, for no step"
    if cooldowns := costs.get("cooldowns"):
        yield f"cooldowns       {cooldowns['trials']} of the trials, {cooldowns['steps']} of the steps: values at rungs"
    alone = "" if "ranks" in costs else ": no number of slots is faster"
    yield f"critical path   {costs['critical_path_steps']} steps{alone}"
    yield f"makespan        {costs['makespan_steps']} steps of time on {plural(slots, 'slot')}"
    if "time" in costs:
        yield f"time            {time_text(costs['time'], slots)}"
    for number, memory in enumerate(costs["memory"]):
        yield f"{'' if number else 'memory':<15} {memory_text(memory)}"
    for number, line in enumerate(budget_lines(costs)):
        yield f"{'' if number else 'budget':<15} {line}"
    if "packed_makespan_steps" in costs:
        yield f"packing         {packed_text(costs)}"
    if "ranks" in costs:
        yield f"ranks           {ranks_text(costs)}"
    for number, line in enumerate(choice_lines(costs["choices"])):
        yield f"{'' if number else 'choices':<15} {line}"
    for each in costs["advice"]:
        yield f"advice          {each}"
    for each in costs["rewrites"]:
        steps = f"{each['unique']} steps instead of {costs['unique']}, {percent(each['saved'])} less"
        saving = f"{each['name']}: {steps}: {each['change']}"
        yield f"rewrite         {saving}; --rewrite {each['name']} prints the study file"


def rewritten_study(costs: Json, name: str) -> Json:
    """The study file of a rewrite. Exits if it is not offered."""
    offered = {each["name"]: each["study"] for each in costs["rewrites"]}
    if name not in offered:
        there = f"must be one of {', '.join(offered)}" if offered else "there is none that saves steps for this study"
        fail(f"--rewrite: {there}, got {name}", USAGE)
    study: Json = offered[name]
    return study


def preview(
    study: StudyFile,
    slots: Annotated[
        int, typer.Option("--slots", metavar="N", min=1, help="How many slots to plan for, all of one kind.")
    ] = 1,
    trainers: Trainers = None,
    store: Store = None,
    changes: Changes = None,
    rewrite: Annotated[
        str | None,
        typer.Option("--rewrite", metavar="NAME", help="Print the study file of this rewrite instead."),
    ] = None,
    output: Output = Format.table,
) -> None:
    """Print what a study would cost and save. Trains nothing.

    \b
    Example:  stagetree preview study.yaml --slots 4
    """
    from app.cli.trainer_files import find_trainer
    from app.settings import settings
    from app.simulation.preview import preview as previewed
    from stagetree.spec.file import write

    limits = settings().limits
    spec = study_files.load(study, changes or (), limits)
    study_files.check_tuner(spec)
    source = find_trainer(spec, study, trainers or [])
    with local_measurements(spec, source, store) as (measured, learned):
        costs = previewed(spec, slots=slots, limits=limits, **measured)
    costs["advice"] += () if source is None else study_files.trainer_advice(spec, source)
    costs["advice"] += [*study_files.missing_advice(spec), *learned]
    shown = costs if rewrite is None else rewritten_study(costs, rewrite)
    if output is Format.json:
        print_json(shown)
    elif rewrite is not None:
        print(write(shown), end="")
    else:
        print(*cost_lines(costs, slots), sep="\n")
