"""The sums of what was deleted, on disk: no slot's part of the weights, which stands like W_0.

They lie in weights/forgotten-NNNNN.safetensors, float64, as KIND/BLOCK: "weight" or the optimizer's own name of a
buffer, and the name of a parameter block, the way round that it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.store.deleted_samples import DeletedSamples
from dualform.store.manifest import FileMark, Manifest
from dualform.store.weights import read_weights, write_weights

_WEIGHT = "weight"


@dataclass(frozen=True, eq=False)
class BlockSum:
    """Of one parameter block, the way round that it is stored; float64."""

    weight: NDArray[np.float64]
    buffers: Mapping[str, NDArray[np.float64]]
    """By the optimizer's own names."""


@dataclass(frozen=True, eq=False)
class DeletedPart:
    """What was deleted of one folder, in the steps of the memory that is asked."""

    entry: DeletedSamples
    folder: Path
    manifest: Manifest
    before: int = 0
    """Steps of the memory before the folder's."""

    @property
    def first_step(self) -> int:
        return self.before + self.entry.first_step

    @property
    def at_step(self) -> int:
        """As of when the sums stand."""
        return self.before + self.entry.steps

    @cached_property
    def sums(self) -> dict[str, BlockSum]:
        """By block name. Raises Damaged, naming the file."""
        found: dict[str, dict[str, NDArray[Any]]] = {}
        for name, array in (read_weights(self.folder, self.entry.sums, self.manifest.files) or {}).items():
            kind, _, block = name.partition("/")
            found.setdefault(block, {})[kind] = array
        return {block: BlockSum(own.pop(_WEIGHT), own) for block, own in found.items()}


def write_sums(memory: Path, name: str, sums: Mapping[str, BlockSum]) -> tuple[str, FileMark]:
    """Write them durably; returns the file's path within the memory, and its mark."""
    arrays = {
        f"{kind}/{block}": array
        for block, own in sums.items()
        for kind, array in {_WEIGHT: own.weight, **own.buffers}.items()
    }
    file, size, digest = write_weights(memory, name, arrays)
    return file, FileMark(size, digest)
