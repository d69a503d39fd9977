"""What one call of a layer brings to a step. Shapes: B rows, `L...` token dimensions, d_in and d_out of a layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dualform.record.key_form import KeyForm
from dualform.record.lineage import Known
from dualform.store.batch import Product


@dataclass
class Signal:
    """Key and error signal of one call of a layer, in memory of our own: the training may overwrite its buffers."""

    keys: Tensor
    """As they came, in their form: float32[B * L..., d_in] of rows."""
    errors: Tensor | None
    """float32[B * L..., d_out]; where no values are wanted, None or what holds NaN or infinity."""
    leading: tuple[int, ...]
    """(B,) or (B, L...); (L, B, ...) where the batch is the second axis."""
    dtype: torch.dtype
    """What the training computed in."""
    form: KeyForm
    product: Product | None = None
    """How its part of a gradient was rounded; None where it was not, or where nobody knows."""
    rows: Known | None = None
    """What is known of the rows that the key holds; None for the batch's in their order, as far as was seen."""

    def add(self, other: Signal) -> None:
        """Of a second backward pass through the same call: gradients add up."""
        if self.errors is None or other.errors is None:
            self.errors = other.errors if self.errors is None else self.errors
            return
        self.errors = self.errors + other.errors
        self.product = None  # each was rounded on its own

    def copied(self) -> Signal:
        """Another, that may be added to."""
        return replace(self)
