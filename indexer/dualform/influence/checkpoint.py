"""A file for what a long computation has so far, so that the same call can go on from it if the process ends."""

from __future__ import annotations

import io
import os
import warnings
from os import PathLike
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.store.durable_files import checksum, remove, rename, write_new

_SECONDS = 60.0
_SHARE = 20
"""Writing takes at most one part in so many of the time."""
_EQUAL = 1e-3
"""How far losses of the same computation may be apart, of their size: other threads round otherwise."""


class Checkpoint:
    def __init__(self, path: str | PathLike[str] | None, *question: bytes) -> None:
        """`path`: of the file, there or not; None keeps nothing. `question`: what the computation depends on.

        Raises BadInput where no file can be there, or it is of another question.
        """
        self.found: dict[str, Any] | None = None
        """What was saved last; None at the beginning."""
        self._question = checksum(b"".join(checksum(own).encode() for own in question)).encode()
        self._due = monotonic() + _SECONDS
        self._path = _checked(path)
        if self._path is None or not self._path.exists():
            return
        content = self._path.read_bytes()
        body = content[2 * len(self._question) :]
        if content[: 2 * len(self._question)] != self._head(body):
            raise self._other()
        self.found = torch.load(io.BytesIO(body), weights_only=True)

    def require_losses(self, losses: NDArray[np.float64]) -> None:
        """Raises BadInput where the file is of a computation that had other losses."""
        if self.found is not None and not np.allclose(self.found["losses"], losses, _EQUAL, 1e-9, equal_nan=True):
            raise self._other()

    @property
    def due(self) -> bool:
        """Whether it is time to save."""
        return self._path is not None and monotonic() >= self._due

    def save(self, losses: NDArray[np.float64], **found: Any) -> None:
        """Plain values and tensors, and the losses to compare later. Warns where it cannot be written."""
        if self._path is None:
            return
        began, file = monotonic(), io.BytesIO()
        torch.save({"losses": torch.from_numpy(losses), **found}, file)
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            write_new(part, [memoryview(self._head(file.getvalue())), file.getbuffer()], durable=True)
            rename(part, self._path)
        except OSError as error:
            warnings.warn(f"the checkpoint was not saved: {error}", RuntimeWarning, stacklevel=3)
            remove(part)
        self._due = monotonic() + max(_SECONDS, _SHARE * (monotonic() - began))

    def remove(self) -> None:
        """The computation is done."""
        if self._path is not None:
            remove(self._path)

    def _head(self, body: bytes) -> bytes:
        return self._question + checksum(body).encode()

    def _other(self) -> BadInput:
        return BadInput(
            f"{str(self._path)!r} is no checkpoint of this computation.",
            hint="Pass the same arguments as before, or another file.",
            field="checkpoint",
        )


def _checked(path: str | PathLike[str] | None) -> Path | None:
    """Raises BadInput where no file can be written."""
    if path is None:
        return None
    if not isinstance(path, str | PathLike) or not os.fspath(path):
        raise BadInput(f"checkpoint must name a file, not {path!r}.", field="checkpoint")
    found = Path(path).absolute()
    if found.is_dir() or not os.access(found.parent, os.W_OK):
        raise BadInput(
            f"The checkpoint {str(found)!r} cannot be written.",
            hint="Name a file in a folder that is there.",
            field="checkpoint",
        )
    return found
