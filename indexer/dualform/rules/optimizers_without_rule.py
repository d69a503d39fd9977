"""Optimizers of torch that no update rule can follow, and why, as the end of a sentence."""

from __future__ import annotations

from collections.abc import Mapping

REFUSED: Mapping[str, str] = {
    "torch.optim.lbfgs.LBFGS": "one update of it takes several gradients, which a line search asks for",
    "torch.optim.sparse_adam.SparseAdam": "it moves only the rows that a sparse gradient names, which no slot tells",
}
"""By the full name of the type."""
