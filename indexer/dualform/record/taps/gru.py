"""The tap for nn.GRU: keys [h_(t-1); x_t], no values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from dualform.record.taps.recurrent import TappedRecurrent


class TappedGRU(TappedRecurrent, module_type=nn.GRU):
    gates = 3
    why_no_values = (
        "a GRU resets the hidden part of its candidate state by a gate of its own, so that the two parts of a key have "
        "different error signals"
    )

    @staticmethod
    def _states(given: Any) -> tuple[Tensor, ...]:
        return (given,)

    def error_of(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
        raise AssertionError(self.why_no_values)
