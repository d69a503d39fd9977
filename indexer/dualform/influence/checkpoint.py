"""A file for what a long computation has so far, so that the same call can go on from it if the process ends."""

from __future__ import annotations

import io
from os import PathLike
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from dualform.errors import BadInput
from dualform.store.durable_files import checksum, write_whole

_SECONDS = 60.0
_SHARE = 20
"""Writing takes at most one part in so many of the time."""


class Checkpoint:
    def __init__(self, path: str | PathLike[str] | None, *question: bytes) -> None:
        """`path`: of the file, there or not; None keeps nothing. `question`: what the computation depends on.

        Raises BadInput where the file is of another question.
        """
        self._path = None if path is None else Path(path).absolute()
        self._question = checksum(b"".join(checksum(own).encode() for own in question)).encode()
        self.found: dict[str, Any] | None = None
        """What was saved last; None at the beginning."""
        self._due = monotonic() + _SECONDS
        if self._path is None or not self._path.exists():
            return
        content = self._path.read_bytes()
        body = content[2 * len(self._question) :]
        if content[: 2 * len(self._question)] != self._head(body):
            raise BadInput(
                f"{str(self._path)!r} is no checkpoint of this computation.",
                hint="Pass the same arguments as before, or another file.",
                field="checkpoint",
            )
        self.found = torch.load(io.BytesIO(body), weights_only=True)

    def _head(self, body: bytes) -> bytes:
        return self._question + checksum(body).encode()

    @property
    def due(self) -> bool:
        """Whether it is time to save."""
        return self._path is not None and monotonic() >= self._due

    def save(self, found: dict[str, Any]) -> None:
        """Plain values and tensors. Raises OSError."""
        assert self._path is not None
        began, file = monotonic(), io.BytesIO()
        torch.save(found, file)
        write_whole(self._path, self._head(file.getvalue()) + file.getvalue())
        self._due = monotonic() + max(_SECONDS, _SHARE * (monotonic() - began))

    def remove(self) -> None:
        """The computation is done."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
