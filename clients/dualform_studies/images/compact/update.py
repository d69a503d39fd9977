"""What training added to a layer, as a sum of few rank-one terms (paper, remark 3.4).

    [W | b]_T - [W | b]_0  =  sum_r s_r u_r v_r^T,        s_1 >= s_2 >= …

Read as a memory, v_r is a key, over (x, 1), and s_r u_r its value: R pairs that give every query the output that all T
slots give it. Shapes: R = min(d_out, d_in + 1) directions, T slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.query.engine import Engine
from dualform_studies.pages.folder import Report

_SLOTS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Update:
    layer: str
    initial: NDArray[np.float64]
    """float64[d_out, d_in + 1]: the weight that training began with, its bias in the last column."""
    left: NDArray[np.float64]
    """float64[d_out, R]: the u_r."""
    strengths: NDArray[np.float64]
    """float64[R]: the s_r, descending."""
    right: NDArray[np.float64]
    """float64[R, d_in + 1]: the v_r."""

    @property
    def directions(self) -> int:
        """R."""
        return len(self.strengths)

    def energy(self) -> NDArray[np.float64]:
        """float64[R + 1]: the share of the update's squared Frobenius norm that the first r directions hold."""
        squares = np.concatenate([[0.0], np.cumsum(self.strengths**2)])
        shares: NDArray[np.float64] = squares / squares[-1]
        return shares

    def directions_holding(self, share: float) -> int:
        """The least number of directions that hold so much of the update's squared Frobenius norm."""
        return int(np.argmax(self.energy() >= share))

    def numbers(self, rank: int) -> int:
        """How many numbers the keys and values of the first directions are."""
        return rank * sum(self.initial.shape)

    def truncated(self, rank: int) -> NDArray[np.float64]:
        """float64[d_out, d_in + 1]: [W | b]_0 and the first `rank` directions."""
        kept: NDArray[np.float64] = (self.left[:, :rank] * self.strengths[:rank]) @ self.right[:rank]
        return self.initial + kept

    def parameters(self, rank: int) -> dict[str, Tensor]:
        """The layer's weight and bias with the first `rank` directions, in float32, under the model's own names."""
        both = torch.from_numpy(self.truncated(rank)).float()
        return {f"{self.layer}.weight": both[:, :-1].contiguous(), f"{self.layer}.bias": both[:, -1].contiguous()}


def update_of(layer: str, initial: Mapping[str, Tensor], final: Mapping[str, Tensor]) -> Update:
    """The update between two state dicts, decomposed in float64."""
    start = with_bias(layer, initial)
    left, strengths, right = np.linalg.svd(with_bias(layer, final) - start, full_matrices=False)
    return Update(layer, start, left, strengths, right)


def with_bias(layer: str, weights: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """float64[d_out, d_in + 1]: a layer's weight with its bias as the last column."""
    weight, bias = weights[f"{layer}.weight"].double(), weights[f"{layer}.bias"].double()
    both: NDArray[np.float64] = torch.cat([weight, bias[:, None]], dim=1).numpy()
    return both


def mixture(memory: Engine, update: Update, directions: int) -> list[Report]:
    """What the first directions are made of: each strength is a sum over all slots.

        s_r  =  u_r^T (sum_t e_t (x_t, 1)^T) v_r  =  sum_t c_t,        c_t = (u_r . e_t) (v_r . (x_t, 1))

    Of each direction: its strength, the sum found, the effective number of slots, (sum |c_t|)^2 / sum c_t^2, how much
    the terms cancel, sum |c_t| / |sum c_t|, and the share of sum |c_t| that the greatest term has.
    """
    terms = np.concatenate(list(_terms(memory, update, directions)))
    sizes = np.abs(terms)
    return [
        {
            "strength": float(update.strengths[at]),
            "sum": float(terms[:, at].sum()),
            "effective_slots": float(sizes[:, at].sum() ** 2 / (sizes[:, at] ** 2).sum()),
            "cancellation": float(sizes[:, at].sum() / abs(terms[:, at].sum())),
            "greatest_share": float(sizes[:, at].max() / sizes[:, at].sum()),
        }
        for at in range(terms.shape[1])
    ]


def _terms(memory: Engine, update: Update, directions: int) -> Iterator[NDArray[np.float64]]:
    """float64[b, directions]: the c_t of a block of slots."""
    slots = np.arange(sum(memory.info().slots.values()))
    left, right = update.left[:, :directions], update.right[:directions].T
    for start in range(0, len(slots), _SLOTS_AT_ONCE):
        block = slots[start : start + _SLOTS_AT_ONCE]
        keys, values = memory.keys(update.layer, block), memory.values(update.layer, block)
        errors = (values @ left) * memory.coefficients(update.layer, block)[:, None]
        yield errors * (keys @ right[:-1] + right[-1])
