"""A project of LightningCLI: digits by a small network, with a scheduler, a callback and a configuration file.

python FILE fit --config config.yaml
"""

from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.cli import LightningCLI
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stagetree
from stagetree.integrations.lightning_loop import lightning

CONFIG = Path(__file__).parent / "config.yaml"


class Digits(pl.LightningDataModule):
    def __init__(self, batch_size: int = 64):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage):
        images, labels = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
        self.train_data, self.val_data = (
            torch.utils.data.Subset(data, range(600)),
            torch.utils.data.Subset(data, range(600, 900)),
        )

    def train_dataloader(self):
        return DataLoader(self.train_data, batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_data, batch_size=300)


class Noise(pl.Callback):
    """Less noise in the pictures from epoch to epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        pl_module.noise = 0.2 / (1 + trainer.current_epoch)


class Network(pl.LightningModule):
    def __init__(self, width: int = 32, lr: float = 0.1, dropout: float = 0.2):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 10))
        self.noise = 0.0

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.layers(x + self.noise * torch.randn_like(x)), y)
        self.log("train_loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self.layers(x)
        self.log("val_loss", F.cross_entropy(scores, y))
        self.log("val_accuracy", (scores.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)}


if __name__ == "__main__":
    run = stagetree.attach("cli", hp={"lr": 0.1}, steps=10, eval_every=5)
    how = {"seed_everything_default": run.seed, "parser_kwargs": {"default_config_files": [CONFIG]}}
    cli = LightningCLI(Network, Digits, run=False, save_config_callback=None, **how)
    lightning(run, cli.trainer, cli.model, cli.datamodule)
