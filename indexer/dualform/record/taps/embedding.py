"""Embeddings and bags of embeddings.

The tap for nn.EmbeddingBag: y = W^T c, where the key c has the weight of each row of a bag, and 0 elsewhere.

Shapes: V rows of the embedding, which are its layer's d_in; n bags, which are its slots, of at most N members.

A weight is 1 in a sum, what the call says of it where it does, and 1 over the number of members in a mean. A row that
is twice in a bag counts twice, and one for padding is no member.

The tap for nn.Embedding: y = W^T e, where the key e is 1 at a token's number and 0 elsewhere. Its slots are tokens.

Shapes: V rows of the embedding, which are its layer's d_in; n slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.record.layout import SLOTS_AT_ONCE, KeyForm, Shape, laid_rows
from dualform.record.projection import Directions, Doubles, OuterSum, full_precision
from dualform.record.taps.tap import Call, ModuleTap
from dualform.store.layer import Parameter
from dualform.store.sources.row_numbers import MOST_MEMBERS, counted, unpacked

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


_BITS = 32


class TappedEmbeddingBag(ModuleTap, module_type=nn.EmbeddingBag):
    module: nn.EmbeddingBag

    def __init__(self, name: str, module: nn.EmbeddingBag, values: bool = True) -> None:
        super().__init__(name, module, values)
        self.stand_for("weight", None, transposed=True)
        self.batch_dim = 0
        self.key_form = RowCountForm(self.d_in, mean=module.mode == "mean")

    @classmethod
    def refusal(cls, module: nn.Module) -> str:
        assert isinstance(module, nn.EmbeddingBag)
        if module.mode == "max":
            return "each number of its output comes from another row (mode='max'), so it is not linear"
        return no_product(module) or super().refusal(module)

    def call_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Call:
        given = dict(zip(("input", "offsets", "per_sample_weights"), args, strict=False)) | kwargs
        numbers: Tensor = given["input"].detach().long()
        weights: Tensor | None = given.get("per_sample_weights")
        weights = torch.ones(numbers.shape, device=numbers.device) if weights is None else weights.detach().float()
        if self.module.padding_idx is not None:
            numbers = numbers.masked_fill(numbers.eq(self.module.padding_idx), self.d_in)
        key = weights.contiguous().view(torch.int32).long() << _BITS | numbers
        if key.dim() == 1:
            # How long bags are is no matter of the forward pass: its graph may be compiled, and does not know.
            bounds: Tensor = given["offsets"].detach().long()
            if not self.module.include_last_offset:
                bounds = torch.cat([bounds, bounds.new_full((1,), len(key))])
            key = torch.cat([bounds.new_full((1,), len(bounds)), bounds, key])
        argument = given["input"] if given["input"].dim() == 2 else None
        return Call(key, (output,), raw=False, argument=argument)


class RowCountForm(KeyForm):
    """Members of bags become int64[n, N], as the store's source of that name has them.

    They come as [n, N] or as one list, before which stand n + 1, and where each bag begins and the last one ends.
    """

    def __init__(self, rows: int, mean: bool = False) -> None:
        """`mean`: weights are to be divided by the number of members."""
        self._rows, self._mean = rows, mean

    def source_of(self, dtype: torch.dtype) -> str:
        return "row counts"

    def leading(self, key: Tensor) -> tuple[int, ...]:
        return (len(key) if key.dim() == 2 else int(key[0]) - 1,)

    def width(self, key: Tensor) -> int:
        """0 for a bag of more members than are stored."""
        return self._rows if self._longest(key) <= MOST_MEMBERS else 0

    def described(self, key: Tensor) -> str:
        return f"a bag of {self._longest(key)} members"

    def _longest(self, key: Tensor) -> int:
        return key.shape[1] if key.dim() == 2 else max([0, *_bounds(key).diff().tolist()])

    def owned(self, key: Tensor) -> Tensor:
        own = key.to("cpu", torch.int64, copy=True)
        members = (own if own.dim() == 2 else self._bags(own)).numpy()
        if self._mean:
            numbers, weights = unpacked(members)
            weights /= np.maximum(1, (numbers < self._rows).sum(1, keepdims=True, dtype=np.float32))
            members = weights.view(np.int32).astype(np.int64) << _BITS | numbers
        return torch.from_numpy(members)

    def _bags(self, key: Tensor) -> Tensor:
        """int64[n, N] of one list; what is no member is row V."""
        bounds = _bounds(key)
        members, begins = key[1 + len(bounds) :], bounds[:-1, None]
        at = begins + torch.arange(max(1, self._longest(key)), device=begins.device)
        there = at < bounds[1:, None]
        bags = torch.full(at.shape, self._rows, device=at.device)
        bags[there] = members[at[there]]
        return bags

    def laid(self, keys: Tensor, shape: Shape, kept: NDArray[np.int64] | None) -> Tensor:
        return laid_rows(keys, shape, kept)

    def blocks(self, keys: Tensor) -> Iterator[tuple[slice, Tensor]]:
        size = max(1, _AT_ONCE // self._rows)
        for start in range(0, max(1, len(keys)), size):
            part = slice(start, start + size)
            yield part, torch.from_numpy(counted(*unpacked(keys[part].numpy()), self._rows))

    def columns(self, keys: Tensor, chosen: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        rows, place = np.unique(chosen.cpu().numpy(), return_inverse=True)
        place_of_row = np.full(self._rows + 1, len(rows))
        place_of_row[rows] = np.arange(len(rows))
        for start in range(0, len(keys), SLOTS_AT_ONCE):
            part = slice(start, start + SLOTS_AT_ONCE)
            numbers, weights = unpacked(keys[part].numpy())
            yield part, torch.from_numpy(counted(place_of_row[numbers], weights, len(rows))), torch.from_numpy(place)

    def add_outer(
        self, directions: Directions, keys: Tensor, errors: Tensor, block: Parameter, to: Doubles
    ) -> OuterSum:
        if not block.transposed or (block.start, block.stop) != (0, self._rows):
            return self.add_blocks(directions, keys, errors, block, to)
        numbers, weights = unpacked(keys.numpy())
        key, place = np.nonzero(numbers < self._rows)
        rows, own = numbers[key, place], weights[key, place].astype(np.float64)
        along = directions.project(errors)
        with full_precision():
            terms = torch.from_numpy(along[key] * own[:, None])
            torch.from_numpy(to).view(self._rows, -1).index_add_(0, torch.from_numpy(rows), terms)
        _, same = np.unique(key * self._rows + rows, return_inverse=True)
        square = float(np.square(np.bincount(same, own)).sum())
        summed = np.bincount(rows, own, self._rows).astype(np.float64)
        return OuterSum(summed, square, float(np.square(along).sum()))


def _bounds(key: Tensor) -> Tensor:
    """int64[n + 1] of a key that came as one list."""
    return key[1 : 1 + int(key[0])]
