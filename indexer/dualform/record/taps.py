"""Taps: they see a layer's keys and error signals without changing a bit of the training.

Shapes: d_in and d_out of the layer; `...` the dimensions of a batch (samples, or samples and tokens).

A tap passes the outputs of a forward call through an identity autograd function that saves the key. Its backward hands
key and error signal on. This holds under activation checkpointing, which runs forward hooks more than once and backward
once, and whose memory saving a key held in a closure would undo; under in-place operations on the output; and under
autocast, where the key is the cast input, the one that the product used.

A tap needs no module: it is attached to something that computes calls and hands each one to `passed`. Layers that are
modules are tapped by the kinds of module_tap.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from dualform.errors import RecordingError
from dualform.store.layer import Parameter


class Listener(Protocol):
    """Who a tap reports to."""

    def forward_mode(self) -> str | None:
        """ "step" to record, "probe" to take inputs only, None to let the call pass."""

    def called(self, tap: Tap, raw: bool) -> int:
        """A forward call that expects an error signal; returns the number it will be known by.

        `raw`: its key is data that came with the batch, no result of a computation.
        """

    def called_without_gradient(self, tap: Tap) -> None:
        """A forward call of a training under torch.no_grad."""

    def refused(self, tap: Tap, error: RecordingError) -> None:
        """A forward call that has no keys. May raise the error."""

    def probed(self, tap: Tap, key: Tensor) -> None:
        """A forward call while a probe is taken."""

    def received(self, tap: Tap, call: int, key: Tensor, error: Tensor) -> None:
        """The error signal of a call has arrived, in backward: [..., d_out], or any gradient of the layer's outputs
        where its values are not wanted.
        """


@dataclass(frozen=True, eq=False)
class Call:
    """One forward call of a layer."""

    key: Tensor
    """[..., d_in], detached, in the type that the product was computed in."""
    outputs: tuple[Tensor, ...]
    """Every tensor through which gradients come back."""
    raw: bool
    kept: tuple[Tensor, ...] = ()
    """What the error signal is computed from, beside the key and the outputs' gradients."""


class Tap(ABC):
    """One layer under watch."""

    def __init__(self, name: str, values: bool = True) -> None:
        """`values`: error signals are wanted, too."""
        self.name = name
        self.values = values and not self.why_no_values
        """Whether slots get values; where not, `received` is told of any gradient that came."""
        self.batch_dim: int | None = None
        """The axis of a key that is the batch, where the layer itself or a module around it tells; else None."""

    d_in: int
    d_out: int
    parameters: dict[Parameter, Tensor]
    """Weights [d_out, columns] in the order of their columns, then biases [d_out]."""
    why_no_values: ClassVar[str] = ""
    """Why a slot of this kind of layer has a key but no value; empty where it has one."""

    @abstractmethod
    def attach(self, listener: Listener) -> None:
        """Start reporting every call to the listener, until `detach`."""

    @abstractmethod
    def detach(self) -> None:
        """Stop reporting; nothing remains of the tap."""

    @abstractmethod
    def error_of(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
        """The error signal, [..., d_out]; `gradients` are those of the outputs, None where none came."""

    def passed(self, listener: Listener, call: Call) -> tuple[Tensor, ...]:
        """Report a forward call. Returns its outputs, which the network must go on with in place of the given ones."""
        mode = listener.forward_mode()
        if mode == "probe":
            listener.probed(self, call.key)
        elif mode == "step" and any(part.requires_grad for part in call.outputs):
            report = _Report(self, listener, listener.called(self, call.raw))
            outputs: tuple[Tensor, ...] = _Identity.apply(report, (call.key, *call.kept), *call.outputs)  # type: ignore[no-untyped-call]
            return outputs
        elif mode == "step":
            listener.called_without_gradient(self)
        return call.outputs


@dataclass(frozen=True)
class _Report:
    tap: Tap
    listener: Listener
    call: int

    def __call__(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        came = [gradient.detach() for gradient in gradients if gradient is not None]
        if not came:
            return
        if self.tap.values:
            error = self.tap.error_of(key, kept, [None if g is None else g.detach() for g in gradients])
        else:  # NaN or infinity in any of several is to be noticed; whoever is told looks at the one
            error = next((gradient for gradient in came[1:] if not gradient.isfinite().all()), came[0])
        self.listener.received(self.tap, self.call, key, error)


class _Identity(torch.autograd.Function):
    """Passes a layer's outputs on, and their gradients back, unchanged; none where none came."""

    @staticmethod
    def forward(ctx: Any, report: _Report, kept: tuple[Tensor, ...], *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*kept)
        ctx.report = report
        ctx.set_materialize_grads(False)
        # No copies, and unlike views made here, later in-place operations (relu_) may write to them.
        return tuple(output.detach() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        key, *kept = ctx.saved_tensors
        ctx.report(key, kept, gradients)
        return None, None, *gradients
