"""The tap for nn.Embedding: y = W^T e, where the key e is 1 at a token's number and 0 elsewhere. Its slots are tokens.

Shapes: V rows of the embedding, which are its layer's d_in; n slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.record.key_form import SLOTS_AT_ONCE, KeyForm, laid_rows
from dualform.record.projection import Directions, Doubles, OuterSum, full_precision
from dualform.record.shape import Shape
from dualform.record.taps.module_tap import ModuleTap
from dualform.record.taps.tap import Call
from dualform.store.parameter import Parameter

_AT_ONCE = 1 << 22
"""Numbers of one-hot keys that are made at once, where nothing else will do."""


class TappedEmbedding(ModuleTap, module_type=nn.Embedding):
    module: nn.Embedding

    def __init__(self, name: str, module: nn.Embedding, values: bool = True) -> None:
        super().__init__(name, module, values)
        self.stand_for("weight", None, transposed=True)
        self.key_form = RowNumberForm(self.d_in)

    @classmethod
    def refusal(cls, module: nn.Module) -> str:
        assert isinstance(module, nn.Embedding)
        return no_product(module) or super().refusal(module)

    def call_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Call:
        argument: Tensor = args[0] if args else kwargs["input"]
        # Row numbers take less than what would say that they repeat.
        return Call(argument, (output,), raw=False, argument=argument)

    def error_of(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
        error = super().error_of(key, kept, gradients)
        if self.module.padding_idx is None:
            return error
        # Its row gets no gradient.
        return error.masked_fill((key == self.module.padding_idx).unsqueeze(-1), 0.0)


def no_product(module: nn.Embedding | nn.EmbeddingBag) -> str:
    """Why its gradient is not what a product with its keys would have; empty where it is."""
    if module.max_norm is not None:
        return "it changes its weight in each forward pass (max_norm)"
    if module.sparse:
        return "its gradients are sparse (sparse=True)"
    if module.scale_grad_by_freq:
        return "it scales gradients by how often a token is in the batch (scale_grad_by_freq)"
    return ""


class RowNumberForm(KeyForm):
    """Keys [...] of integers become int64[n]."""

    looks_up = True

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def source_of(self, dtype: torch.dtype) -> str:
        return "row numbers"

    def leading(self, key: Tensor) -> tuple[int, ...]:
        return tuple(key.shape) or (1,)

    def width(self, key: Tensor) -> int:
        return self._rows

    def owned(self, key: Tensor) -> Tensor:
        return key.reshape(-1).to("cpu", torch.int64, copy=True)

    def shared(self, keys: Tensor, leading: tuple[int, ...]) -> bool:
        """Positions from 0 on, or distances between them [L, L], which a network looks up once for all rows of a batch.

        Tokens may be so by chance, and the shape does not tell them apart where a batch has as many rows as tokens.
        Distances of a position from itself are all the same, in one dimension or two.
        """
        if len(keys) > 1 and torch.equal(keys, torch.arange(len(keys), device=keys.device)):
            return True
        if len(leading) != 2 or min(leading) < 2 or bool((keys == keys[0]).all()):
            return False
        table = keys.view(leading)
        if leading[0] == leading[1]:
            return bool((table.diagonal() == table[0, 0]).all())
        return torch.equal(table[1:, 1:], table[:-1, :-1])

    def laid(self, keys: Tensor, shape: Shape, kept: NDArray[np.int64] | None) -> Tensor:
        return laid_rows(keys.unsqueeze(1), shape, kept).squeeze(1)

    def blocks(self, keys: Tensor) -> Iterator[tuple[slice, Tensor]]:
        size = max(1, _AT_ONCE // self._rows)
        for start in range(0, max(1, len(keys)), size):
            part = slice(start, start + size)
            yield part, nn.functional.one_hot(keys[part], self._rows).float()

    def columns(self, keys: Tensor, chosen: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        rows, places = torch.unique(chosen.to(keys.dtype), return_inverse=True)
        for start in range(0, len(keys), SLOTS_AT_ONCE):
            own = keys[start : start + SLOTS_AT_ONCE]
            at = torch.searchsorted(rows, own).clamp_(max=len(rows) - 1)
            found = torch.zeros((len(own), len(rows)), dtype=torch.float32, device=keys.device)
            found.scatter_(1, at[:, None], (rows[at] == own).float()[:, None])
            yield slice(start, start + SLOTS_AT_ONCE), found, places

    def add_outer(
        self, directions: Directions, keys: Tensor, errors: Tensor, block: Parameter, to: Doubles
    ) -> OuterSum:
        if not block.transposed or (block.start, block.stop) != (0, self._rows):
            return self.add_blocks(directions, keys, errors, block, to)
        along = directions.project(errors)
        with full_precision():
            rows = torch.from_numpy(to).view(self._rows, -1)
            rows.index_add_(0, keys, torch.from_numpy(along))
        counts = np.bincount(keys.numpy(), minlength=self._rows).astype(np.float64)
        return OuterSum(counts, float(len(keys)), float(np.square(along).sum()))
