"""Weights beside the segments, as safetensors files under the names of the model's state dict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from dualform.store.durable_files import checksum, make_folders, read_regular, write_whole
from dualform.store.manifest import FileMark
from dualform.store.missing_files import damaged, unreadable

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
