"""Training with a break, as a runner does it, for tests that a break at any step changes nothing."""

from __future__ import annotations

import copy
import importlib.util
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from forks import run_in_fork

from stagetree import Trainer
from stagetree.runtime.exactness.held_values import differing_names, digest_held_values
from stagetree.sequences import parse
from stagetree.vision import prepare_torchvision


@dataclass(frozen=True)
class Case:
    """A trial of `steps` steps that is broken off after `broken` of them; `hp` as in a study file."""

    file: str
    trainer: str
    args: dict[str, Any]
    hp: dict[str, Any]
    broken: int
    steps: int
    seed: int = 0

    def values(self, step: int) -> dict[str, Any]:
        return {name: parse(sequence).at(step) for name, sequence in self.hp.items()}

    def make(self, chance: int) -> Trainer:
        seed_generators(chance)
        return load(self.file, self.trainer)(seed=self.seed, device="cpu", **self.args)


@dataclass
class Saved:
    """The saved state of a trial: the trainer's state and the generators' states."""

    state: dict[str, Any]
    generators: dict[str, Any] = field(default_factory=lambda: generators())
    metrics: dict[str, float] = field(default_factory=dict)


NOTES = {"self.seen", "self.noise", "self.model.seen"}
"""What trainers of tests write down about the steps that they trained."""


def check_resumes(case: Case, folder: Path) -> None:
    """Equal results without a break, in a fresh process after it, and in an instance that trained other steps."""
    with one_thread():
        trainer = case.make(case.seed)
        whole = train(trainer, case, 0, case.steps)
        watched = train(case.make(case.seed), case, 0, case.broken, watch=True)
        assert_plain(watched.state)
        assert_same(resume_elsewhere(case, watched, folder), whole)
        held = digest_held_values(trainer, ())
        assert_same(resume(fresh := case.make(case.seed), case, watched), whole)
        assert NOTES.issuperset(differing_names(held, digest_held_values(fresh, ()))), "else a whole trial is due"
        seed_generators(987)
        assert_same(resume(trainer, case, watched), whole)


def train(trainer: Trainer, case: Case, first: int, last: int, *, watch: bool = False) -> Saved:
    """Train on, and evaluate at the end; with `watch`, evaluate and save after every step as well."""
    before: dict[str, Any] = case.values(first - 1) if first else {}
    for step in range(first, last):
        now = case.values(step)
        changed = {name: value for name, value in now.items() if name not in before or before[name] != value}
        if changed:
            trainer.setup(changed)
        trainer.train()
        before = now
        if watch:
            evaluate(trainer)
            trainer.state_dict()
    saved = Saved(copy.deepcopy(trainer.state_dict()))
    saved.metrics = evaluate(trainer)
    return saved


def resume(trainer: Trainer, case: Case, saved: Saved) -> Saved:
    trainer.setup(case.values(case.broken - 1))
    trainer.load_state_dict(saved.state)
    set_generators(saved.generators)
    return train(trainer, case, case.broken, case.steps)


def resume_elsewhere(case: Case, saved: Saved, folder: Path) -> Saved:
    torch.save(asdict(saved), folder / "saved")
    run_in_fork(continue_in_fork, case, folder)
    return Saved(**torch.load(folder / "resumed", weights_only=False))


def continue_in_fork(case: Case, folder: Path) -> None:
    """Continue after the break, with the state saved in the folder."""
    with one_thread():
        saved = Saved(**torch.load(folder / "saved", weights_only=False))
        torch.save(asdict(resume(case.make(chance=123), case, saved)), folder / "resumed")


def evaluate(trainer: Trainer) -> dict[str, float]:
    kept = generators()
    metrics = trainer.evaluate()
    set_generators(kept)
    return metrics


def generators() -> dict[str, Any]:
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}


def set_generators(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])


def seed_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def load(file: str, name: str) -> type[Trainer]:
    """Load a trainer from a file, like a server."""
    prepare_torchvision()
    spec = importlib.util.spec_from_file_location(f"trainers_of_{Path(file).parent.name}", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    trainer: type[Trainer] = getattr(module, name)
    return trainer


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums are equal bit for bit only with an equal number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def assert_same(one: Saved, other: Saved) -> None:
    assert_equal(one.state, other.state, "state")
    assert one.metrics == other.metrics
    assert torch.equal(one.generators["torch"], other.generators["torch"])


def assert_equal(one: Any, other: Any, path: str = "") -> None:
    """Equal in structure, types and every bit."""
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_equal(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_equal(a, b, f"{path}[{number}]")
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other), path
    else:
        assert one == other, path


def assert_plain(value: Any, path: str = "state") -> None:
    """Nothing but tensors in host memory and JSON values, in lists and in dicts with str or int keys."""
    if isinstance(value, torch.Tensor):
        assert value.device.type == "cpu" and not value.requires_grad, path
    elif type(value) is dict:
        for key, item in value.items():
            assert type(key) in (str, int), path
            assert_plain(item, f"{path}.{key}")
    elif type(value) is list:
        for number, item in enumerate(value):
            assert_plain(item, f"{path}[{number}]")
    else:
        assert value is None or type(value) in (bool, int, float, str), path
