"""Weights beside the segments, as safetensors files under the names of the model's state dict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from dualform.errors import Damaged
from dualform.store.durable import checksum, write_whole
from dualform.store.manifest import FileMark


def write_weights(memory: Path, name: str, weights: Mapping[str, NDArray[Any]]) -> tuple[str, int, str]:
    """Write weights/NAME.safetensors durably; returns its path within the memory, size and checksum."""
    content = safetensors.numpy.save({key: np.asarray(array, order="C") for key, array in weights.items()})
    file = f"weights/{name}.safetensors"
    (memory / "weights").mkdir(exist_ok=True)
    write_whole(memory / file, content)
    return file, len(content), checksum(content)


def read_weights(memory: Path, name: str, files: Mapping[str, FileMark]) -> dict[str, NDArray[Any]] | None:
    """The weights by name; None where none were stored under it. Raises Damaged, naming the file."""
    file = f"weights/{name}.safetensors"
    if file not in files:
        return None
    return safetensors.numpy.load(read_checked(memory / file, files[file]))


def read_checked(path: Path, mark: FileMark) -> bytes:
    """A file's content, verified. Raises Damaged, naming the file, where it is not what was committed."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) != mark.bytes:
        raise Damaged(f"{path} has {len(content)} bytes where {mark.bytes} were committed.")
    if checksum(content) != mark.checksum:
        raise Damaged(f"{path} was altered: its checksum is not the one that was committed.")
    return content
