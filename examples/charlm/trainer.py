"""A language model of characters, small enough for a CPU: a transformer that learns to write like Lewis Carroll.

What a study of it shows: one warm-up and one stable phase, trained once, and many decays that branch off it. For a GPU
there is a text of 10 MB that is on every machine: the sources of Python's own library.
"""

from __future__ import annotations

import platform
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer

TEXT = Path(__file__).with_name("alice.txt")


class CharLM(TorchTrainer):
    """Hyper-parameters: `lr`, `weight_decay`, `bs`, `seq_len`, `data_seed`. A step is `batches_per_step` batches.

    `text` is `alice`, or `python3.12.3`: the library of that Python, which must be the one that runs. Another version
    has another text, so it is an argument, by which trials share.

    With `streams`, the text is divided into windows with speech and windows without, and `data` mixes the two.

    Shapes in the comments: B windows in a batch, T characters in a window, C features, H heads, V letters.
    """

    name = "charlm"

    def __init__(
        self,
        *,
        seed: int,
        device: str,
        layers: int = 2,
        width: int = 64,
        heads: int = 4,
        context: int = 64,
        dropout: float = 0.1,
        batches_per_step: int = 20,
        precision: str = "fp32",
        micro_batch_size: int | None = None,
        streams: bool = False,
        text: str = "alice",
    ) -> None:
        letters, train, valid = windows(text, context)
        model = Transformer(letters, layers=layers, width=width, heads=heads, context=context, dropout=dropout)
        super().__init__(
            seed=seed,
            device=device,
            model=model,
            train_data=by_speech(train, sorted(set(TEXT.read_bytes())).index(ord("`"))) if streams else train,
            valid_data=valid,
            batches_per_step=batches_per_step,
            precision=precision,
            micro_batch_size=micro_batch_size,
            clip_grad_norm=1.0,
        )

    def make_optimizer(self, hp: dict[str, Any]) -> torch.optim.Optimizer:
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        vectors = [p for p in self.model.parameters() if p.dim() <= 1]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=hp["lr"], betas=(0.9, 0.95))

    def shorten(self, batch: list[Tensor], seq_len: int) -> Any:
        return super().shorten(batch, seq_len + 1)  # the last letter is only predicted

    def loss(self, batch: list[Tensor]) -> Tensor:
        window = batch[0].long()  # [B, T + 1]
        scores = self.model(window[:, :-1])  # [B, T, V]
        return cross_entropy(scores.flatten(0, 1), window[:, 1:].flatten())


def text_of(name: str) -> bytes:
    """Raises `ValueError` for a version of Python that does not run here."""
    if name == "alice":
        return TEXT.read_bytes()
    here = f"python{platform.python_version()}"
    if name != here:
        raise ValueError(f"text: {name!r} is not here: write alice or {here}")
    library = Path(sysconfig.get_path("stdlib"))
    files = (file.relative_to(library) for file in library.rglob("*.py"))
    chosen = sorted(file for file in files if not {"site-packages", "dist-packages", "test"} & set(file.parts))
    return b"".join((library / file).read_bytes() for file in chosen)


@cache
def windows(text: str, context: int) -> tuple[int, TensorDataset, TensorDataset]:
    """How many different letters there are, and the text in windows: the first nine tenths to train on.

    A window begins where the one before it ends, and is one letter longer than `context`: the last is only predicted.
    """
    letters = torch.frombuffer(bytearray(text_of(text)), dtype=torch.uint8)
    is_used = torch.bincount(letters, minlength=256) > 0
    codes = (is_used.cumsum(0) - 1).to(torch.uint8)[letters.int()]
    train, valid = codes.tensor_split([len(codes) * 9 // 10])
    return int(is_used.sum()), *(TensorDataset(part.unfold(0, context + 1, context)) for part in (train, valid))


def by_speech(data: TensorDataset, quote: int) -> dict[str, TensorDataset]:
    """The windows with a quotation mark, and the others."""
    (rows,) = data.tensors
    speaks = (rows == quote).any(dim=1)
    return {"speech": TensorDataset(rows[speaks]), "prose": TensorDataset(rows[~speaks])}


class Transformer(nn.Module):
    """Scores for the next letter at each place, from the letters up to there."""

    def __init__(self, letters: int, *, layers: int, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.letter = nn.Embedding(letters, width)
        self.place = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, letters)

    def forward(self, window: Tensor) -> Tensor:
        places = torch.arange(window.shape[1], device=window.device)
        features = self.dropout(self.letter(window) + self.place(places))  # [B, T, C]
        return self.scores(self.norm(self.blocks(features)))  # [B, T, V]


class Block(nn.Module):
    """Attention to what came before, then a small network at each place."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm(x)))
        return x + self.dropout(self.mlp(x))

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each [B, H, T, C / H]
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))  # [B, T, C]
