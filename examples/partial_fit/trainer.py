"""scikit-learn, without PyTorch's help: a linear classifier that learns a pass over the digits at a time.

Anything with `partial_fit` can be trained so, if all that it remembers can be taken out and put back: arrays are part
of a state as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from stagetree import Trainer


class Linear(Trainer):
    """Hyper-parameters: `eta0` (the learning rate), `alpha` (of the penalty). A step is a pass over the data."""

    name = "linear"
    caches = ("model.random_state",)  # set before each step

    def __init__(self, *, seed: int, device: str, penalty: str = "l2") -> None:
        super().__init__(seed=seed, device=device)
        images, labels = load_digits(return_X_y=True)
        split = train_test_split(images / 16, labels, test_size=0.2, random_state=seed, stratify=labels)
        self.train_images, self.valid_images, self.train_labels, self.valid_labels = split
        self.classes = np.unique(labels)
        self.model = SGDClassifier(loss="log_loss", penalty=penalty, learning_rate="constant")
        self.passes = 0

    def setup(self, hp: dict[str, Any]) -> None:
        self.model.set_params(**hp)

    def train(self) -> None:
        self.model.set_params(random_state=(self.seed + self.passes) % 2**32)  # shuffles as a function of the place
        self.model.partial_fit(self.train_images, self.train_labels, classes=self.classes)
        self.passes += 1

    def evaluate(self) -> dict[str, float]:
        chances = self.model.predict_proba(self.valid_images)
        accuracy = (self.classes[chances.argmax(axis=1)] == self.valid_labels).mean()
        return {"val_accuracy": float(accuracy), "val_loss": float(log_loss(self.valid_labels, chances))}

    def state_dict(self) -> dict[str, Any]:
        model = self.model
        return {"coef": model.coef_, "intercept": model.intercept_, "updates": model.t_, "passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.partial_fit(self.train_images[:50], self.train_labels[:50], classes=self.classes)  # makes its arrays
        self.model.coef_[:], self.model.intercept_[:] = state["coef"], state["intercept"]
        self.model.t_, self.passes = state["updates"], state["passes"]
