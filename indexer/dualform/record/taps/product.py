"""Products with a matrix, as torch is called for them.

Shapes: d_in and d_out of the matrix; `...` the dimensions of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dualform.record.taps.checkpoints import own_operators


@dataclass(frozen=True, eq=False)
class MatrixProduct:
    """x W^T + b, or rows of W^T that are looked up; any of the tensors may be a parameter, or a view of one."""

    key: Tensor
    """x [..., d_in]; row numbers, int64[...], where `looks_up`."""
    weight: Tensor
    """W [d_out, d_in], the way round that the product uses it."""
    bias: Tensor | None = None
    looks_up: bool = False
    turned: bool = False
    """Whether torch was asked for W x^T, so that its answer is [..., d_out, n] where keys are [..., n, d_in]."""
    padding: int | None = None
    """A row number that is looked up without a gradient."""

    def laid(self, output: Tensor) -> Tensor:
        """What torch answered, as [..., d_out], or such an answer as torch gives it."""
        return output.mT if self.turned else output


def saved_key(argument: Tensor) -> Tensor:
    """The argument of a product, detached, to be saved for the backward pass. An argument of several batch axes that is
    not contiguous is copied: torch multiplies with a copy of it, and the network may write to the argument.
    """
    key = argument.detach()
    if key.dim() < 3 or key.layout != torch.strided or key.is_contiguous():
        return key
    with own_operators():
        return key.clone()


def products_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[MatrixProduct]:
    """What a call of a torch function of that name may be: of `x @ W`, either tensor may be the matrix.

    Empty for all but products of a matrix, and for those that scale what they are given.
    """
    read = _READERS.get(name)
    if read is None:
        return []
    try:
        return [found for found in read(*args, **kwargs) if _fits(found)]
    except (TypeError, AttributeError):  # arguments of another form of the function, or that are no tensors
        return []


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> list[MatrixProduct]:
    return [MatrixProduct(input, weight, bias)]


def _matmul(input: Tensor, other: Tensor, **_: Any) -> list[MatrixProduct]:
    found = []
    if other.dim() == 2:
        found.append(MatrixProduct(input, other.T))
    if input.dim() == 2 and other.dim() == 1:
        found.append(MatrixProduct(other, input))
    elif input.dim() == 2 and other.dim() > 1:
        found.append(MatrixProduct(other.mT, input, turned=True))
    return found


def _addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1, **_: Any
) -> list[MatrixProduct]:
    return [MatrixProduct(mat1, mat2.T, input)] if beta == alpha == 1 else []


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> list[MatrixProduct]:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return []
    rows = None if padding_idx is None else padding_idx % len(weight)
    return [MatrixProduct(input, weight.T, looks_up=True, padding=rows)] if weight.dim() == 2 else []


_READERS: dict[str, Callable[..., list[MatrixProduct]]] = {
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "mv": _matmul,
    "addmm": _addmm,
    "embedding": _embedding,
}
"""By the name of the function; `x @ w` is `matmul`."""


def _fits(found: MatrixProduct) -> bool:
    return found.weight.dim() == 2 and (found.looks_up or found.key.is_floating_point())
