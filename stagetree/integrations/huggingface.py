"""A model of Transformers, with or without adapters of PEFT, in our loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stagetree.trainer.owned_model import load_model
from stagetree.trainer.tensors import Mean
from stagetree.trainer.torch_trainer import TorchTrainer

NO_DECAY = ("bias", "norm")


class HFTrainer(TorchTrainer):
    """Trains a model that returns its loss when it is called with a batch, as models of Transformers do.

        class Mine(HFTrainer):
            name = "mine"

            def __init__(self, *, seed: int, device: str) -> None:
                train, valid = tokens()  # samples are dicts: input_ids, labels, ...
                model = get_peft_model(AutoModelForCausalLM.from_config(config), LoraConfig(r=8))
                super().__init__(seed=seed, device=device, model=model, train_data=train, valid_data=valid)

    The optimizer is AdamW without weight decay on biases and norms; override `make_optimizer` for another. With
    `trainable_only`, a checkpoint holds only the trainable parameters; the others must then be built the same each
    time, from the seed or from files.
    """

    def __init__(
        self, *, collator: Callable[[list[Any]], Any] | None = None, trainable_only: bool = False, **arguments: Any
    ) -> None:
        """As `TorchTrainer`. collator: makes a batch of samples, such as one of Transformers' data collators.

        Raises:
            ValueError: for arguments and methods of Transformers' Trainer, which would be ignored here.
        """
        _refuse_theirs(type(self), arguments)
        self._collator, self._trainable_only = collator, trainable_only
        super().__init__(**arguments)

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        """AdamW over the trainable parameters."""
        trained = [(name, each) for name, each in self.model.named_parameters() if each.requires_grad]
        plain = [each for name, each in trained if not any(part in name.lower() for part in NO_DECAY)]
        rest = [each for name, each in trained if any(part in name.lower() for part in NO_DECAY)]
        groups = [
            {"params": plain, "weight_decay": hp.get("weight_decay", 0.01)},
            {"params": rest, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW([group for group in groups if group["params"]], lr=hp["lr"])

    def collate(self, samples: list[Any]) -> Any:
        """By the collator, if there is one."""
        if self._collator is None:
            return super().collate(samples)
        batch = self._collator(samples)
        return dict(batch) if isinstance(batch, Mapping) else batch

    def loss(self, batch: Any) -> Mean:
        """The model's loss: for a language model as (sum, count of tokens), counted like `num_items_in_batch`."""
        loss: Tensor = self.model(**batch).loss
        count = _tokens(self.model, batch)
        if count is None:
            return loss
        return torch.where(count > 0, loss, torch.zeros_like(loss)) * count, count

    def export(self, folder: Path) -> None:
        """See `Trainer.export`: saved for `from_pretrained`, with the collator's tokenizer, if it has one."""
        super().export(folder)
        tokenizer = getattr(self._collator, "tokenizer", None)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)

    def state_dict(self) -> dict[str, Any]:
        """See `Trainer.state_dict`."""
        state = super().state_dict()
        if self._trainable_only:
            trained = self._trainable_names()
            state["model"] = {name: each for name, each in state["model"].items() if name in trained}
        return state

    def _load_model(self, saved: Mapping[str, Any]) -> None:
        """Raises ValueError for a state of other parameters than the trainable ones."""
        if not self._trainable_only:
            super()._load_model(saved)
            return
        if other := self._trainable_names() ^ saved.keys():
            raise ValueError(
                f"the trainable parameters differ from those in the checkpoint: only one of them has {min(other)}"
            )
        load_model(self.model, saved, is_whole=False)

    def _trainable_names(self) -> set[str]:
        return {name for name, each in self.model.named_parameters() if each.requires_grad}


SHIFTED, IN_PLACE = ("ForCausalLM",), ("ForMaskedLM", "ForTokenClassification")
"""Losses of Transformers that are means over tokens; the former do not predict the first label."""


def _tokens(model: nn.Module, batch: Mapping[str, Any]) -> Tensor | None:
    """The number of labels that the loss averages over; None for a mean over samples, or if unknown."""
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    labels, kind = batch.get("labels"), getattr(whole, "loss_type", None)
    if not isinstance(labels, Tensor) or kind not in SHIFTED + IN_PLACE:
        return None
    return ((labels[..., 1:] if kind in SHIFTED else labels) != -100).sum()


_THEIRS = {
    "args": "give its values as arguments: clip_grad_norm, micro_batch_size, precision; the rest is the study's",
    "compute_loss_func": "override `loss`",
    "compute_loss": "override `loss`",
    "compute_metrics": "override `measure`",
    "preprocess_logits_for_metrics": "override `measure`",
    "callbacks": "see docs/trainers.md for each callback's place",
    "optimizers": "override `make_optimizer`, and give the study's `lr` a sequence",
    "optimizer_cls_and_kwargs": "override `make_optimizer`",
    "create_optimizer": "override `make_optimizer`",
    "create_scheduler": "give the study's `lr` a sequence",
    "create_optimizer_and_scheduler": "override `make_optimizer`, and give the study's `lr` a sequence",
    "label_smoothing_factor": "override `loss`",
    "model_init": "override `build`",
    "data_collator": "call it `collator`",
    "train_dataset": "call it `train_data`",
    "eval_dataset": "call it `valid_data`",
    "processing_class": "give a `collator`",
    "training_step": "override `train_batch`",
    "prediction_step": "override `measure`",
    "evaluation_loop": "override `measure`",
    "get_train_dataloader": "override `order` and `collate`",
    "get_eval_dataloader": "give `valid_data`, and override `collate`",
}


def _refuse_theirs(kind: type, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments and methods of Transformers' Trainer, which would be silently ignored."""
    from transformers import Trainer, TrainingArguments

    ours = vars(TorchTrainer.__init__).keys() | TorchTrainer.__init__.__annotations__.keys()
    theirs = _THEIRS.keys() | TrainingArguments.__dataclass_fields__.keys()
    unused = sorted((arguments.keys() & theirs) - ours)
    names = {name for name in vars(Trainer) if not name.startswith("_")} | _THEIRS.keys()
    written = sorted(name for name in names if hasattr(kind, name) and not hasattr(HFTrainer, name))
    for name in unused + written:
        subject = f"the argument {name}" if name in unused else f"{kind.__name__}.{name}"
        raise ValueError(
            f"{subject} is of Transformers' Trainer and not used here: leave it out, and "
            f"{_THEIRS.get(name, 'look for its like in docs/trainers.md')}"
        )
