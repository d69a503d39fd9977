"""What taps save inside activation checkpoints, whose parts run again in the backward pass.

A checkpoint of torch counts the tensors that its first run saves, and finds those of its second run by their numbers.
So a tap must save in the second run exactly what it saved in the first, at the same places: also if one of them is not
recorded, because the step was over, recording had stopped, or the recorder failed there. Otherwise the training goes on
with other tensors, or ends.

The second run stops as soon as the last tensor that was saved is there once more. A key that is saved after the product
would be the last one, and the last product would be made again for nothing: in checkpoints it is saved before.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.utils._python_dispatch import _disable_current_modes

from dualform.record.taps.hook import saving

_ASKS = torch.zeros((), requires_grad=True)
"""Makes a node of the graph of what saves a key."""
_SAVED: WeakKeyDictionary[Any, dict[tuple[int, object], Sequence[tuple[Any, ...]]]] = WeakKeyDictionary()
"""By part: what taps saved in its first run, by the number of its first tensor and who saved it; of each tensor shape,
type and device.
"""


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the forward pass that a checkpoint runs, at one moment of it."""

    frame: Any
    """Torch's own object of it."""
    again: bool
    """Whether this is its second run."""
    number: int
    """Of the next tensor that is saved in it."""

    def allows(self, who: object) -> bool:
        """Whether tensors may be saved now: in a second run, if they were in the first."""
        return not self.again or (self.number, who) in _SAVED.get(self.frame, {})

    def note(self, who: object, kept: Sequence[Tensor]) -> None:
        """These tensors are saved now."""
        if not self.again:
            like = [(own.shape, own.dtype, own.device) for own in kept]
            _SAVED.setdefault(self.frame, {})[self.number, who] = like

    def fill(self, who: object) -> None:
        """Nothing is recorded here; but if the first run saved tensors here, this one does."""
        like = _SAVED.get(self.frame, {}).get((self.number, who), ()) if self.again else ()
        if like:
            with own_operators():
                own = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in like]
            saving(_Saved.apply, _ASKS, *own)


def part_that_runs() -> Part | None:
    """The innermost one; None outside of checkpoints, in compiled code, and if this torch does not tell."""
    hooks = None if is_compiling() else torch._C._autograd._top_saved_tensors_default_hooks(False)
    if hooks is None or getattr(hooks[0], "__module__", "") != "torch.utils.checkpoint":
        return None
    try:
        pack: Any = inspect.unwrap(hooks[0])
        cells = zip(pack.__code__.co_freevars, pack.__closure__, strict=True)
        found = {name: cell.cell_contents for name, cell in cells}
        if "frame" in found:
            return Part(found["frame"], False, len(found["frame"].weak_holders))
        frame = found["target_frame_ref"]()
        return Part(frame, True, frame.recomp_counter[found["gid"]])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        warnings.warn(
            f"dualform does not know torch.utils.checkpoint of this torch ({error!r}), so layers in a "
            "checkpointed part may break its backward pass. Leave them out with layers=.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def own_operators() -> AbstractContextManager[None]:
    """Around operators of a tap's own. A selective checkpoint counts those of both runs, by a mode that sees them all,
    and keeps what they return: it must see none of these.
    """
    if is_compiling() or not torch._C._len_torch_dispatch_stack() or part_that_runs() is None:
        return nullcontext()
    return _disable_current_modes()


def runs_again() -> bool:
    """Whether what runs now is the second run of a part."""
    part = part_that_runs()
    return part is not None and part.again


@dataclass(frozen=True, eq=False)
class EarlyKey:
    """The argument of a call that is under way, saved as the key that it will be."""

    argument: Tensor
    version: int
    """Of the argument then: a hook that runs later may write to it, and the product uses what that leaves."""
    node: Any
    """Of the graph; its saved tensors may be read once in a backward pass."""

    def is_of(self, argument: Any) -> bool:
        """Whether a product that took this argument used the key that was saved."""
        return argument is self.argument and self.argument._version == self.version


class EarlyTap(Protocol):
    """A tap whose keys are saved so."""

    @property
    def may_be_written(self) -> bool: ...

    def mode(self, listener: Any) -> str | None: ...


def early_key(
    tap: EarlyTap, listener: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor] | None:
    """Before a call of a tap whose key is the first argument as it is: the argument, and what to save. None if it is
    saved later.
    """
    argument = args[0] if args else next(iter(kwargs.values()), None)
    if not isinstance(argument, Tensor) or argument.layout != torch.strided or tap.mode(listener) != "step":
        return None
    # Under autocast the product saves a copy of half the size, and this would hold on to the whole beside it.
    if argument.is_inference() or torch.is_autocast_enabled(argument.device.type):
        return None
    key = argument.detach()
    with own_operators():
        return argument, key.clone() if tap.may_be_written else key


class _Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, asks: Tensor, *kept: Tensor) -> Tensor:
        ctx.save_for_backward(*kept)
        return asks.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        return (None,) * len(ctx.needs_input_grad)


def save(key: Tensor) -> Any:
    """A node of the graph that has saved a key."""
    return saving(_Saved.apply, _ASKS, key).grad_fn
