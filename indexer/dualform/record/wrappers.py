"""The optimizer and the model inside what wraps them: accelerate, Lightning, Fabric, DDP, torch.compile."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dualform.errors import BadInput
from dualform.record.sharded_parameters import is_sharded_model


def unwrapped(optimizer: Any) -> Optimizer:
    """The optimizer that updates the weights. Raises BadInput where there is none."""
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, Optimizer):
        kind = type(optimizer).__name__
        raise BadInput(
            f"optimizer must be a torch optimizer, not {kind}.",
            hint="Pass the torch.optim.Optimizer inside it.",
            field="optimizer",
        )
    return optimizer


def unwrapped_model(model: nn.Module) -> nn.Module:
    """The model that a data-parallel or compiled one trains: its layers have the names that they have without it."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
            continue
        # Fabric's wrapper is a class of either of Lightning's packages, which need not be loaded.
        name = "_forward_module" if type(model).__name__ == "_FabricModule" else "_orig_mod"
        own = getattr(model, name, None)
        if not isinstance(own, nn.Module):
            return model
        model = own


def whole_model(model: nn.Module) -> nn.Module:
    """As `unwrapped_model`. Raises BadInput for one of which this process holds a part alone."""
    model = unwrapped_model(model)
    if is_sharded_model(model):
        raise BadInput(
            "The model is sharded, and this process holds only a part of its weights.",
            hint="Pass a model that has its whole state dict in one process.",
            field="model",
        )
    return model
