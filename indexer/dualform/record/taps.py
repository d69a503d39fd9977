"""Taps: they see a layer's keys and error signals without changing a bit of the training.

Shapes: d_in and d_out of the layer; `...` the dimensions of a batch (samples, or samples and tokens).

A tap's forward hook passes the layer's outputs through an identity autograd function that saves the key. Its backward
hands key and error signal on. This holds under activation checkpointing, which runs forward hooks more than once and
backward once, and whose memory saving a key held in a closure would undo; under in-place operations on the output;
and under autocast, where the key is the cast input, the one that the product used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dualform.store.layer import Parameter


class Listener(Protocol):
    """Who a tap reports to."""

    def forward_mode(self) -> str | None:
        """ "step" to record, "probe" to take inputs only, None to let the call pass."""

    def called(self, tap: Tap, raw: bool) -> int:
        """A forward call that expects an error signal; returns the number it will be known by.

        `raw`: its key is data that came with the batch, no result of a computation.
        """

    def called_without_gradient(self, tap: Tap, key: Tensor) -> None:
        """A forward call of a training under torch.no_grad."""

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
    """[..., d_in], detached."""
    outputs: tuple[Tensor, ...]
    """Every tensor through which gradients come back."""
    raw: bool
    kept: tuple[Tensor, ...] = ()
    """What the error signal is computed from, beside the key and the outputs' gradients."""


class Tap(ABC):
    """One layer under watch. A kind of layer is a subclass that names the module type it taps."""

    module_type: ClassVar[type[nn.Module]]
    _kinds: ClassVar[dict[type[nn.Module], type[Tap]]] = {}

    def __init_subclass__(cls, *, module_type: type[nn.Module] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if module_type is not None:
            cls.module_type = module_type
            Tap._kinds[module_type] = cls

    @staticmethod
    def kind_of(module: nn.Module) -> type[Tap] | None:
        """The kind that taps a module; None where there is none."""
        return next((kind for base, kind in Tap._kinds.items() if isinstance(module, base)), None)

    def __init__(self, name: str, module: nn.Module, values: bool = True) -> None:
        """`values`: error signals are wanted, too."""
        self.name = name
        self.module = module
        self.values = values and not self.why_no_values
        """Whether slots get values; where not, `received` is told of any gradient that came."""
        self._handle: RemovableHandle | None = None

    d_in: int
    d_out: int
    parameters: dict[Parameter, Tensor]
    """Weights [d_out, columns] in the order of their columns, then biases [d_out]."""
    why_no_values: ClassVar[str] = ""
    """Why a slot of this kind of layer has a key but no value; empty where it has one."""

    @classmethod
    @abstractmethod
    def refusal(cls, module: nn.Module) -> str:
        """Why this kind cannot tap a module of its type; empty where it can."""

    @abstractmethod
    def call_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Call:
        """What a forward call was, from its arguments and its output. Raises RecordingError for one without keys."""

    @abstractmethod
    def output_of(self, outputs: tuple[Tensor, ...]) -> Any:
        """`Call.outputs` put together as the module returns them."""

    @abstractmethod
    def error_of(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
        """The error signal, [..., d_out]; `gradients` are those of the outputs, None where none came."""

    def parameter_name(self, name: str) -> str:
        """A parameter's name in the model's state dict."""
        return f"{self.name}.{name}" if self.name else name

    def attach(self, listener: Listener) -> None:
        """Start reporting. The hook stays until `detach`."""

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            mode = listener.forward_mode()
            if mode is None or (mode == "step" and not module.training):
                return None
            call = self.call_of(args, kwargs, output)
            if mode == "probe":
                listener.probed(self, call.key)
            elif any(part.requires_grad for part in call.outputs):
                report = _Report(self, listener, listener.called(self, call.raw))
                outputs = _Identity.apply(report, (call.key, *call.kept), *call.outputs)  # type: ignore[no-untyped-call]
                return self.output_of(outputs)
            else:
                listener.called_without_gradient(self, call.key)
            return None

        self._handle = self.module.register_forward_hook(hook, with_kwargs=True)

    def detach(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


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
