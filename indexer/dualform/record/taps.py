"""Taps: they see a layer's keys and error signals without changing a bit of the training.

Shapes: d_in and d_out of the layer; `...` the dimensions of a batch (samples, or samples and tokens).

A tap's forward hook passes the layer's output through an identity autograd function that saves the key. Its backward
hands key and error signal on. This holds under activation checkpointing, which runs forward hooks more than once and
backward once, and whose memory saving a key held in a closure would undo; under in-place operations on the output;
and under autocast, where the key is the cast input, the one that the product used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class Listener(Protocol):
    """Who a tap reports to."""

    def forward_mode(self) -> str | None:
        """ "step" to record, "probe" to take inputs only, None to let the call pass."""

    def called(self, tap: Tap, argument: Tensor) -> int:
        """A forward call that expects an error signal; returns the number it will be known by.

        `argument` is the layer's input as it was passed.
        """

    def called_without_gradient(self, tap: Tap, key: Tensor) -> None:
        """A forward call of a training under torch.no_grad."""

    def probed(self, tap: Tap, key: Tensor) -> None:
        """A forward call while a probe is taken."""

    def received(self, tap: Tap, call: int, key: Tensor, error: Tensor) -> None:
        """The error signal of a call has arrived, in backward."""


class Tap(ABC):
    """One layer under watch. A kind of layer is a subclass that names the module type it taps."""

    module_type: ClassVar[type[nn.Module]]
    _kinds: ClassVar[dict[type[nn.Module], type[Tap]]] = {}

    def __init_subclass__(cls, *, module_type: type[nn.Module], **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.module_type = module_type
        Tap._kinds[module_type] = cls

    @staticmethod
    def kind_of(module: nn.Module) -> type[Tap] | None:
        """The kind that taps a module; None where there is none."""
        return next((kind for base, kind in Tap._kinds.items() if isinstance(module, base)), None)

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module
        self._handle: RemovableHandle | None = None

    d_in: int
    d_out: int
    weight: Tensor
    """[d_out, d_in]."""
    bias: Tensor | None
    """[d_out]."""
    weight_name: str
    """The weight's name in the model's state dict."""
    bias_name: str | None

    @staticmethod
    @abstractmethod
    def refusal(module: nn.Module) -> str:
        """Why this kind cannot tap a module of its type; empty where it can."""

    @staticmethod
    @abstractmethod
    def key_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The layer's input, [..., d_in], among its forward arguments."""

    def attach(self, listener: Listener) -> None:
        """Start reporting. The hook stays until `detach`."""

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor | None:
            mode = listener.forward_mode()
            if mode is None:
                return None
            argument = self.key_of(args, kwargs)
            key = argument.detach().to(output.dtype)  # under autocast the product used the cast
            if mode == "probe":
                listener.probed(self, key)
            elif module.training:
                if output.requires_grad:
                    call = listener.called(self, argument)
                    replaced: Tensor = _Identity.apply(output, key, self, listener, call)  # type: ignore[no-untyped-call]
                    return replaced
                listener.called_without_gradient(self, key)
            return None

        self._handle = self.module.register_forward_hook(hook, with_kwargs=True)

    def detach(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


class _Identity(torch.autograd.Function):
    """Passes a layer's output on, and its error signal back, unchanged."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, key: Tensor, tap: Tap, listener: Listener, call: int) -> Tensor:
        ctx.save_for_backward(key)
        ctx.report = (listener, tap, call)
        # Not a copy, and unlike a view made here, later in-place operations (relu_) may write to it.
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, ...]:
        (key,) = ctx.saved_tensors
        listener, tap, call = ctx.report
        listener.received(tap, call, key, errors[0].detach())
        return errors[0], None, None, None, None
