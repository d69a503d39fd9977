"""Reading an optimizer: whether its update is linear in the gradients, its settings, its momentum buffers.

Linear is torch.optim.SGD in every variant: W_T is then a weighted sum of W_0, of a momentum buffer that existed before,
and of all gradients. Other optimizers are recorded too; only their outputs cannot be rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dualform.store.batch import ParameterGroup


def why_not_linear(optimizer: Optimizer) -> str:
    """Why weights cannot be rebuilt from its gradients; empty for torch.optim.SGD.

    A subclass of SGD may change the update, so it does not count as SGD.
    """
    if type(optimizer) is torch.optim.SGD:
        return ""
    return (
        f"the network was trained with {type(optimizer).__name__}, whose update is not known to be a linear function "
        "of the gradients: attention weights are exact, outputs and weights cannot be rebuilt"
    )


def before_each_update(optimizer: Optimizer, updating: Callable[[], None]) -> RemovableHandle:
    """Call `updating` whenever the gradients are final and the weights have not moved; until the handle is removed.

    Not before an update that the optimizer itself will skip.
    """

    def hook(_: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            found = getattr(optimizer, "found_inf", None)  # how a GradScaler tells a fused optimizer to skip
            if found is None or not float(found):
                updating()
            return None

        def closed() -> Any:  # the gradients that count are those the closure computes
            loss = closure()
            updating()
            return loss

        return (args[0], closed), {name: value for name, value in kwargs.items() if name != "closure"}

    return optimizer.register_step_pre_hook(hook)


def unscaling(optimizer: Optimizer) -> float:
    """What the optimizer itself will multiply gradients by: a GradScaler leaves that to a fused one."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else 1.0 / float(scale)


def read_groups(optimizer: Optimizer) -> tuple[ParameterGroup, ...]:
    """The settings of every parameter group as they stand; what an optimizer does not have is 0 or False."""
    return tuple(
        ParameterGroup(
            {
                "lr": _number(group, "lr"),
                "momentum": _number(group, "momentum"),
                "dampening": _number(group, "dampening"),
                "weight_decay": _number(group, "weight_decay"),
                "nesterov": bool(group.get("nesterov", False)),
                "maximize": bool(group.get("maximize", False)),
            }
        )
        for group in optimizer.param_groups
    )


def _number(group: dict[str, Any], setting: str) -> float:
    value = group.get(setting, 0.0)
    return float(value) if isinstance(value, int | float | Tensor) else 0.0


def group_of(optimizer: Optimizer) -> dict[int, int]:
    """id(parameter) -> index of its group."""
    return {id(p): index for index, group in enumerate(optimizer.param_groups) for p in group["params"]}


def momentum_buffers(optimizer: Optimizer, parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The momentum buffers that exist by now, by parameter name."""
    buffers = ((name, optimizer.state.get(p, {}).get("momentum_buffer")) for name, p in parameters)
    return {name: buffer for name, buffer in buffers if isinstance(buffer, Tensor)}
