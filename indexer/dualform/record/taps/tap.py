"""The adapter of a layer: it sees keys and error signals without changing a bit of the training.

Layers that are modules. Each kind of module is a subclass, which names the type that it taps.

Shapes: d_in and d_out of the layer; `...` the dimensions of a batch (samples, or samples and tokens).

A tap passes the outputs of a forward call through an identity autograd function (autograd.py) that saves the key. Its
backward hands key and error signal on. This holds under activation checkpointing, which runs forward hooks more than
once and backward once, and whose memory saving a key held in a closure would undo; under in-place operations on the
output; and under autocast, where the key is the cast input, the one that the product used.

A tap needs no module: it is attached to something that computes calls and hands each one to `passed`. A layer that is a
module is tapped by a kind of ModuleTap.

Which copy of its weights a product was computed with, where autocast made one of half precision, or they are of it.

The gradient of a product goes back through the node that made the copy: it is rounded to the copy's type there, and
added up in it with those of other products of the same copy. Whether there is such a node is seen in the graph of the
forward pass, so that nothing is taken for rounded that autocast leaves alone, and no more is said where other nodes
stand between, as of compiled code.

Weights that a module computes from other parameters before it uses them, as weight and spectral norm do.

No optimizer moves such a weight, so that no sum over slots is it: its layer has keys and scores, and no values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.modules import module as all_modules
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle

from dualform.errors import RecordingError
from dualform.record.layout import HALVED, KeyForm
from dualform.record.lineage import Known, KnownRows
from dualform.record.taps.autograd import (
    EarlyKey,
    ModelHook,
    Report,
    compiled,
    early_key,
    hand_over,
    own_operators,
    part_that_runs,
    save,
    watched,
)
from dualform.store.layer import Parameter


def originals_of(module: nn.Module, names: Iterable[str]) -> dict[str, Tensor]:
    """The parameters that a module computes some of its tensors from, by their names in it.

    None of a tensor that is a parameter itself, or of which nothing tells how it is computed.
    """
    found: dict[str, Tensor] = {}
    for name in names:
        if name in module._parameters:
            continue
        if parametrize.is_parametrized(module, name):
            parametrizations = module.get_submodule(f"parametrizations.{name}")
            own = parametrizations.named_parameters()
            found |= {f"parametrizations.{name}.{original}": tensor for original, tensor in own}
        else:  # as torch.nn.utils.weight_norm, spectral_norm and prune leave it: weight_g, weight_v, weight_orig
            own = module.named_parameters(recurse=False)
            found |= {original: tensor for original, tensor in own if original.startswith(f"{name}_")}
    return found


def shape_of(module: nn.Module, name: str) -> torch.Size:
    """The shape of a tensor that a module computes; nothing of the training moves by looking.

    Spectral norm takes a step of its power iteration, and dropout draws, where the module trains.
    """
    if not parametrize.is_parametrized(module, name):
        computed: Tensor = getattr(module, name)
        return computed.shape
    parts = list(module.get_submodule(f"parametrizations.{name}").modules())
    trains = [part.training for part in parts]
    try:
        for part in parts:
            part.training = False
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            computed = getattr(module, name)
            return computed.shape
    finally:
        for part, training in zip(parts, trains, strict=True):
            part.training = training


_COPY = "ToCopyBackward0"
_PARAMETER = "AccumulateGrad"
_SUM = "AddBackward0"
"""A bias that is added behind the product."""
_OF_VIEWS = "T Transpose Permute View UnsafeView Alias Select Slice Split SplitWithSizes UnsafeSplit Unbind"
_VIEWS = frozenset((*(f"{name}Backward0" for name in _OF_VIEWS.split(" ")), "_IdentityBackward"))
"""Nodes through which each number of a gradient goes as it is; taps, too, where several layers share one product."""


def cast_of(parameters: Iterable[Tensor], output: Tensor) -> int | None:
    """The number of the copy, among those of one forward pass; None where the gradient of any of the parameters that
    ask for one does not go through a copy alone. `output`: of the product.
    """
    if output.dtype not in HALVED or output.grad_fn is None:
        return None
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        return None
    found = _copies(output.grad_fn)
    copies = [found.get(id(parameter)) for parameter in trained]
    return None if None in copies else copies[0]


def _copies(node: Any) -> dict[int, int]:
    """By id, parameters of a product or its bias that are of half precision, or copied to it: the copy's number."""
    found: dict[int, int] = {}
    waiting: list[tuple[Any, bool, int | None]] = [(node, False, None)]
    while waiting:
        node, inside, copy = waiting.pop()
        name = node.name()
        if name.endswith(_PARAMETER):
            if copy is None and inside and node.variable.dtype in HALVED:
                copy = -id(node.variable)  # products of the parameter itself are added up in its type alike
            if copy is not None:
                found[id(node.variable)] = copy
            continue
        if name == _COPY and copy is None:
            copy = node._sequence_nr()
        elif name not in _VIEWS:
            if inside or copy is not None:
                continue  # what the product's input was computed from
            inside = name != _SUM
        waiting += [(child, inside, copy) for child, _ in node.next_functions if child is not None]
    return found


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
        """As FailureListener has it (autograd.py)."""

    def probed(self, tap: Tap, key: Tensor, rows: Known | None = None) -> None:
        """A forward call while a query set is taken."""

    def received(self, tap: Tap, call: int, key: Tensor, error: Tensor, cast: int | None) -> None:
        """The error signal of a call has arrived, in backward: [..., d_out], or any gradient of the layer's outputs
        where its values are not wanted. `cast`: the copy of the weights that the call used.
        """


@dataclass(eq=False, slots=True)
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
    """The node of the graph that saved the key already (autograd.py); None where none did."""


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
    """What compiled code knows the tap and its listener by (autograd.py), while both are joined; else 0."""
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
        return any(tensor.dim() > 1 and not tensor.requires_grad for tensor in self.trained)

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
        if is_compiling():
            return self._traced(listener, call) if self.handle else self._passed(listener, call, None)
        followed = listener.followed
        if followed is None or not followed.here:
            return self._passed(listener, call, None)
        for output in call.outputs:
            if type(output) is not Tensor:  # a subclass would lose its type
                return self._passed(listener, call, followed)
        with torch._C.DisableTorchFunction():  # what follows rows need not see what a tap does
            return self._passed(listener, call, followed)

    def _passed(self, listener: Listener, call: Call, followed: KnownRows | None) -> tuple[Tensor, ...]:
        part, number, cast = part_that_runs(), -1, None
        try:
            rows = None if followed is None or call.argument is None else followed.of(call.argument)
            with own_operators(part):
                kept = self._kept(listener, call, rows)
        except Exception as error:
            hand_over(listener, error, self.name)
            kept = None
        if kept is None or not (part is None or part.allows(self)):
            self.passes_by()
            return call.outputs
        try:
            cast = cast_of(self.parameters.values(), call.outputs[0])
            number = listener.called(self, call.raw, rows)
        except Exception as error:
            hand_over(listener, error, self.name)
        if part is not None:
            part.note(self, kept)
        outputs = watched(Report(self, listener, number, cast, call.early), kept, call.outputs)
        try:
            if followed is not None:
                followed.same(call.outputs, outputs)
        except Exception as error:
            hand_over(listener, error, self.name)
        return outputs

    def _traced(self, listener: Listener, call: Call) -> tuple[Tensor, ...]:
        """As `passed`, in code that is being compiled: once, and so it tells nothing of single calls."""
        try:
            kept = self._kept(listener, call, None)
        except Exception as error:
            hand_over(listener, error, self.name)
            kept = None
        if kept is None:
            return call.outputs
        return compiled(self.handle, call.raw, listener.began, kept, call.outputs)

    def passes_by(self) -> None:
        """A call is not recorded."""
        part = part_that_runs()
        if part is not None:
            part.fill(self)

    def _kept(self, listener: Listener, call: Call, rows: Known | None) -> tuple[Tensor, ...] | None:
        """The tensors to save for the error signal of a forward call; None if none will come."""
        mode, key = self.mode(listener), call.key
        if mode is None:
            return None
        if why := _not_rows(key):
            listener.refused(self, RecordingError(f"layer {self.name!r} was given {why}.", hint=_OTHER_INPUT))
            return None
        if key.layout != torch.strided:
            key = key.to_dense()
        if mode == "query_set":
            listener.probed(self, key, rows)
            return None
        if not any(tensor.requires_grad for tensor in self.trained):
            if not self._is_traced():
                listener.called_without_gradient(self, "its weight was frozen")
            return None
        if not any(part.requires_grad for part in call.outputs):
            return None
        kept = call.kept if call.early is not None else (key, *call.kept)
        if self.may_be_written and not self._is_traced():
            return tuple([own.clone() for own in kept])
        return kept

    def _is_traced(self) -> bool:
        """Whether its calls are being compiled, with what reports them."""
        return bool(self.handle) and is_compiling()

    def mode(self, listener: Listener) -> str | None:
        """As `Listener.forward_mode`, of a call that is made now; None also for one that cannot be recorded, which the
        listener is told of.
        """
        mode = listener.forward_mode()
        if mode is None:
            return None
        if self._is_traced():  # code that is compiled once tells nothing of single calls
            return mode if torch.is_grad_enabled() else None
        if is_transformed():
            listener.unseen(self)
            return None
        if mode == "step" and not torch.is_grad_enabled():
            listener.called_without_gradient(self, "it ran under torch.no_grad or in an autograd.Function")
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
        part = part_that_runs() if self._saves_early else None
        found, self._tap.early = super().__call__(module, part, *given), None
        if part is None:
            return
        who = (self._tap, "before")
        if found is None or not part.allows(who):
            part.fill(who)
            return
        argument, key = found
        part.note(who, (key,))
        self._tap.early = EarlyKey(argument, argument._version, save(key))

    def run(self, module: Any, *given: Any) -> Any:
        """The key to save now."""
        part, *arguments = given
        hooks = module._forward_hooks
        for number, hook in hooks.items():
            if number == self._first:
                break
            if not isinstance(hook, _Hook):  # another recorder's is as good
                hooks.move_to_end(self._first, last=False)
                break
        if all_modules._global_forward_hooks:
            _BARE.watch(module)
        return None if part is None else early_key(self._tap, self.listener, part, *arguments)


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
        traced = is_compiling()
        bare = None if traced or not _BARE.noted else _BARE.take(module)
        if self._tap.mode(self.listener) is None:
            return None
        try:
            if not traced and (why := self._altered(module) or (bare is not None and bare.altered(given[-1]))):
                raise RecordingError(f"layer {self.layer!r}: {why}.", hint="Leave it out with layers=.")
            with own_operators(part_that_runs()):
                call = self._tap.call_of(*given)
        except RecordingError as error:
            self._tap.refuse(self.listener, error)
            return None
        if (early := self._tap.early) is not None:
            self._tap.early = None
            args, kwargs, _ = given
            if any(early.is_of(own) for own in (*args, *kwargs.values())):
                call.early = early.node
        return call

    def _altered(self, module: Any) -> str:
        """What was done to the module since recording began that its calls cannot be taken with."""
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
