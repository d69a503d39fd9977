"""The identity that a tap passes a layer's outputs through: it saves the key, and its backward reports the gradients.

In code that torch.compile makes, backward is traced once and reports through an operator, by a number that stands for
the tap. The operator has an effect whose order counts: without one it is dead code and removed, and equal calls of it
are made one. Code that runs without Python, as from a CUDA graph, would report nothing, so that the operator is tagged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.library import custom_op

from dualform.record.taps.hook import hand_over, saving


class Reporter(Protocol):
    """A tap, as far as gradients go."""

    name: str
    values: bool
    handle: int

    def error_of(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor: ...


class Receiver(Protocol):
    """Its listener."""

    def arrived(self, tap: Any, raw: bool, began: int) -> int: ...

    def received(self, tap: Any, call: int, key: Tensor, error: Tensor, cast: int | None) -> None: ...

    def failed(self, error: Exception, layer: str = "") -> None: ...


_JOINED: dict[int, tuple[Reporter, Receiver]] = {}
"""By handle."""
_HANDLES = count(1)


@dataclass(frozen=True)
class Report:
    """Of one call, to a tap's listener."""

    tap: Reporter
    listener: Receiver
    call: int = -1
    """Its number; -1 for one that is not recorded."""
    cast: int | None = None
    """The copy of the weights that it used; None where nobody knows."""
    early: Any = None
    """The node of the graph that saved the key before the product (checkpoints.py); None if it was saved after."""

    def saved(self, ctx: Any) -> list[Tensor]:
        """What was saved in the forward pass; nothing if the training has written to it since. Whatever else reading it
        raises comes of the training's own code, which checkpoints run again.
        """
        try:
            return [*(() if self.early is None else self.early.saved_tensors), *ctx.saved_tensors]
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            hand_over(self.listener, error, self.tap.name)
            return []

    def __call__(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        try:
            self._hand_on(key, kept, gradients)
        except Exception as error:
            hand_over(self.listener, error, self.tap.name)

    def _hand_on(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        came = [gradient for gradient in gradients if gradient is not None]
        # Gradients of several directions at once (is_grads_batched, vectorize) are returned: no weight gets them.
        if not came or any(map(torch._C._functorch.is_legacy_batchedtensor, came)):
            return
        came = [gradient.detach() for gradient in came]
        if self.tap.values:
            error = self.tap.error_of(key, kept, [None if g is None else g.detach() for g in gradients])
        else:  # NaN or infinity in any of several is to be noticed; whoever is told looks at the one
            error = next((gradient for gradient in came[1:] if not gradient.isfinite().all()), came[0])
        self.listener.received(self.tap, self.call, key, error, self.cast)


def watched(report: Report, kept: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The outputs, whose gradients are reported; `kept`: the key, unless it was saved early, and what else the error
    signal is computed from.
    """
    passed: tuple[Tensor, ...] = saving(_Identity.apply, report, kept, *outputs)
    return passed


class _Identity(torch.autograd.Function):
    """Passes a layer's outputs on, and their gradients back, unchanged; none where none came."""

    @staticmethod
    def forward(ctx: Any, report: Report, kept: tuple[Tensor, ...], *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*kept)
        ctx.report = report
        ctx.shapes = [output.shape for output in outputs]
        ctx.set_materialize_grads(False)
        # No copies, and unlike views made here, later in-place operations (relu_) may write to them.
        return tuple(output.detach() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if saved := ctx.report.saved(ctx):
            ctx.report(saved[0], saved[1:], gradients)
        return None, None, *gradients

    @staticmethod
    def jvp(ctx: Any, report: None, kept: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        like = next(tangent for tangent in tangents if tangent is not None)
        pairs = zip(tangents, ctx.shapes, strict=True)
        return tuple(like.new_zeros(shape) if own is None else own.view_as(own) for own, shape in pairs)


def join(tap: Reporter, listener: Receiver) -> None:
    """Compiled calls of a tap are reported to the listener from now on."""
    if COMPILES:
        tap.handle = next(_HANDLES)
        _JOINED[tap.handle] = tap, listener


def part(tap: Reporter) -> None:
    """They are reported to nobody; code that was compiled meanwhile says nothing any more."""
    _JOINED.pop(tap.handle, None)
    tap.handle = 0


def compiled(
    handle: int, raw: bool, began: Tensor, kept: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """As `watched`, in code that is being compiled; `began`: which step runs."""
    saved = (*kept, began)
    passed: tuple[Tensor, ...] = _Compiled.apply(handle, raw, len(saved), *saved, *outputs)  # type: ignore[no-untyped-call]
    return passed


class _Compiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, handle: int, raw: bool, saved: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*tensors[:saved])
        ctx.handle, ctx.raw, ctx.saved = handle, raw, saved
        ctx.set_materialize_grads(False)
        return tuple(output.detach() for output in tensors[saved:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        _report(ctx.handle, ctx.raw, list(ctx.saved_tensors), list(gradients))
        return None, None, None, *[None] * ctx.saved, *gradients


@custom_op("dualform::report", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _report(handle: int, raw: bool, saved: list[Tensor], gradients: list[Tensor | None]) -> None:
    joined = _JOINED.get(handle)
    if joined is not None and any(gradient is not None for gradient in gradients):
        tap, listener = joined
        key, *kept, began = saved
        try:
            report = Report(tap, listener, listener.arrived(tap, raw, int(began)))
        except Exception as error:
            hand_over(listener, error, tap.name)
        else:
            report(key, kept, gradients)


@_report.register_fake
def _(handle: int, raw: bool, saved: list[Tensor], gradients: list[Tensor | None]) -> None:
    return


def _ordered() -> bool:
    """Give the operator its effect; False where this torch has none."""
    try:
        from torch.library import EffectType  # type: ignore[attr-defined]

        _report.register_effect(EffectType.ORDERED)
    except (ImportError, AttributeError):
        return False
    return True


COMPILES = _ordered()
"""Whether compiled calls can be recorded; where not, torch leaves compiled code at each tap."""
