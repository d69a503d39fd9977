"""Layers that are modules. Each kind of module is a subclass, which names the type that it taps.

Shapes: d_in and d_out of the layer; `...` the dimensions of a batch (samples, or samples and tokens).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.modules import module as all_modules
from torch.utils.hooks import RemovableHandle

from dualform.errors import RecordingError
from dualform.record.taps.checkpoints import EarlyKey, early_key, own_operators, part_that_runs, save
from dualform.record.taps.hook import ModelHook, hand_over
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
            return "its weight is not a parameter yet, or is computed from something else"
        return cls.other_forward(module)

    @classmethod
    def other_forward(cls, module: nn.Module) -> str:
        """Why a module does not compute what the type that this kind taps does; empty where it does."""
        kind: Any = next(base for base in type(module).__mro__ if cls.module_type in (base, _qualified(base)))
        if type(module).forward is not kind.forward or "forward" in vars(module):
            return f"{type(module).__name__} has a forward of its own"
        if getattr(kind.forward, "__globals__", {}).get("__name__") != kind.__module__:
            return f"{kind.__name__}.forward was replaced by {_told(kind.forward)}"
        if _has_old_hooks(module):
            return "it has a hook of register_backward_hook, which would see the recorder's part of the graph"
        return ""

    def call_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Call:
        """What a forward call was, from its arguments and its output. Raises RecordingError for one without keys."""
        argument: Tensor = args[0] if args else next(iter(kwargs.values()))
        # Under autocast the product used the cast, and the key's own type says what it was computed in.
        key = self.key_of(argument).to(output.dtype)
        return Call(key, (output,), raw=not argument.requires_grad, argument=argument)

    def key_of(self, argument: Tensor) -> Tensor:
        """The argument, detached: what the product saves itself, so that nobody may write to it."""
        return argument.detach()

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
        hook = _Hook(self, listener)
        # First of all: what other hooks make of the output is no part of the layer.
        handle = self.module.register_forward_hook(hook, prepend=True, with_kwargs=True)
        self._handles.append(handle)
        before = _Before(self, listener, handle.id)
        self._handles.append(self.module.register_forward_pre_hook(before, with_kwargs=True))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self.early = [], None
        _BARE.forget(self.module)


def _qualified(base: type) -> str:
    return f"{base.__module__}.{base.__qualname__}"


def _forward_of(module: nn.Module) -> Any:
    return vars(module).get("forward", type(module).forward)


def _has_old_hooks(module: nn.Module) -> bool:
    """Whether it has backward hooks that torch hangs on the last node of its graph."""
    own = bool(module._backward_hooks) and module._is_full_backward_hook is False
    return own or (bool(all_modules._global_backward_hooks) and all_modules._global_is_full_backward_hook is False)


def _told(function: Any) -> str:
    """A function for messages."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(function, "__globals__", {}).get("__name__") or getattr(function, "__module__", "")
    return f"{code}.{name}"


class _Before(ModelHook):
    """The forward pre-hook of a tap."""

    def __init__(self, tap: ModuleTap, listener: Listener, first: int) -> None:
        """`first`: the number of the tap's forward hook."""
        self._tap, self.listener, self.layer = tap, listener, tap.name
        self._first = first
        self._saves_early = type(tap).call_of is ModuleTap.call_of

    def __call__(self, module: nn.Module, *given: Any) -> None:
        if is_compiling():
            return
        found, self._tap.early = super().__call__(module, *given), None
        part, who = part_that_runs() if self._saves_early else None, (self._tap, "before")
        if part is None:
            return
        if found is None or not part.allows(who):
            part.fill(who)
            return
        argument, key = found
        part.note(who, (key,))
        self._tap.early = EarlyKey(argument, argument._version, save(key))

    def run(self, module: Any, *given: Any) -> Any:
        """The key to save now."""
        hooks = module._forward_hooks
        for number, hook in hooks.items():
            if number == self._first:
                break
            if not isinstance(hook, _Hook):  # another recorder's is as good
                hooks.move_to_end(self._first, last=False)
                break
        if all_modules._global_forward_hooks:
            _BARE.watch(module)
        if self._saves_early and part_that_runs() is not None:
            return early_key(self._tap, self.listener, *given)
        return None


class _Hook(ModelHook):
    """The forward hook of a tap."""

    listener: Listener

    def __init__(self, tap: ModuleTap, listener: Listener) -> None:
        self._tap, self.listener, self.layer = tap, listener, tap.name
        self._forward = _forward_of(tap.module)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        call: Call | None = super().__call__(module, args, kwargs, output)
        if call is None:
            self._tap.passes_by()
            return None
        outputs = self._tap.passed(self.listener, call)
        try:
            return None if outputs[0] is call.outputs[0] else self._tap.output_of(outputs)
        except Exception as error:
            hand_over(self.listener, error, self.layer)
            return None

    def run(self, module: Any, *given: Any) -> Call | None:
        followed = None if is_compiling() else self.listener.followed
        if followed is None or not followed.here:
            return self._told(module, *given)
        with torch._C.DisableTorchFunction():
            return self._told(module, *given)

    def _told(self, module: Any, *given: Any) -> Call | None:
        bare = None if is_compiling() or not _BARE.noted else _BARE.take(module)
        if self._tap.mode(self.listener) is None:
            return None
        try:
            if why := self._altered(module) or (bare is not None and bare.altered(given[-1])):
                raise RecordingError(f"layer {self.layer!r}: {why}.", hint="Leave it out with layers=.")
            with own_operators():
                call = self._tap.call_of(*given)
        except RecordingError as error:
            self._tap.refuse(self.listener, error)
            return None
        if (early := self._tap.early) is not None:
            self._tap.early = None
            args, kwargs, _ = given
            if any(early.is_of(own) for own in (*args, *kwargs.values())):
                call = replace(call, early=early.node)
        return call

    def _altered(self, module: Any) -> str:
        """What was done to the module since recording began that its calls cannot be taken with."""
        if is_compiling():
            return ""
        if (forward := _forward_of(module)) is not self._forward:
            return f"its forward was replaced by {_told(forward)} while it was recorded"
        if _has_old_hooks(module):
            return "it was given a hook of register_backward_hook, which would see the recorder's part of the graph"
        return ""


@dataclass(frozen=True, eq=False)
class _Output:
    """What a module returned."""

    output: Any
    versions: Sequence[int]

    @classmethod
    def of(cls, output: Any) -> _Output:
        return cls(output, _versions(output))

    def altered(self, output: Any) -> str:
        """Which hooks of all modules may have made another of it; empty if it is the same."""
        if output is self.output and _versions(output) == self.versions:
            return ""
        others = [hook for hook in all_modules._global_forward_hooks.values() if hook is not _BARE]
        return f"a hook of all modules changed its output: {', '.join(map(_told, others)) or 'it is gone by now'}"


class _BareOutputs:
    """What tapped modules return, as it is before hooks of all modules (register_module_forward_hook) see it, which
    torch calls before a module's own. It hangs among them while there are others.
    """

    def __init__(self) -> None:
        self.noted: dict[tuple[int, int], _Output | None] = {}
        """By thread and module, of calls that are under way."""
        self._handle: RemovableHandle | None = None

    def watch(self, module: nn.Module) -> None:
        """The module is about to be called."""
        hooks: Any = all_modules._global_forward_hooks
        if self._handle is None:
            self._handle = all_modules.register_module_forward_hook(self)
        if next(iter(hooks)) != self._handle.id:
            hooks.move_to_end(self._handle.id, last=False)
        self.noted[get_ident(), id(module)] = None

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if (get_ident(), id(module)) in self.noted:
            self.noted[get_ident(), id(module)] = _Output.of(output)

    def take(self, module: nn.Module) -> _Output | None:
        return self.noted.pop((get_ident(), id(module)), None)

    def forget(self, module: nn.Module) -> None:
        """The module is tapped no longer."""
        self.noted = {(thread, own): found for (thread, own), found in self.noted.items() if own != id(module)}
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


_BARE = _BareOutputs()


def _versions(output: Any) -> Sequence[int]:
    """How often each of its tensors was written to."""
    if isinstance(output, Tensor):
        return () if output.is_inference() else (output._version,)
    return [version for part in output for version in _versions(part)] if isinstance(output, tuple | list) else ()
