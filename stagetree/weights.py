"""The weights in a checkpoint, for any program: a safetensors file with the model's own names in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stagetree.runtime.weight_files import entries_of, export_weights, header_of, load_weights, weight_parts

__all__ = ["export_weights", "load_state", "load_weights", "weight_parts"]


def load_state(path: str | Path) -> dict[str, Any]:
    """What is in a checkpoint's file, or in one that `stagetree weights` wrote. Needs torch.

    Returns:
        Of a checkpoint, what the trainer's `state_dict` returned; of weights, tensor by name.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is no safetensors file, or only the beginning of one.
    """
    from stagetree.runtime import state_format

    image = Path(path).read_bytes()
    try:
        header, begin = header_of(image)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if begin + max((entry["data_offsets"][1] for entry in entries_of(header).values()), default=0) > len(image):
        raise ValueError(f"{path}: the file is cut off")
    if "tree" in header.get("__metadata__", {}):
        state: dict[str, Any] = state_format.unpack(image)["trainer"]
        return state
    return state_format.tensors_of(bytearray(image), begin, entries_of(header))
