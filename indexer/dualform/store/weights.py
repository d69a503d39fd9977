"""Weights in a memory's folder, as safetensors files, and the sums of what was deleted.

The sums of what was deleted, on disk: no slot's part of the weights, which stands like W_0.

They lie in weights/forgotten-NNNNN.safetensors, float64, as KIND/BLOCK: "weight" or the optimizer's own name of a
buffer, and the name of a parameter block, the way round that it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from dualform.store.files.durable_files import checksum, damaged, make_folders, read_regular, unreadable, write_whole
from dualform.store.manifest import DeletedSamples, FileMark, Manifest

Buffers: TypeAlias = Mapping[str, Mapping[str, NDArray[Any]]]
"""What an optimizer keeps, by parameter and by the optimizer's own name for it."""
_BUFFERS, _MOMENTUM = "buffers", "momentum"


WEIGHTS = "weights/"
"""Where such files lie, within the memory."""


def weights_file(name: str) -> str:
    """Its path within the memory."""
    return f"{WEIGHTS}{name}.safetensors"


def write_weights(memory: Path, name: str, weights: Mapping[str, NDArray[Any]]) -> tuple[str, int, str]:
    """Write weights/NAME.safetensors durably; returns its path within the memory, size and checksum."""
    content = safetensors.numpy.save({key: np.asarray(array, order="C") for key, array in weights.items()})
    file = weights_file(name)
    make_folders(memory / "weights")
    write_whole(memory / file, content)
    return file, len(content), checksum(content)


def read_weights(memory: Path, name: str, files: Mapping[str, FileMark]) -> dict[str, NDArray[Any]] | None:
    """The weights by name; None where none were stored under it. Raises Damaged, naming the file."""
    file = weights_file(name)
    if file not in files:
        return None
    content = read_checked(memory / file, files[file])
    try:
        return safetensors.numpy.load(content)
    except (safetensors.SafetensorError, ValueError, LookupError, TypeError) as error:
        raise damaged(memory / file, f"is not a safetensors file: {error}") from None


def write_buffers(memory: Path, buffers: Buffers) -> tuple[str, int, str]:
    """Write weights/buffers.safetensors, each array as BUFFER/PARAMETER; returns as `write_weights`."""
    named = {f"{kind}/{name}": array for name, own in buffers.items() for kind, array in own.items()}
    return write_weights(memory, _BUFFERS, named)


def read_buffers(memory: Path, files: Mapping[str, FileMark]) -> dict[str, dict[str, NDArray[Any]]]:
    """The buffers that were stored; empty where none were. Raises Damaged, naming the file."""
    # SGD's were momentum.safetensors, by parameter, in the first memories of format 2.
    stored = {f"momentum_buffer/{name}": a for name, a in (read_weights(memory, _MOMENTUM, files) or {}).items()}
    stored |= read_weights(memory, _BUFFERS, files) or {}
    found: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in stored.items():
        kind, _, parameter = name.partition("/")
        found.setdefault(parameter, {})[kind] = array
    return found


def read_checked(path: Path, mark: FileMark) -> bytes:
    """A file's content, verified. Raises Damaged, naming the file, where it is not what was committed."""
    try:
        content = read_regular(path)
    except OSError as error:
        raise unreadable(path, error) from None
    if len(content) != mark.bytes:
        raise damaged(path, f"has {len(content)} bytes instead of {mark.bytes}")
    if checksum(content) != mark.checksum:
        raise damaged(path, "was altered: its checksum does not match")
    return content


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
