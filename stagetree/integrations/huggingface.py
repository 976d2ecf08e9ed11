"""A model of Transformers, with adapters of PEFT or without, in our loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stagetree.torch_trainer import TorchTrainer

NO_DECAY = ("bias", "norm")


class HFTrainer(TorchTrainer):
    """Trains a model that returns its loss when it is called with a batch, as those of Transformers do.

        class Mine(HFTrainer):
            name = "mine"

            def __init__(self, *, seed: int, device: str) -> None:
                train, valid = tokens()  # samples are dicts: input_ids, labels, ...
                model = get_peft_model(AutoModelForCausalLM.from_config(config), LoraConfig(r=8))
                super().__init__(seed=seed, device=device, model=model, train_data=train, valid_data=valid)

    The optimizer is AdamW without weight decay on biases and norms; override `make_optimizer` for another. With
    `trainable_only`, a checkpoint holds the parameters that are trained and no others, which must then be built the
    same each time: from the seed, or from files.
    """

    def __init__(
        self, *, collator: Callable[[list[Any]], Any] | None = None, trainable_only: bool = False, **arguments: Any
    ) -> None:
        """As `TorchTrainer`. collator: makes a batch of samples, such as one of Transformers' data collators."""
        self._collator, self._trainable_only = collator, trainable_only
        super().__init__(**arguments)

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        """AdamW over what is trained."""
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

    def loss(self, batch: Any) -> Tensor:
        """The model's own."""
        loss: Tensor = self.model(**batch).loss
        return loss

    def state_dict(self) -> dict[str, Any]:
        """See `Trainer.state_dict`."""
        state = super().state_dict()
        if self._trainable_only:
            trained = {name for name, each in self.model.named_parameters() if each.requires_grad}
            state["model"] = {name: each for name, each in state["model"].items() if name in trained}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Trainer.load_state_dict`."""
        if self._trainable_only:
            state = {**state, "model": {**_frozen(self.model, state["model"]), **state["model"]}}
        super().load_state_dict(state)


def _frozen(model: nn.Module, saved: Mapping[str, Any]) -> dict[str, Tensor]:
    """What a model has beside what was saved of it."""
    return {name: each for name, each in model.state_dict().items() if name not in saved}
