"""The causes that may be named for each wrong trainer of the bank; others may name only the common ones."""

from __future__ import annotations

LOST = ("train() reads something that load_state_dict() and setup() do not restore",)
CHANCE = ("training is not repeatable even without a break",)
MEASURING = ("evaluate() or state_dict() changes something that train() reads",)
METRIC = ("evaluate() changes its own inputs, or reads something that load_state_dict() does not restore",)

ATTRIBUTES = {
    "counter": "self.count",
    "scheduler": "self.factor",
    "late-decay": "self.count",
    "late-curriculum": "self.count",
    "frozen-at-step": "self.count",
    "average": "self.ema",
    "late-average": "self.held",
    "momentum": "self.velocity",
    "patience": "self.bad",
    "accumulates": "self.optimizer.param_groups, self.model._parameters, self.model._modules",
    "accumulates-cleared": "self.optimizer.param_groups, self.model._parameters, self.model._modules",
    "accumulation": "self.gradient",
    "loss-scale": "self.good, self.scale",
    "narrow": "self.place",
    "other-key": "self.count",
    "truncated": "self.history",
    "single-precision": "self.weight",
    "six-digits": "self.weight",
    "normaliser": "self.seen, self.mean, self.spread",
    "replay-buffer": "self.buffer",
    "target-network": "self.target",
    "vocabulary": "self.numbers",
    "snapshot": "self.reference",
    "numpy-generator": "self.rng",
    "python-generator": "self.rng",
    "torch-generator": "self.generator",
    "hidden-generator": "self.augment.pipeline",
    "loader-generator": "self.batches._sampler_iter, self.batches._num_yielded",
    "stream": "self.samples",
    "measuring-sums": "self.total, self.times",
    "adding": "self.lr",
    "counts-setups": "self.phase",
    "first-rate": "self.first",
    "hooks": "self.hooks",
    "mutable-default": "MutableDefault.push (of the class)",
    "scratch": "self.file.name, self.file._closer, self.file.seek",
    "since-change": "self.since",
    "together": "self.wd",
    "data-position": "self.count",
    "shuffled-order": "self.order",
    "unseen": "self.left",
    "global": "steps_taken (a global of wrong_process.py)",
    "class-attribute": "ClassAttribute.taken (of the class)",
    "without-optimizer": "self.optimizer.state",
    "parameters-only": "self.model._modules, self.optimizer.param_groups",
    "module-counts": "self.model.passes",
    "gradient-hooks": "self.model._parameters, self.optimizer.state, self.optimizer.param_groups",
    "late-head": "self.count",
    "shared-tensor": "SharedTensor.table (of the class)",
    "own-average": "self.mean",
    "own-noise": "self.noise",
    "late-freeze": "self.updates",
    "own-penalty": "self.smoothing",
    "windowed": "self.mean.total, self.mean.seen",
    "queued": "self.queue.queue, self.queue.unfinished_tasks",
    "generator-window": "self.rollout",
    "averages-weights": "self.taken",
    "on-the-optimizer": "self.optimizer.updates",
    "looks-ahead": "self.optimizer.count, self.optimizer.slow",
    "scheduler-left-out": "self.schedule.last_epoch, self.schedule._step_count, self.schedule._last_lr, "
    "self.spare._opt_called, self.schedule.optimizer, self.spare.param_groups",
    "late-copy": "self.optimizer.param_groups, self.copied, self.copied._parameters, self.copied._modules",
    "buffered-window": "self.window._buffers",
    "reads-at-first": "self.first",
    "late-parameters": "self.model._modules, self.optimizer.state, self.optimizer.param_groups",
    "late-numbers": "self.numbers",
}
"""By trainer: what its state leaves out."""

OTHERS: dict[str, tuple[str, ...]] = {
    "saving-rounds": METRIC,
    "saving-counts": CHANCE,  # which says that saving may change the model
    "smooths-late": (*METRIC, *MEASURING),
    **dict.fromkeys(("moves-on-late", "rolls-back", "measuring-draws", "measuring-reads"), MEASURING),
    **dict.fromkeys(("measuring-schedules", "stays-in-evaluation"), MEASURING),
    **dict.fromkeys(("unseeded", "clock", "race", "process-id", "age", "set-of-parts"), CHANCE),
    "addresses": (*CHANCE, *MEASURING),
}


def is_true(trainer: str, difference: str) -> bool:
    """Whether the cause that is named with a difference is the trainer's, as far as it says one."""
    if not difference:
        return True
    likely, possible = (difference.rpartition(f". {word}: ") for word in ("Likely", "Possible"))
    cause = (likely if likely[1] else possible)[2]
    if not (likely[1] or possible[1]):
        return "the trainer failed" in difference  # and says with what
    if name := ATTRIBUTES.get(trainer):
        named = cause.partition(" not restored")[0]
        forgotten = name.split(", ")
        return cause.startswith(LOST) or all(is_part(each, forgotten) for each in named.split(", "))
    return cause.startswith(OTHERS.get(trainer, ()) + (() if "of equal weights" in difference else LOST))


def is_part(name: str, objects: list[str]) -> bool:
    """Whether a name is that of one of these objects, or of an attribute of one."""
    return any(name == each or name.startswith(f"{each}.") for each in objects)
