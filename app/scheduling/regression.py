"""The regression that estimates are made with, in NumPy, which is slow to import: apart from what only reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def regression(
    features: Sequence[Mapping[str, float]], logarithms: Sequence[float], counts: Sequence[int]
) -> tuple[float, dict[str, float], list[float]] | None:
    """The base, and the weight of each feature, that fit one logarithm for each row of features best.

    counts: over how many steps each is a mean, which makes it so much surer. Third, how far each would have been off,
    had the others alone foretold it: its residual over one less its leverage, which is exact for least squares (Allen
    1974, PRESS). None where no float can hold a solution.
    """
    names = sorted({name for each in features for name in each})
    x = np.array([[1.0, *(each.get(name, 0.0) for name in names)] for each in features])
    root = np.sqrt(counts)
    ridge = 1e-3 * np.eye(x.shape[1])  # and kinds of GPU differ from their mean, which stands for all others
    ridge[0, 0] = 0
    rows = np.vstack([x * root[:, None], ridge])
    values = np.concatenate([np.array(logarithms) * root, np.zeros(len(ridge))])
    try:
        weights = np.linalg.lstsq(rows, values, rcond=None)[0]
        leverage = (np.linalg.qr(rows)[0][: len(root)] ** 2).sum(axis=1)
    except np.linalg.LinAlgError:
        return None
    off = (values - rows @ weights)[: len(root)] / np.maximum(1 - leverage, 1e-9) / root
    return float(weights[0]), dict(zip(names, map(float, weights[1:]), strict=True)), off.tolist()
