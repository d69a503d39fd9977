"""Hooks on modules and the autograd functions that save keys and report gradients, also under activation checkpointing.

The identity that a tap passes a layer's outputs through: it saves the key, and its backward reports the gradients.

In code that torch.compile makes, backward is traced once and reports through an operator, by a number that stands for
the tap. The operator has an effect whose order counts: without one it is dead code and removed, and equal calls of it
are made one. Code that runs without Python, as from a CUDA graph, would report nothing, so that the operator is tagged.

What taps save inside activation checkpoints, whose parts run again in the backward pass.

A checkpoint of torch counts the tensors that its first run saves, and finds those of its second run by their numbers.
So a tap must save in the second run exactly what it saved in the first, at the same places: also if one of them is not
recorded, because the step was over, recording had stopped, or the recorder failed there. Otherwise the training goes on
with other tensors, or ends.

The second run stops as soon as the last tensor that was saved is there once more. A key that is saved after the product
would be the last one, and the last product would be made again for nothing: in checkpoints it is saved before.

What taps hang on the modules of a training, and what becomes of an error there.

A training must not fail because its recorder does. Whatever is raised in a hook, an autograd function or a mode of the
recorder is caught right there and handed to the listener, which stops recording or raises it, as `on_error` says. The
training's own errors pass: its code runs inside the recorder's where autograd packs or unpacks a tensor that a tap
saves, as checkpoints and offloading do.
"""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.library import custom_op
from torch.utils._python_dispatch import _disable_current_modes

from dualform.record.torch_internals import packing_hooks

_OF_TRAINING = "_of_the_training"
_Found = TypeVar("_Found")


class FailureListener(Protocol):
    def failed(self, error: Exception, layer: str = "") -> None:
        """The recorder itself failed, in a hook of that layer where the name is known. Raises the error, or returns and
        is told of nothing any more.
        """


def hand_over(listener: FailureListener, error: Exception, layer: str = "") -> None:
    """Called where an error of the recorder was caught. Raises it if it is the training's own, or a warning that Python
    was told to raise, or if the listener does.
    """
    if isinstance(error, Warning) or getattr(error, _OF_TRAINING, False):
        raise error
    listener.failed(error, layer)


def saving(apply: Callable[..., _Found], *args: Any) -> _Found:
    """Call what saves tensors for the backward pass. What packing them raises is the training's own."""
    try:
        return apply(*args)
    except Exception as error:
        setattr(error, _OF_TRAINING, True)
        raise


class ModelHook(ABC):
    """A hook of a module. A copy of it, in a model that is copied or saved, does nothing."""

    listener: FailureListener
    layer: str = ""

    def __call__(self, module: Any, *given: Any) -> Any:
        try:
            return self.run(module, *given)
        except Exception as error:
            hand_over(self.listener, error, self.layer)
            return None

    @abstractmethod
    def run(self, module: Any, *given: Any) -> Any:
        """What the hook does. If it raises, the module goes on as without the hook."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A function of the standard library that takes any arguments and returns None, so that a saved model loads
        # where dualform is not installed.
        return getattr, (nullcontext(), "__exit__")


_ASKS = torch.zeros((), requires_grad=True)
"""Makes a node of the graph of what saves a key."""
_SAVED: WeakKeyDictionary[Any, dict[tuple[int, object], Sequence[tuple[Any, ...]]]] = WeakKeyDictionary()
"""By part: what taps saved in its first run, by the number of its first tensor and who saved it; of each tensor shape,
type and device.
"""


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the forward pass that a checkpoint runs, at one moment of it."""

    frame: Any
    """Torch's own object of it."""
    again: bool
    """Whether this is its second run."""
    number: int
    """Of the next tensor that is saved in it."""

    def allows(self, who: object) -> bool:
        """Whether tensors may be saved now: in a second run, if they were in the first."""
        return not self.again or (self.number, who) in _SAVED.get(self.frame, {})

    def note(self, who: object, kept: Sequence[Tensor]) -> None:
        """These tensors are saved now."""
        if not self.again:
            like = [(own.shape, own.dtype, own.device) for own in kept]
            _SAVED.setdefault(self.frame, {})[self.number, who] = like

    def fill(self, who: object) -> None:
        """Nothing is recorded here; but if the first run saved tensors here, this one does."""
        like = _SAVED.get(self.frame, {}).get((self.number, who), ()) if self.again else ()
        if like:
            with own_operators(self):
                own = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in like]
            saving(_Saved.apply, _ASKS, *own)


def part_that_runs() -> Part | None:
    """The innermost one; None outside of checkpoints, in compiled code, and if this torch does not tell."""
    hooks = packing_hooks()
    if hooks is None or getattr(hooks[0], "__module__", "") != "torch.utils.checkpoint":
        return None
    try:
        pack: Any = inspect.unwrap(hooks[0])
        cells = zip(pack.__code__.co_freevars, pack.__closure__, strict=True)
        found = {name: cell.cell_contents for name, cell in cells}
        if "frame" in found:
            return Part(found["frame"], False, len(found["frame"].weak_holders))
        frame = found["target_frame_ref"]()
        return Part(frame, True, frame.recomp_counter[found["gid"]])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        warnings.warn(
            f"dualform does not know torch.utils.checkpoint of this torch ({error!r}), so layers in a "
            "checkpointed part may break its backward pass. Leave them out with layers=.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


_NOTHING = nullcontext()


def own_operators(part: Part | None) -> AbstractContextManager[None]:
    """Around operators of a tap's own in a part. A selective checkpoint counts those of both runs, by a mode that sees
    them all, and keeps what they return: it must see none of these.
    """
    if part is None or not torch._C._len_torch_dispatch_stack():
        return _NOTHING
    return _disable_current_modes()


def runs_again() -> bool:
    """Whether what runs now is the second run of a part."""
    part = part_that_runs()
    return part is not None and part.again


@dataclass(frozen=True, eq=False)
class EarlyKey:
    """The argument of a call that is under way, saved as the key that it will be."""

    argument: Tensor
    version: int
    """Of the argument then: a hook that runs later may write to it, and the product uses what that leaves."""
    node: Any
    """Of the graph; its saved tensors may be read once in a backward pass."""

    def is_of(self, argument: Any) -> bool:
        """Whether a product that took this argument used the key that was saved."""
        return argument is self.argument and self.argument._version == self.version


class EarlyTap(Protocol):
    """A tap whose keys are saved so."""

    @property
    def may_be_written(self) -> bool: ...

    def mode(self, listener: Any) -> str | None: ...


def early_key(
    tap: EarlyTap, listener: Any, part: Part, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor] | None:
    """Before a call, in a part, of a tap whose key is the first argument as it is: the argument, and what to save. None
    if it is saved later.
    """
    argument = args[0] if args else next(iter(kwargs.values()), None)
    if not isinstance(argument, Tensor) or argument.layout != torch.strided or tap.mode(listener) != "step":
        return None
    # Under autocast the product saves a copy of half the size, and this would hold on to the whole beside it.
    if argument.is_inference() or torch.is_autocast_enabled(argument.device.type):
        return None
    key = argument.detach()
    with own_operators(part):
        return argument, key.clone() if tap.may_be_written else key


class _Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, asks: Tensor, *kept: Tensor) -> Tensor:
        ctx.save_for_backward(*kept)
        return asks.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        return (None,) * len(ctx.needs_input_grad)


def save(key: Tensor) -> Any:
    """A node of the graph that has saved a key."""
    return saving(_Saved.apply, _ASKS, key).grad_fn


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


@dataclass(slots=True)
class Report:
    """Of one call, to a tap's listener."""

    tap: Reporter
    listener: Receiver
    call: int = -1
    """Its number; -1 for one that is not recorded."""
    cast: int | None = None
    """The copy of the weights that it used; None where nobody knows."""
    early: Any = None
    """The node of the graph that saved the key before the product; None if it was saved after."""

    def saved(self, ctx: Any) -> list[Tensor]:
        """What was saved in the forward pass; nothing if the training has written to it since. Whatever else reading it
        raises comes of the training's own code, which checkpoints run again.
        """
        try:
            before = () if self.early is None else self.early.saved_tensors
            return [*before, *ctx.saved_tensors]
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
        there = [gradient for gradient in gradients if gradient is not None]
        # Gradients of several directions at once (is_grads_batched, vectorize) are returned: no weight gets them.
        if not there or any(map(torch._C._functorch.is_legacy_batchedtensor, there)):
            return
        there = [gradient.detach() for gradient in there]
        if self.tap.values:
            own = there if len(there) == len(gradients) else [None if g is None else g.detach() for g in gradients]
            error = self.tap.error_of(key, kept, own)
        else:  # NaN or infinity in any of several is to be noticed; whoever is told looks at the one
            error = next((gradient for gradient in there[1:] if not gradient.isfinite().all()), there[0])
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
