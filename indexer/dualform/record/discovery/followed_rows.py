"""Which rows of the batch the tensors of a forward pass hold: watches what reorders, selects or flattens them.

While a module of the model runs, torch hands over every function that is called from Python. What leaves the first axis
of a tensor as it is tells nothing, so that of ordinary networks nothing is kept: a tensor of which nothing is known has
the batch's rows in their order. What moves entries of the first axis gives its result a lineage (lineage.py), which
later operations hand on:

    x[order], h[mask], sort, gather, roll, cat       followed, by the indices of the step
    transpose, reshape, flatten, pack_padded…        followed, once for all steps
    linear, relu, h + bias, attention, lstm          keep the lineage of what goes in
    unique, and whatever is not known here           rows that cannot be followed (Mark.MIXED)

Tensors that come of parameters, buffers and attributes of the model alone are no rows of the batch (Mark.MODEL). Where
a tensor meets one whose rows are the batch's in their order, as in mixup, the result counts as the latter.

What is not seen: code between calls of the model's modules, torch.from_numpy, TorchScript, torch.func.vmap, compiled
code, a reentrant checkpoint's second run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from dualform.record.discovery.row_rules import KEPT, RULES, Call, keep, mix, tensors_in
from dualform.record.lineage import KnownRows, Mark
from dualform.record.taps.autograd import ModelHook, hand_over
from dualform.record.taps.tap import Listener, is_transformed
from dualform.record.torch_internals import innermost_function_mode


class FollowedRows(KnownRows):
    """Of the tensors of the step, or the query set, that runs. Attached to a model, it follows what its modules do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self._listener: Listener | None = None
        self._handles: list[RemovableHandle] = []
        self._parts: list[RemovableHandle] = []
        """Of modules in the model, until a step has shown that the training calls the model itself."""
        self._whole = self._alone = False
        """Whether the model was called itself, and whether one of its modules was outside of such a call."""
        self.around = threading.local()

    def attach(self, listener: Listener) -> None:
        """Follow what runs in its steps and query sets."""
        self._listener = listener
        self._hold()
        for module in self._model.modules():
            if isinstance(module, _FUSED):
                self._hook(module, self._handles, self.pause, self.resume)
        for module in (self._model, *_outermost(self._model)):
            self._hook(module, self._handles if module is self._model else self._parts, self.enter, self.leave)

    def _hook(
        self, module: nn.Module, to: list[RemovableHandle], before: Callable[..., None], after: Callable[..., None]
    ) -> None:
        assert self._listener is not None
        if isinstance(module, torch.jit.ScriptModule):  # which takes no such hooks
            return
        to.append(module.register_forward_pre_hook(_Hook(self._listener, before), prepend=True))
        to.append(module.register_forward_hook(_Hook(self._listener, after), with_kwargs=True, always_call=True))

    def _hold(self) -> None:
        self._held = {id(own): own for own in _held_by(self._model)}

    def detach(self) -> None:
        for handle in (*self._handles, *self._parts):
            handle.remove()
        self._leave_all()
        self._handles, self._parts, self._held = [], [], {}
        self.clear()

    def _leave_all(self) -> None:
        # An interrupt from the keyboard passes even hooks that always run; a mode that is paused is not there.
        if any(self.around.__dict__.pop("paused", ())):
            self.around.__dict__.clear()
        while self.around.__dict__.get("modes"):
            self.leave()

    def begin(self) -> None:
        """Another step begins: nothing is known of its tensors, and no module runs."""
        self._leave_all()
        self.clear()
        self._hold()
        if self._parts and self._whole and not self._alone:
            for handle in self._parts:
                handle.remove()
            self._parts = []

    def enter(self, module: nn.Module, *_: Any) -> None:
        """A module is called."""
        modes: list[_Mode | None] = self.around.__dict__.setdefault("modes", [])
        mode = None
        if not self.here and self._runs() and not _is_closed(module):
            self._whole, self._alone = self._whole or module is self._model, self._alone or module is not self._model
            assert self._listener is not None
            mode = self.around.mode = _Mode(self, self._listener)
            mode.__enter__()  # type: ignore[no-untyped-call]
        modes.append(mode)

    def _runs(self) -> bool:
        """Whether what is called now is to be followed."""
        asked = self._listener is not None and self._listener.forward_mode() in ("query_set", "step")
        return asked and not is_transformed()

    def leave(self, *_: Any) -> None:
        """It has ended."""
        modes: list[_Mode | None] = self.around.__dict__.get("modes", [])
        mode = modes.pop() if modes else None
        if mode is not None:
            self.around.mode = None
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def pause(self, module: nn.Module, *_: Any) -> None:
        """A module is called that would compute otherwise while a mode is there."""
        mode: _Mode | None = self.around.__dict__.get("mode")
        top = mode is not None and _is_closed(module) and innermost_function_mode() is mode
        found = mode if top else None
        self.around.__dict__.setdefault("paused", []).append(found)
        if found is not None:
            found.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def resume(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """It has ended: the rows of its output are those of what it was given."""
        paused: list[_Mode | None] = self.around.__dict__.get("paused", [])
        mode = paused.pop() if paused else None
        if mode is not None:
            mode.__enter__()  # type: ignore[no-untyped-call]
            keep(self, (*args, *kwargs.values())[:1], output)

    @property
    def here(self) -> bool:
        """Whether what runs in this thread now is followed."""
        return self.around.__dict__.get("mode") is not None


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Attributes that torch gives every module: none of them holds a tensor but parameters and buffers."""


def _held_by(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        for own in (*module._parameters.values(), *module._buffers.values()):
            if own is not None:
                yield own
        for name, value in vars(module).items():
            if name not in _OF_EVERY_MODULE and isinstance(value, Tensor | list | tuple | dict):
                yield from (each for each in tensors_in((value,)) if each.dim())


def _outermost(model: nn.Module) -> Iterator[nn.Module]:
    """Modules that a training may call by themselves, in the model's place."""
    for child in model.children():
        yield child
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from _outermost(child)


class _Hook(ModelHook):
    def __init__(self, listener: Listener, does: Callable[..., None]) -> None:
        self.listener, self._does = listener, does

    def run(self, module: Any, *given: Any) -> None:
        if not is_compiling():
            self._does(module, *given)


_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
"""Modules that torch computes by one kernel, if no mode is there and nothing needs a gradient."""


def _is_closed(module: nn.Module) -> bool:
    """Whether a module is passed over: torch may compute it by one kernel, or it is attention, which keeps its rows."""
    if isinstance(module, nn.MultiheadAttention):
        return True
    if not isinstance(module, _FUSED) or module.training or not torch.backends.mha.get_fastpath_enabled():
        return False
    return not torch.is_grad_enabled() or not any(own.requires_grad for own in module.parameters())


class _Mode(TorchFunctionMode):
    """Sees every function of torch that is called from Python, and is left while it looks at one."""

    def __init__(self, followed: FollowedRows, listener: Listener) -> None:
        super().__init__()
        self._followed, self._listener = followed, listener

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if is_compiling():  # a function that was compiled is traced with whatever mode lies around it
            return func(*args, **(kwargs or {}))
        output = func(*args, **kwargs) if kwargs else func(*args)
        try:
            self._look(func, args, kwargs or {}, output)
        except Exception as error:
            hand_over(self._listener, error)
        return output

    def _look(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        name = func.__name__
        if name == "__get__":
            if not isinstance(output, Tensor):  # a shape, a device
                return
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        rule, followed = RULES.get(name), self._followed
        if rule is None:
            if name not in KEPT:
                mix(followed, (*args, *kwargs.values()), output)
            elif followed.live or (args and isinstance(args[0], Tensor) and not followed.plainly(args[0])):
                keep(followed, (*args, *kwargs.values()), output)
            return
        if not args:
            args = tuple([own for key, own in kwargs.items() if key in ("input", "self", "tensors")])
            kwargs = {key: own for key, own in kwargs.items() if key not in ("input", "self", "tensors")}
        try:
            rule(followed, Call(name, func, args, kwargs, output))
        except (TypeError, ValueError, LookupError, AttributeError, RuntimeError):
            # Arguments in a form that is not known here: a torch of another version, a tensor of a kind of its own.
            for own in tensors_in((output,)):
                followed.put(own, Mark.MIXED)
