"""Layers that are modules. Each kind of module is a subclass, which names the type that it taps.

Shapes: d_in and d_out of the layer; `...` the dimensions of a batch (samples, or samples and tokens).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dualform.errors import RecordingError
from dualform.record.taps.early_key import EarlyKey, SaveEarly
from dualform.record.taps.hook import ModelHook
from dualform.record.taps.parametrizations import originals_of, shape_of
from dualform.record.taps.tap import Call, Listener, Tap
from dualform.store.parameter import Parameter


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
        self.batch_dim = self.batch_dim_of(module)
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
    def batch_dim_of(cls, module: nn.Module) -> int | None:
        """The axis that is the batch of what a module takes, and of layers inside it, where the module tells; else
        None.
        """
        return None

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

    def refuse(self, listener: Listener, error: RecordingError) -> None:
        """Report a call that has no keys."""
        listener.refused(self, error)

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
            self._tap.refuse(self._listener, error)
            return None
        if (early := self._tap.early) is not None:
            self._tap.early = None
            if any(early.argument is own for own in (*args, *kwargs.values())):
                call = replace(call, early=early.node)
        outputs = self._tap.passed(self._listener, call)
        return None if outputs[0] is call.outputs[0] else self._tap.output_of(outputs)
