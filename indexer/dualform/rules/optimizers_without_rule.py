"""Optimizers of torch that no update rule can follow, and why, as the end of a sentence."""

from __future__ import annotations

from collections.abc import Mapping

REFUSED: Mapping[str, str] = {
    "torch.optim.lbfgs.LBFGS": "its line search takes several gradients in one update",
    "torch.optim.sparse_adam.SparseAdam": "it moves only the rows of a sparse gradient, which slots do not record",
}
"""By the full name of the type."""
