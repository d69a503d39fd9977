"""Keys and error signals of tapped layers in a pass over examples, beside whatever is recorded."""

from __future__ import annotations

import torch
from torch import Tensor

from dualform.errors import RecordingError
from dualform.record.lineage import Known, KnownRows
from dualform.record.taps import Tap
from dualform.record.taps.tap import is_transformed


class SignalTaker:
    """Whom taps report to while a pass runs (record/taps/tap.py, Listener)."""

    followed: KnownRows | None = None

    def __init__(self) -> None:
        self.began = torch.zeros((), dtype=torch.int64, device="cpu")
        self._calls = 0
        self._found: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}

    def begin(self) -> None:
        self._found = {}

    def of(self, tap: Tap) -> list[tuple[Tensor, Tensor]]:
        """Keys and error signals, call by call."""
        return [own for _, own in sorted(self._found.get(tap.name, {}).items())]

    def forward_mode(self) -> str | None:
        return "step" if torch.is_grad_enabled() and not is_transformed() else None

    def called(self, tap: Tap, raw: bool, rows: Known | None = None) -> int:
        self._calls += 1
        return self._calls - 1

    def arrived(self, tap: Tap, raw: bool, began: int) -> int:
        raise RecordingError(
            f"layer {tap.name!r} ran in compiled code, where its calls cannot be told apart.",
            hint="Pass a model that was not compiled.",
        )

    def called_without_gradient(self, tap: Tap, why: str) -> None:
        """No error signal, and nothing that its slots brought."""

    def unseen(self, tap: Tap) -> None:
        raise RecordingError(
            f"layer {tap.name!r} ran under a transform of torch.func, which hides single examples.",
            hint="Call the model outside of torch.func.",
        )

    def refused(self, tap: Tap, error: RecordingError) -> None:
        raise error

    def failed(self, error: Exception, layer: str = "") -> None:
        raise error

    def probed(self, tap: Tap, key: Tensor, rows: Known | None = None) -> None:
        """No query set is taken."""

    def received(self, tap: Tap, call: int, key: Tensor, error: Tensor, cast: int | None) -> None:
        self._found.setdefault(tap.name, {})[call] = (key, error)
