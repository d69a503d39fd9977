"""The torch optimizer inside what wraps it, as accelerate's and Lightning's optimizers do."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from dualform.errors import BadInput


def unwrapped(optimizer: Any) -> Optimizer:
    """The optimizer that updates the weights. Raises BadInput where there is none."""
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, Optimizer):
        kind = type(optimizer).__name__
        raise BadInput(f"optimizer is {kind}.", hint="Give the torch optimizer.", field="optimizer")
    return optimizer
