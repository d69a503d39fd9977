"""Taps: they see a layer's keys and error signals without changing a bit of the training.

Shapes: d_in and d_out of the layer; `...` the dimensions of a batch (samples, or samples and tokens).

A tap passes the outputs of a forward call through an identity autograd function (identity.py) that saves the key. Its
backward hands key and error signal on. This holds under activation checkpointing, which runs forward hooks more than
once and backward once, and whose memory saving a key held in a closure would undo; under in-place operations on the
output; and under autocast, where the key is the cast input, the one that the product used.

A tap needs no module: it is attached to something that computes calls and hands each one to `passed`. A layer that is a
module is tapped by a kind of ModuleTap, found by the type of module that it names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.utils.hooks import RemovableHandle

from dualform.errors import RecordingError
from dualform.record.casts import cast_of
from dualform.record.followed_rows import FollowedRows, Rows
from dualform.record.key_form import KeyForm
from dualform.record.taps.computed import originals_of, shape_of
from dualform.record.taps.early_key import EarlyKey, SaveEarly
from dualform.record.taps.hook import ModelHook
from dualform.record.taps.identity import Report, compiled, watched
from dualform.store.parameter import Parameter


class Listener(Protocol):
    """Who a tap reports to."""

    def forward_mode(self) -> str | None:
        """ "step" to record, "probe" to take inputs only, None to let the call pass."""

    began: Tensor
    """int64 scalar: which step runs."""
    follows: bool
    """Whether steps that begin from now on are to follow which rows tensors hold."""

    @property
    def followed(self) -> FollowedRows | None:
        """Of the step that runs; None where it does not follow them."""

    def called(self, tap: Tap, raw: bool, rows: Rows | None = None) -> int:
        """A forward call that expects an error signal; returns the number it will be known by.

        `raw`: its key is data that came with the batch, no result of a computation; `rows`: those that its key
        holds, where they are followed.
        """

    def arrived(self, tap: Tap, raw: bool, began: int) -> int:
        """As `called`, of a call in compiled code, which is known once its gradient arrives: of one backward pass, the
        last one first. `began`: the step of its forward pass.
        """

    def called_without_gradient(self, tap: Tap, why: str) -> None:
        """A forward call of a training that no gradient will come of; `why`: "it ran under torch.no_grad"."""

    def unseen(self, tap: Tap) -> None:
        """A forward call under a transform of torch.func, whose tensors are not those of one example or one pass."""

    def refused(self, tap: Tap, error: RecordingError) -> None:
        """A forward call that has no keys. May raise the error."""

    def probed(self, tap: Tap, key: Tensor) -> None:
        """A forward call while a probe is taken."""

    def received(self, tap: Tap, call: int, key: Tensor, error: Tensor, cast: int | None) -> None:
        """The error signal of a call has arrived, in backward: [..., d_out], or any gradient of the layer's outputs
        where its values are not wanted. `cast`: the copy of the weights that the call used (casts.py).
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
    argument: Tensor | None = None
    """What the network multiplied, where its rows are the key's."""
    early: Any = None
    """The node of the graph that saved the key already (early_key.py); None where none did."""


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
        mode, traced = self.mode(listener), self.handle and is_compiling()
        if mode == "probe":
            listener.probed(self, call.key)
        elif mode == "step" and not any(tensor.requires_grad for tensor in self.trained):
            if not traced:
                listener.called_without_gradient(self, "its weight was frozen")
        elif mode == "step" and any(part.requires_grad for part in call.outputs):
            if traced:
                kept = (call.key, *call.kept)
                return compiled(self.handle, call.raw, listener.began, kept, call.outputs)
            cast = cast_of(self.parameters.values(), call.outputs[0])
            followed = None if is_compiling() else listener.followed
            rows = None if followed is None or call.argument is None else followed.of(call.argument)
            number = listener.called(self, call.raw, rows)
            kept = call.kept if call.early is not None else (call.key, *call.kept)
            kept = tuple(own.clone() for own in kept) if self.may_be_written else kept
            return watched(Report(self, listener, number, cast, call.early), kept, call.outputs)
        return call.outputs

    def mode(self, listener: Listener) -> str | None:
        """As `Listener.forward_mode`, of a call that is made now; None also for one that cannot be recorded, which the
        listener is told of.
        """
        mode = listener.forward_mode()
        if self.handle and is_compiling():  # code that is compiled once tells nothing of single calls
            return mode if torch.is_grad_enabled() else None
        if mode is not None and torch._C._are_functorch_transforms_active():
            listener.unseen(self)
            return None
        if mode == "step" and not torch.is_grad_enabled():
            listener.called_without_gradient(self, "it ran under torch.no_grad")
            return None
        return mode


class ModuleTap(Tap):
    """A layer that is a module, watched by a forward hook. A subclass names the module type that it taps.

    As it stands it reads calls that take the key as their first argument and return the product alone.
    """

    module_type: ClassVar[type[nn.Module] | str]
    """A string is the qualified name of a class of a package that need not be there."""
    covered: ClassVar[Sequence[str]] = ()
    """Modules inside one of this kind, by their names in it, that its taps stand for."""
    _kinds: ClassVar[dict[type[nn.Module] | str, type[ModuleTap]]] = {}

    def __init_subclass__(cls, *, module_type: type[nn.Module] | str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if module_type is not None:
            cls.module_type = module_type
            ModuleTap._kinds[module_type] = cls

    @staticmethod
    def kind_of(module: nn.Module) -> type[ModuleTap] | None:
        """The kind that taps a module, by the closest of its types; None where there is none."""
        names = (name for base in type(module).__mro__ for name in (base, _qualified(base)))
        return next((ModuleTap._kinds[name] for name in names if name in ModuleTap._kinds), None)

    def __init__(self, name: str, module: nn.Module, values: bool = True) -> None:
        """`values`: error signals are wanted, too."""
        super().__init__(name, values)
        self.module = module
        self.early: EarlyKey | None = None
        """Of the call that is under way, where its key was saved already."""
        self._handles: list[RemovableHandle] = []
        self._originals: Sequence[Tensor] = ()
        """Parameters that its weight is computed from; none where it is one itself."""

    @property
    def trained(self) -> Iterable[Tensor]:
        return self._originals or self.parameters.values()

    @classmethod
    def taps_of(cls, name: str, module: nn.Module, values: bool = True) -> Sequence[Tap]:
        """The layers that a module of that name is: one, unless the kind says otherwise."""
        return [cls(name, module, values)]

    @classmethod
    def refusal(cls, module: nn.Module) -> str:
        """Why this kind cannot tap a module of its type; empty where it can."""
        if "weight" in module._buffers:
            return "its weight is a buffer, which no optimizer moves"
        if module._parameters.get("weight") is None and not originals_of(module, ["weight"]):
            return "its weight is not a parameter yet, or is computed from what is none"
        return cls.other_forward(module)

    @classmethod
    def other_forward(cls, module: nn.Module) -> str:
        """Why a module does not compute what the type that this kind taps does; empty where it does."""
        kind: Any = next(base for base in type(module).__mro__ if cls.module_type in (base, _qualified(base)))
        if type(module).forward is not kind.forward or "forward" in vars(module):
            return f"{type(module).__name__} has a forward of its own"
        return ""

    def call_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Call:
        """What a forward call was, from its arguments and its output. Raises RecordingError for one without keys."""
        argument: Tensor = args[0] if args else next(iter(kwargs.values()))
        # Under autocast the product used the cast, and the key's own type says what it was computed in.
        key = argument.detach().to(output.dtype)
        return Call(key, (output,), raw=not argument.requires_grad, argument=argument)

    def output_of(self, outputs: tuple[Tensor, ...]) -> Any:
        """`Call.outputs` put together as the module returns them."""
        return outputs[0]

    def error_of(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
        (error,) = gradients
        assert error is not None
        return error

    def stand_for(self, weight: str, bias: str | None, *, transposed: bool = False, groups: int = 1) -> None:
        """Say d_in, d_out and the parameters, by the module's own names for its weight and its bias.

        A module may have None in place of its bias. `groups`: as the key form has them. Where the module computes one
        of them from others, it stands for none: its slots have no values.
        """
        originals = originals_of(self.module, [weight] if bias is None else [weight, bias])
        shape = shape_of(self.module, weight)
        own: Any = torch.empty(shape, device="meta") if originals else getattr(self.module, weight)
        self.d_out, columns = Parameter(weight, 0, 0, transposed=transposed).block_of(own).shape
        self.d_in = groups * columns
        if originals:
            self.parameters, self._originals, self.values = {}, tuple(originals.values()), False
            names = ", ".join(map(self.parameter_name, originals))
            self.why_no_values = f"its weight is computed from others: {names}"
            return
        self.parameters = {Parameter(self.parameter_name(weight), 0, columns, transposed=transposed): own}
        if bias is not None and getattr(self.module, bias) is not None:
            place = Parameter(self.parameter_name(bias), self.d_in, self.d_in + 1)
            self.parameters[place] = getattr(self.module, bias)

    def parameter_name(self, name: str) -> str:
        """A parameter's name in the model's state dict."""
        return f"{self.name}.{name}" if self.name else name

    def attach(self, listener: Listener) -> None:
        self._handles = [self.module.register_forward_hook(_Hook(self, listener), with_kwargs=True)]
        if type(self).call_of is ModuleTap.call_of:
            self._handles.append(self.module.register_forward_pre_hook(SaveEarly(self, listener), with_kwargs=True))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self.early = [], None


def _qualified(base: type) -> str:
    return f"{base.__module__}.{base.__qualname__}"


class _Hook(ModelHook):
    """The forward hook of a tap."""

    def __init__(self, tap: ModuleTap, listener: Listener) -> None:
        self._tap, self._listener = tap, listener

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if self._tap.mode(self._listener) is None:
            return None
        try:
            call = self._tap.call_of(args, kwargs, output)
        except RecordingError as error:
            self._listener.refused(self._tap, error)
            return None
        if (early := self._tap.early) is not None:
            self._tap.early = None
            if any(early.argument is own for own in (*args, *kwargs.values())):
                call = replace(call, early=early.node)
        outputs = self._tap.passed(self._listener, call)
        return None if outputs[0] is call.outputs[0] else self._tap.output_of(outputs)
