"""Taps: they see a layer's keys and error signals without changing a bit of the training.

Shapes: d_in and d_out of the layer; `...` the dimensions of a batch (samples, or samples and tokens).

A tap passes the outputs of a forward call through an identity autograd function (identity.py) that saves the key. Its
backward hands key and error signal on. This holds under activation checkpointing, which runs forward hooks more than
once and backward once, and whose memory saving a key held in a closure would undo; under in-place operations on the
output; and under autocast, where the key is the cast input, the one that the product used.

A tap needs no module: it is attached to something that computes calls and hands each one to `passed`. A layer that is a
module is tapped by a kind of ModuleTap (module_tap.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.compiler import is_compiling

from dualform.errors import RecordingError
from dualform.record.key_form import KeyForm
from dualform.record.lineage import Known, KnownRows
from dualform.record.taps.checkpoints import own_operators, part_that_runs
from dualform.record.taps.hook import hand_over
from dualform.record.taps.identity import Report, compiled, watched
from dualform.record.weight_casts import cast_of
from dualform.store.parameter import Parameter


def is_transformed() -> bool:
    """Whether the code that runs now is under a transform of torch.func, as vmap is: tensors there are not those of one
    example or one pass.
    """
    return bool(torch._C._are_functorch_transforms_active())


_OTHER_INPUT = "Pass it a padded tensor of real numbers with step(mask=…), or leave it out with layers=."


def _not_rows(key: Tensor) -> str:
    """What a key is that has no rows of numbers which can be stored; empty for all others."""
    if key.is_nested:
        return "a nested tensor, whose rows are not rows of a batch"
    if key.is_complex():
        return f"complex numbers ({str(key.dtype).removeprefix('torch.')})"
    return "quantized numbers" if key.is_quantized else ""


class Listener(Protocol):
    """Who a tap reports to."""

    def forward_mode(self) -> str | None:
        """ "step" to record, "query_set" to take inputs only, None to let the call pass."""

    began: Tensor
    """int64 scalar: which step runs."""
    followed: KnownRows | None
    """Which rows of the batch tensors hold; None if they are not followed."""

    def called(self, tap: Tap, raw: bool, rows: Known | None = None) -> int:
        """A forward call that expects an error signal; returns the number it will be known by.

        `raw`: its key is data that came with the batch, no result of a computation; `rows`: what is known of the rows
        that its key holds.
        """

    def arrived(self, tap: Tap, raw: bool, began: int) -> int:
        """As `called`, of a call in compiled code, which is known once its gradient arrives: of one backward pass, the
        last one first. `began`: the step of its forward pass.
        """

    def called_without_gradient(self, tap: Tap, why: str) -> None:
        """A forward call of a training that no gradient will come of; `why`: "its weight was frozen"."""

    def unseen(self, tap: Tap) -> None:
        """A forward call under a transform of torch.func, whose tensors are not those of one example or one pass."""

    def refused(self, tap: Tap, error: RecordingError) -> None:
        """A forward call that has no keys. May raise the error."""

    def failed(self, error: Exception, layer: str = "") -> None:
        """As FailureListener has it (hook.py)."""

    def probed(self, tap: Tap, key: Tensor, rows: Known | None = None) -> None:
        """A forward call while a query set is taken."""

    def received(self, tap: Tap, call: int, key: Tensor, error: Tensor, cast: int | None) -> None:
        """The error signal of a call has arrived, in backward: [..., d_out], or any gradient of the layer's outputs
        where its values are not wanted. `cast`: the copy of the weights that the call used (weight_casts.py).
        """


@dataclass(frozen=True, eq=False)
class Call:
    """One forward call of a layer."""

    key: Tensor
    """[..., d_in], detached, in the type that the product was computed in."""
    outputs: tuple[Tensor, ...]
    """Every tensor through which gradients come back."""
    raw: bool
    argument: Tensor | None = field(kw_only=True)
    """What the layer was given, whose rows are followed. None if its leading axes are not the key's: the rows are then
    the batch's in its order.
    """
    kept: tuple[Tensor, ...] = ()
    """What the error signal is computed from, beside the key and the outputs' gradients."""
    early: Any = None
    """The node of the graph that saved the key already (checkpoints.py); None where none did."""


class Tap(ABC):
    """One layer under watch."""

    def __init__(self, name: str, values: bool = True) -> None:
        """`values`: error signals are wanted, too."""
        self.name = name
        self.values = values and not self.why_no_values
        """Whether slots get values; where not, `received` is told of any gradient that came."""
        self.batch_dim: int | None = None
        """The axis of a key that is the batch, where the layer itself or a module around it tells; else None."""

    handle: int = 0
    """What compiled code knows the tap and its listener by (identity.py), while both are joined; else 0."""
    d_in: int
    d_out: int
    key_form: KeyForm = KeyForm()
    """How its keys lie."""
    parameters: dict[Parameter, Tensor]
    """Blocks, each with the tensor that it is a block of: weights in the order of their columns, then biases."""
    why_no_values: str = ""
    """Why a slot of this layer has a key but no value; empty where it has one."""

    @property
    def trained(self) -> Iterable[Tensor]:
        """The parameters that its training moves."""
        return self.parameters.values()

    @property
    def may_be_written(self) -> bool:
        """Whether a network may write to keys after a product: autograd saves none for a matrix that is frozen."""
        return not all(tensor.requires_grad for tensor in self.trained if tensor.dim() > 1)

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
        followed = None if is_compiling() else listener.followed
        if followed is None or not followed.here:
            return self._passed(listener, call, None)
        if any(type(output) is not Tensor for output in call.outputs):  # a subclass would lose its type
            return self._passed(listener, call, followed)
        with torch._C.DisableTorchFunction():  # what follows rows need not see what a tap does
            return self._passed(listener, call, followed)

    def _passed(self, listener: Listener, call: Call, followed: KnownRows | None) -> tuple[Tensor, ...]:
        rows = None
        try:
            rows = None if followed is None or call.argument is None else followed.of(call.argument)
            with own_operators():
                kept = self._kept(listener, call, rows)
        except Exception as error:
            hand_over(listener, error, self.name)
            kept = None
        part = part_that_runs()
        if kept is None or not (part is None or part.allows(self)):
            self.passes_by()
            return call.outputs
        if self.handle and is_compiling():
            return compiled(self.handle, call.raw, listener.began, kept, call.outputs)
        report = Report(self, listener, early=call.early)
        try:
            cast = cast_of(self.parameters.values(), call.outputs[0])
            report = replace(report, call=listener.called(self, call.raw, rows), cast=cast)
        except Exception as error:
            hand_over(listener, error, self.name)
        if part is not None:
            part.note(self, kept)
        outputs = watched(report, kept, call.outputs)
        try:
            if followed is not None:
                followed.same(call.outputs, outputs)
        except Exception as error:
            hand_over(listener, error, self.name)
        return outputs

    def passes_by(self) -> None:
        """A call is not recorded."""
        part = part_that_runs()
        if part is not None:
            part.fill(self)

    def _kept(self, listener: Listener, call: Call, rows: Known | None) -> tuple[Tensor, ...] | None:
        """The tensors to save for the error signal of a forward call; None if none will come."""
        mode, traced = self.mode(listener), self.handle and is_compiling()
        if mode is None:
            return None
        if why := _not_rows(call.key):
            listener.refused(self, RecordingError(f"layer {self.name!r} was given {why}.", hint=_OTHER_INPUT))
            return None
        key = call.key if call.key.layout == torch.strided else call.key.to_dense()
        if mode == "query_set":
            listener.probed(self, key, rows)
        elif not any(tensor.requires_grad for tensor in self.trained):
            if not traced:
                listener.called_without_gradient(self, "its weight was frozen")
        elif any(part.requires_grad for part in call.outputs):
            if traced:
                return key, *call.kept
            kept = call.kept if call.early is not None else (key, *call.kept)
            return tuple(own.clone() for own in kept) if self.may_be_written else kept
        return None

    def mode(self, listener: Listener) -> str | None:
        """As `Listener.forward_mode`, of a call that is made now; None also for one that cannot be recorded, which the
        listener is told of.
        """
        mode = listener.forward_mode()
        if self.handle and is_compiling():  # code that is compiled once tells nothing of single calls
            return mode if torch.is_grad_enabled() else None
        if mode is not None and is_transformed():
            listener.unseen(self)
            return None
        if mode == "step" and not torch.is_grad_enabled():
            listener.called_without_gradient(self, "it ran under torch.no_grad or in an autograd.Function")
            return None
        return mode
