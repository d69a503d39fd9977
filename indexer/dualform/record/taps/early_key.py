"""Keys that are saved before the product, inside activation checkpoints.

What ran in a checkpoint runs again in the backward pass, until the last tensor that it had saved is there once more. A
key that is saved after the product would be the last one of all, and the last product would be made again for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from dualform.record.taps.hook import ModelHook

_HOOKS = ("_checkpoint_hook", "_recomputation_hook")
"""What torch has packed saved tensors by in a checkpoint's two runs."""
_ASKS = torch.zeros((), requires_grad=True)
"""Makes a node of the graph of what saves a key."""


@dataclass(frozen=True, eq=False)
class EarlyKey:
    """The argument of a call that is under way, saved as the key that it will be."""

    argument: Tensor
    node: Any
    """Of the graph; its saved tensors may be read once in a backward pass."""


class EarlyTap(Protocol):
    """A tap whose keys are saved so."""

    early: EarlyKey | None

    @property
    def may_be_written(self) -> bool: ...

    def mode(self, listener: Any) -> str | None: ...


class SaveEarly(ModelHook):
    """The forward pre-hook of a tap whose key is the first argument as it is."""

    def __init__(self, tap: EarlyTap, listener: Any) -> None:
        """`listener`: whom the tap reports to."""
        self._tap, self._listener = tap, listener

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_compiling() or not (_in_checkpoint() and self._tap.mode(self._listener) == "step"):
            return
        argument = args[0] if args else next(iter(kwargs.values()), None)
        # Under autocast the product saves a copy of half the size, and this would hold on to the whole beside it.
        if isinstance(argument, Tensor) and not torch.is_autocast_enabled(argument.device.type):
            key = argument.detach()
            saved = _Saved.apply(_ASKS, key.clone() if self._tap.may_be_written else key)  # type: ignore[no-untyped-call]
            self._tap.early = EarlyKey(argument, saved.grad_fn)


class _Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, asks: Tensor, key: Tensor) -> Tensor:
        ctx.save_for_backward(key)
        return asks.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        return None, None


def _in_checkpoint() -> bool:
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and any(name in hooks[0].__qualname__ for name in _HOOKS)
