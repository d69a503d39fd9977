"""Products with a matrix that a module computes by itself, and how they are intercepted.

Watchers of modules that multiply by their parameters themselves, without calling a module of torch for it.

A hook before a module's forward enters a mode in which torch hands over every function that is called, and a hook that
always runs leaves it. A product counts once for each recorder: it belongs to the innermost module around it that the
recorder watches and that holds its matrix, and a layer that has a tap of its own hides its products from the recorder's
watchers around it.

Which block of a parameter a matrix is, that a product was computed with: the parameter itself, or a view of it.

A parameter [..., R, C] is seen as a matrix whose trailing axes are flattened, and of three or more axes some of the
first ones too, as an expert's matrix in a stack of them is a range of rows of [E R, C].

Products with a matrix, as torch is called for them.

Shapes: d_in and d_out of the matrix; `...` the dimensions of a batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from dualform.record.taps.autograd import ModelHook, hand_over, own_operators, part_that_runs, runs_again
from dualform.record.taps.tap import Listener, is_transformed
from dualform.record.torch_internals import packing_hooks
from dualform.store.layer import Range


@dataclass(frozen=True, eq=False)
class MatrixProduct:
    """x W^T + b, or rows of W^T that are looked up; any of the tensors may be a parameter, or a view of one."""

    key: Tensor
    """x [..., d_in]; row numbers, int64[...], where `looks_up`."""
    weight: Tensor
    """W [d_out, d_in], the way round that the product uses it."""
    bias: Tensor | None = None
    looks_up: bool = False
    turned: bool = False
    """Whether torch was asked for W x^T, so that its answer is [..., d_out, n] where keys are [..., n, d_in]."""
    padding: int | None = None
    """A row number that is looked up without a gradient."""

    def laid(self, output: Tensor) -> Tensor:
        """What torch answered, as [..., d_out], or such an answer as torch gives it."""
        return output.mT if self.turned else output


def saved_key(argument: Tensor) -> Tensor:
    """The argument of a product, detached, to be saved for the backward pass. An argument of several batch axes that is
    not contiguous is copied: torch multiplies with a copy of it, and the network may write to the argument.
    """
    key = argument.detach()
    if key.dim() < 3 or key.layout != torch.strided or key.is_contiguous():
        return key
    with own_operators(part_that_runs()):
        return key.clone()


def products_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[MatrixProduct]:
    """What a call of a torch function of that name may be: of `x @ W`, either tensor may be the matrix.

    Empty for all but products of a matrix, and for those that scale what they are given.
    """
    read = _READERS.get(name)
    if read is None:
        return []
    try:
        return [found for found in read(*args, **kwargs) if _fits(found)]
    except (TypeError, AttributeError):  # arguments of another form of the function, or that are no tensors
        return []


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> list[MatrixProduct]:
    return [MatrixProduct(input, weight, bias)]


def _matmul(input: Tensor, other: Tensor, **_: Any) -> list[MatrixProduct]:
    found = []
    if other.dim() == 2:
        found.append(MatrixProduct(input, other.T))
    if input.dim() == 2 and other.dim() == 1:
        found.append(MatrixProduct(other, input))
    elif input.dim() == 2 and other.dim() > 1:
        found.append(MatrixProduct(other.mT, input, turned=True))
    return found


def _addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1, **_: Any
) -> list[MatrixProduct]:
    return [MatrixProduct(mat1, mat2.T, input)] if beta == alpha == 1 else []


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> list[MatrixProduct]:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return []
    rows = None if padding_idx is None else padding_idx % len(weight)
    return [MatrixProduct(input, weight.T, looks_up=True, padding=rows)] if weight.dim() == 2 else []


_READERS: dict[str, Callable[..., list[MatrixProduct]]] = {
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "mv": _matmul,
    "addmm": _addmm,
    "embedding": _embedding,
}
"""By the name of the function; `x @ w` is `matmul`."""


def _fits(found: MatrixProduct) -> bool:
    return found.weight.dim() == 2 and (found.looks_up or found.key.is_floating_point())


@dataclass(frozen=True)
class MatrixBlock:
    """A range of rows and of columns of a parameter."""

    rows: Range
    columns: Range
    transposed: bool
    """Whether the matrix is the block the other way round."""
    leading: int = 1
    """How many of the parameter's axes are flattened into rows."""


def is_of(matrix: Tensor, parameter: Tensor) -> bool:
    """Whether a matrix is a parameter or a view of it, so that its gradient is a part of the parameter's."""
    return matrix is parameter or matrix._base is parameter


def block_of(matrix: Tensor, parameter: Tensor) -> MatrixBlock | None:
    """The block that a matrix [d_out, d_in] is; None where it is none, as steps and copies are none."""
    if not is_of(matrix, parameter) or not parameter.is_contiguous() or not matrix.numel():
        return None
    first = int(matrix.storage_offset() - parameter.storage_offset())
    for transposed, view in ((False, matrix), (True, matrix.mT)):
        for leading in range(parameter.dim() - 1, 0, -1):
            height, width = prod(parameter.shape[:leading]), prod(parameter.shape[leading:])
            row, column = divmod(first, width)
            rows, columns = (row, row + view.shape[0]), (column, column + view.shape[1])
            if _steps(view, width) and rows[1] <= height and columns[1] <= width:
                return MatrixBlock(rows, columns, transposed, leading)
    return None


def _steps(view: Tensor, width: int) -> bool:
    """Whether rows and columns follow one another as those of a matrix of that width do."""
    own = zip(view.shape, view.stride(), (width, 1), strict=True)
    return all(size == 1 or stride == step for size, stride, step in own)


class Watcher:
    """One module under watch."""

    hides: ClassVar[bool] = False
    """Whether none of its products are seen."""
    compiles: ClassVar[bool] = False
    """Whether it can be traced by torch.compile; where not, compiled calls of the module are let pass."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.listener: Listener | None = None
        self.saving: Any = None
        """What packed the tensors that autograd saves, as the module was called last."""
        self._handles: list[RemovableHandle] = []

    def multiplied(self, listener: Listener, product: MatrixProduct, output: Tensor) -> Tensor | None:
        """What the network goes on with in place of a product's `output`; None for one that is not this module's.

        `output` [..., d_out] belongs to the product's keys.
        """
        return None

    def used(self, name: str, args: tuple[Any, ...], output: Any) -> None:
        """Another function of torch was called with these arguments, and answered `output`."""
        return

    def begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The module is called with these arguments."""
        return

    def unseen(self, listener: Listener) -> None:
        """The module is called in a training step in a way that cannot be recorded."""
        return

    def attach(self, listener: Listener) -> None:
        """Watch the module from now on; it may be said again."""
        self.listener = listener
        if not self._handles:
            after = self.module.register_forward_hook(_Leave(self), always_call=True)
            self._handles = [after]
            self._handles.append(self.module.register_forward_pre_hook(_Enter(self), prepend=True, with_kwargs=True))

    def detach(self) -> None:
        """Nothing remains of the watcher."""
        self.listener = None
        for handle in self._handles:
            handle.remove()
        self._handles = []
        # An interrupt from the keyboard passes even the hook that always runs.
        while _AROUND.leave(self):
            pass


class ProductHider(Watcher):
    """Hides the products of a layer that has a tap of its own from a recorder's watchers around it."""

    hides = True


@contextmanager
def hidden() -> Iterator[None]:
    """While it lasts, no watcher sees a product."""
    _AROUND.enter(_EVERYONE, _EVERYONE, None)
    try:
        yield
    finally:
        _AROUND.leave(_EVERYONE)


_EVERYONE = object()


class _Around(threading.local):
    """The modules that run, of those that are watched or hidden, the innermost last. A mode lies around each."""

    def __init__(self) -> None:
        self.entered: list[tuple[object, Watcher | None]] = []
        """Whose watcher it is, and the watcher; None where products are hidden from his watchers around it."""
        self._modes: list[tuple[object, _Mode | None]] = []
        """Of each, who entered, and the mode that it brought."""

    def enter(self, who: object, whose: object, watcher: Watcher | None) -> None:
        """`who` will leave."""
        mode = None if watcher is None or any(own for _, own in self._modes) else _Mode()
        if mode is not None:
            mode.__enter__()  # type: ignore[no-untyped-call]
        self._modes.append((who, mode))
        self.entered.append((whose, watcher))

    def leave(self, who: object) -> bool:
        """Leave what was entered last by `who`, and all in it; False if there is nothing, as where a hook that torch
        called before had raised.
        """
        there = any(own is who for own, _ in self._modes)
        while there:
            self.entered.pop()
            left, mode = self._modes.pop()
            if mode is not None:
                mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            if left is who:
                break
        return there

    def leave_stale(self, whose: object) -> None:
        """No module of this recorder runs: leave what is still entered. An interrupt from the keyboard passes even
        hooks that always run.
        """
        while any(own is whose for own, _ in self.entered):
            self.leave(self._modes[-1][0])


_AROUND = _Around()


def step_begins(listener: Listener) -> None:
    """No module that is watched for this listener runs now."""
    _AROUND.leave_stale(listener)


class _Enter(ModelHook):
    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    @property
    def listener(self) -> Any:  # type: ignore[override]
        return self._watcher.listener

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        watches = bool(super().__call__(module, args, kwargs))
        # What is let pass enters as well: each call is left once.
        _AROUND.enter(self._watcher, self.listener or self._watcher, self._watcher if watches else None)

    def run(self, module: Any, *given: Any) -> bool:
        """Whether products are to be seen in this call."""
        watcher, listener = self._watcher, self._watcher.listener
        if watcher.hides:
            return False
        mode = None if listener is None else listener.forward_mode()
        if listener is not None and mode == "step" and (is_transformed() or not torch.is_grad_enabled()):
            watcher.unseen(listener)
            return False
        if is_compiling() and not watcher.compiles:
            return False
        if mode is None and (listener is None or not runs_again()):
            return False
        watcher.saving = packing_hooks()
        watcher.begins(*given)
        return True


class _Leave(ModelHook):
    def __init__(self, who: object) -> None:
        self._who = who

    def __call__(self, *_: object) -> None:
        _AROUND.leave(self._who)

    def run(self, module: Any, *given: Any) -> None:
        """Nothing of it can fail."""


class _Mode(TorchFunctionMode):
    """Sees every function of torch that is called from Python, and is left while it looks at one."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            return _ATTENTION(*args, **kwargs)
        return _seen(getattr(func, "__name__", ""), args, kwargs, func(*args, **kwargs))


def _seen(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """What the network goes on with, of a function of torch that answered `output`."""
    done: list[object] = []
    for whose, watcher in reversed(_AROUND.entered):
        if whose is _EVERYONE:
            break
        if any(whose is other for other in done):
            continue
        if watcher is None or watcher.listener is None:
            done.append(whose)
            continue
        try:
            own = _told(watcher, watcher.listener, name, args, kwargs, output)
        except Exception as error:
            hand_over(watcher.listener, error)
            continue
        if own is not None:
            output = own
            done.append(whose)
    return output


def _told(
    watcher: Watcher, listener: Listener, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> Any:
    """What the network goes on with where it is a product of the watcher's; else None."""
    found = products_of(name, args, kwargs) if isinstance(output, Tensor) else []
    if found and watcher.saving != packing_hooks():
        # Inside the module's forward a checkpoint began. It runs that part again without its hooks.
        watcher.used("a checkpoint inside its module's forward", args, output)
        return None
    for product in found:
        own = watcher.multiplied(listener, product, product.laid(output))
        if own is not None:
            return product.laid(own)
    if not found:
        watcher.used(name, args, output)
    return None


def _watched_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    return _seen("linear", (input, weight, bias), {}, functional.linear(input, weight, bias))


def _with(func: FunctionType, own: dict[str, Any]) -> FunctionType:
    """A function that finds some names of its module to be others."""
    made = FunctionType(func.__code__, {**func.__globals__, **own}, func.__name__, func.__defaults__, func.__closure__)
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def _overridden(tensors: Sequence[Any]) -> bool:
    """Whether one is of a type that may bring functions of its own. A mode around the training, such as that of
    `torch.set_default_device`, is none: it sees the products one by one, as this one does.
    """
    return any(tensor is not None and type(tensor) not in (Tensor, nn.Parameter) for tensor in tensors)


_PACKED, _APART = "_in_projection_packed", "_in_projection"
SEES_ATTENTION = {"linear", _PACKED, _APART} <= {*functional.multi_head_attention_forward.__code__.co_names} and all(
    "linear" in getattr(functional, name).__code__.co_names for name in (_PACKED, _APART)
)
"""Whether this torch computes attention by functions whose products can be seen one by one."""
_ATTENTION: Any = functional.multi_head_attention_forward
"""That function of torch, written in Python and made of products, with each of them seen. The mode is left within."""
if SEES_ATTENTION:
    _ATTENTION = _with(
        _ATTENTION,
        {"linear": _watched_linear, "has_torch_function": _overridden}
        | {name: _with(getattr(functional, name), {"linear": _watched_linear}) for name in (_PACKED, _APART)},
    )
