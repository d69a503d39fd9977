"""What functions of torch make of the rows of the tensors that they are given (followed_rows.py).

A function of KEPT leaves the first axis as it is. One that moves entries moves their coordinates alike, so that its
rule calls it with those. A rule puts what it knows of the output. The rows of what any other function returns are not
known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dualform.record import lineage as after
from dualform.record.lineage import Known, KnownRows, Lineage, Mark, NumbersOf, Sizes


@dataclass(frozen=True, eq=False)
class Call:
    """Of a function of torch, which answered `output`."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    @property
    def tensor(self) -> Any:
        """The first argument."""
        return self.args[0]

    @property
    def given(self) -> tuple[Any, ...]:
        return (*self.args, *self.kwargs.values())

    def named(self, *names: str) -> dict[str, Any]:
        """Arguments after the first, by name, of which `names` are those by place."""
        return dict(zip(names, self.args[1:], strict=False)) | self.kwargs


Rule: TypeAlias = Callable[[KnownRows, Call], None]
RULES: dict[str, Rule] = {}
"""By the name of the function."""

_KEPT = " ".join(
    (
        "add sub mul div true_divide divide multiply subtract floor_divide remainder fmod pow float_power rsub",
        "addcmul addcdiv lerp maximum minimum fmax fmin atan2 arctan2 hypot copysign nextafter ldexp logaddexp",
        "logaddexp2 heaviside gcd lcm xlogy xlog1py zeta igamma igammac polar complex bitwise_and bitwise_or",
        "bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift logical_and logical_or logical_xor",
        "logical_not eq ne lt le gt ge less less_equal greater greater_equal not_equal isclose isin abs absolute acos",
        "acosh angle arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh ceil conj conj_physical cos",
        "cosh deg2rad digamma entr erf erfc erfcx erfinv exp exp2 expit expm1 fix floor frac frexp gammaln i0 i0e i1",
        "i1e isfinite isinf isnan isneginf isposinf isreal lgamma log log10 log1p log2 log_ndtr logit mvlgamma",
        "nan_to_num ndtr ndtri neg negative polygamma positive psi rad2deg real imag reciprocal round rsqrt sgn sign",
        "signbit sin sinc sinh sqrt square tan tanh trunc celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh",
        "leaky_relu log_sigmoid logsigmoid mish prelu relu relu6 rrelu selu sigmoid silu softplus softshrink softsign",
        "tanhshrink threshold _threshold clamp clamp_max clamp_min clip softmax softmin log_softmax gumbel_softmax",
        "normalize renorm layer_norm group_norm instance_norm batch_norm rms_norm local_response_norm",
        "native_layer_norm native_group_norm native_batch_norm _fused_rms_norm dropout dropout1d dropout2d dropout3d",
        "alpha_dropout feature_dropout feature_alpha_dropout native_dropout linear bilinear addmv mv conv1d",
        "conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d embedding_bag avg_pool1d",
        "avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices",
        "max_pool3d_with_indices adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d",
        "adaptive_max_pool2d adaptive_max_pool3d adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices",
        "adaptive_max_pool3d_with_indices fractional_max_pool2d fractional_max_pool3d",
        "fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices lp_pool1d lp_pool2d lp_pool3d",
        "max_unpool1d max_unpool2d max_unpool3d interpolate grid_sample grid_sampler grid_sampler_2d grid_sampler_3d",
        "affine_grid affine_grid_generator pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle",
        "scaled_dot_product_attention multi_head_attention_forward lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
        "cosine_similarity pairwise_distance cdist cross binary_cross_entropy binary_cross_entropy_with_logits",
        "cross_entropy huber_loss kl_div l1_loss mse_loss nll_loss smooth_l1_loss soft_margin_loss gaussian_nll_loss",
        "poisson_nll_loss hinge_embedding_loss margin_ranking_loss multi_margin_loss multilabel_margin_loss",
        "multilabel_soft_margin_loss triplet_margin_loss triplet_margin_with_distance_loss cosine_embedding_loss",
        "bfloat16 bool byte cdouble cfloat chalf char clone contiguous cpu cuda data dequantize detach double float",
        "half int long mtia pin_memory requires_grad resolve_conj resolve_neg short to type type_as xpu view_as_real",
        "view_as_complex fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn stft istft",
        "flex_attention _grouped_mm _scaled_mm _embedding_bag _convolution cummax cummin cumprod cumsum logcumsumexp",
        "searchsorted bucketize multinomial masked_fill index_fill tril triu fliplr fill zero normal uniform",
        "exponential log_normal cauchy geometric random fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft",
        "fake_quantize_per_channel_affine fake_quantize_per_tensor_affine fused_moving_avg_obs_fake_quant",
        "quantize_per_tensor quantize_per_channel",
    )
).split()
_SIGNS = ("add", "sub", "mul", "truediv", "div", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_DUNDERS = ("neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge", "rmatmul")
KEPT = frozenset(
    [name + end for name in _KEPT for end in ("", "_")]
    + [f"special_{name}" for name in _KEPT]
    + [f"__{start}{name}__" for name in _SIGNS for start in ("", "r", "i")]
    + [f"__{name}__" for name in _DUNDERS]
)
"""Functions that leave the first axis as it is, and their forms in place."""


def _for(names: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), rule))
        return rule

    return add


def tensors_in(parts: Iterable[Any]) -> Iterator[Tensor]:
    for part in parts:
        if isinstance(part, Tensor):
            yield part
        elif isinstance(part, list | tuple):
            yield from tensors_in(part)
        elif isinstance(part, dict):
            yield from tensors_in(part.values())


def keep(followed: KnownRows, given: Iterable[Any], output: Any) -> None:
    """The axes of what comes out are those of what goes in."""
    tensors = list(tensors_in(given))
    for own in tensors_in((output,)):
        if own.dim():
            _keep_in(followed, tensors, own)


def _keep_in(followed: KnownRows, given: list[Tensor], output: Tensor) -> None:
    shape, marks, spread = tuple(output.shape), set[Mark](), list[Tensor]()
    own: Lineage | None = None
    for tensor in given:
        known = followed.of(tensor)
        if tensor is output and known is None:  # it was written to in place
            return
        if known is None:
            # A batch of as many rows in their order goes before one that was moved; what is smaller is spread over it.
            if (tensor.dim() and tuple(tensor.shape[:-1]) == shape[:-1]) or not followed.live:
                followed.put(output, None)
                return
            spread.append(tensor)
        elif isinstance(known, Mark):
            marks.add(known)
        elif len(known.shape) == len(shape):
            own = known if own is None or own is known else own.beside(known)
        else:
            marks.add(Mark.MIXED)
    put = followed.write if any(tensor is output for tensor in given) else followed.put
    if isinstance(own, Lineage):
        put(output, own if own.shape == shape else own.then(shape, after.sized(shape), "sized"))
    elif Mark.MIXED in marks:
        put(output, Mark.MIXED)
    elif any(tensor.dim() == len(shape) and tensor.shape[0] == shape[0] for tensor in spread):
        followed.put(output, None)  # the batch's rows, over axes of what was made
    elif any(tensor.dim() > 1 for tensor in spread):
        put(output, Mark.MIXED)  # rows of a batch may lie along another axis now
    elif marks or spread:
        followed.put(output, Mark.MADE if spread or Mark.MADE in marks else Mark.MODEL)


def mix(followed: KnownRows, given: Sequence[Any], output: Any) -> None:
    """Of what comes out nothing is known, if rows of a batch go in."""
    if all(followed.of(own) in (Mark.MODEL, Mark.MADE) for own in tensors_in(given) if own.dim()):
        keep(followed, given, output)
        return
    for own in tensors_in((output,)):
        if own.dim():
            (followed.write if any(own is other for other in given) else followed.put)(own, Mark.MIXED)


_MOVED = "the tensor"
"""Stands for the tensor whose entries a function moves, among its arguments."""


def _each(part: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(part, list | tuple):
        return tuple([_each(own, change) for own in part])
    return {name: _each(own, change) for name, own in part.items()} if isinstance(part, dict) else change(part)


def _read(part: Any) -> Any:
    return part.read() if isinstance(part, NumbersOf) else part


def _move(
    followed: KnownRows,
    tensor: Tensor,
    output: Any,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    steady: bool = True,
) -> None:
    """`output` holds entries of a tensor in other places, as the function moves them."""
    numbers = list[NumbersOf]()

    def held(part: Any) -> Any:
        if part is not tensor and isinstance(part, Tensor | np.ndarray):
            numbers.append(NumbersOf(part))
            return numbers[-1]
        return _MOVED if part is tensor else part

    given = _each((tuple(args), kwargs or {}), held)

    def call(own: Tensor) -> Any:
        places, named = _each(given, lambda part: own if part is _MOVED else _read(part))
        return function(*places, **named)

    if isinstance(output, Tensor):
        what = (function, repr(given)) if steady and not numbers else None
        followed.moved(tensor, output, after.same_moves(call, tuple(output.shape)), what)


@_for(
    "zeros ones full empty rand randn randint randperm arange linspace eye normal zeros_like ones_like full_like "
    "empty_like rand_like randn_like randint_like bernoulli new_zeros new_ones new_full new_empty"
)
def _fresh(followed: KnownRows, call: Call) -> None:
    if all(call.output is not own for own in call.args):
        followed.put(call.output, Mark.MADE)


@_for("tensor as_tensor new_tensor")
def _from_outside(followed: KnownRows, call: Call) -> None:
    """Of Python, which may have moved rows."""
    if isinstance(call.tensor, Tensor) and call.name != "new_tensor":
        keep(followed, call.args[:1], call.output)
    elif call.output.dim():
        followed.put(call.output, Mark.MIXED)


@_for("transpose swapaxes swapdims permute movedim moveaxis t adjoint T H mT mH flip roll")
def _permuted(followed: KnownRows, call: Call) -> None:
    tensor, steady = call.tensor, True
    if not isinstance(tensor, Tensor):
        return
    if call.name in ("flip", "roll"):
        dims = call.kwargs.get("dims", call.args[1 if call.name == "flip" else 2 :])
        steady = not any(_moves_tokens(tensor, call.output, axis % tensor.dim()) for axis in _integers(dims))
    _move(followed, tensor, call.output, call.function, call.args, call.kwargs, steady)


def _integers(part: Any) -> Iterator[int]:
    if isinstance(part, int):
        yield part
    for own in part if isinstance(part, list | tuple) else ():
        yield from _integers(own)


def _moves_tokens(tensor: Tensor, output: Any, axis: int) -> bool:
    """Whether what is done along an axis may give the tokens of a row another order."""
    return axis == 1 and tensor.dim() > 2 and isinstance(output, Tensor) and output.shape == tensor.shape


@_for("reshape view flatten unflatten squeeze unsqueeze view_as reshape_as ravel atleast_2d")
def _reshaped(followed: KnownRows, call: Call) -> None:
    tensor, output = call.tensor, call.output
    if not isinstance(tensor, Tensor) or not isinstance(output, Tensor) or tensor.numel() != output.numel():
        return
    shape = tuple(output.shape)
    kept = tensor.dim() and shape[:1] == tuple(tensor.shape[:1])
    if tensor.numel() and not (kept and followed.plainly(tensor)):
        followed.moved(tensor, output, after.reshaped(shape), "reshape")


@_for("expand expand_as broadcast_to broadcast_tensors")
def _expanded(followed: KnownRows, call: Call) -> None:
    several = call.name == "broadcast_tensors"
    pairs = zip(tensors_in(call.args), call.output, strict=True) if several else [(call.tensor, call.output)]
    for tensor, output in pairs:
        new, known = output.dim() - tensor.dim(), followed.of(tensor)
        if known is Mark.MODEL and (new or output.shape[0] != tensor.shape[0]):
            followed.put(output, Mark.MADE)
        elif known is not None or new:
            followed.moved(tensor, output, _with_axes(new), "expand")


def _with_axes(before: int, behind: int = 0) -> after.Change:
    return lambda own, _: own.reshape((1,) * before + own.shape + (1,) * behind)


@_for("repeat tile repeat_interleave")
def _repeated(followed: KnownRows, call: Call) -> None:
    tensor, known, given = call.tensor, followed.of(call.tensor), call.named("repeats", "dim")
    each = call.name == "repeat_interleave"
    if each and (given.get("repeats") is None or (given.get("dim") is None and tensor.dim() != 1)):
        followed.put(call.output, Mark.MIXED)
    elif known is Mark.MODEL:
        followed.put(call.output, Mark.MADE)
    elif not each or (given.get("dim") or 0) % tensor.dim() == 0 or not followed.plainly(tensor):
        _move(followed, tensor, call.output, call.function, call.args, call.kwargs)


@_for("__getitem__")
def _item(followed: KnownRows, call: Call) -> None:
    tensor, index = call.args
    if not isinstance(call.output, Tensor):
        return
    parts = _as_numbers(index if isinstance(index, tuple) else (index,))
    moves = len(parts) > 1 and isinstance(parts[1], Tensor | np.ndarray) and _moves_tokens(tensor, call.output, 1)
    if moves or not followed.plainly(tensor) or not _leaves_first(parts, tensor.dim()):
        _take(followed, tensor, parts, call.output)


def _as_numbers(parts: Iterable[Any]) -> list[Any]:
    return [torch.as_tensor(part, device="cpu") if isinstance(part, list) else part for part in parts]


def _take(followed: KnownRows, tensor: Tensor, parts: list[Any], output: Tensor) -> None:
    """`output` holds what an index takes of a tensor."""
    every = _of_each_axis(parts, tensor.dim())
    whole = all(isinstance(part, slice) for part in every) and all(part == slice(None) for part in every[:-1])
    if followed.of(tensor) is Mark.MODEL:
        _looked_up(followed, parts, output)
    elif whole and len(every) == tensor.dim() > 1:  # other columns of the same rows
        keep(followed, (tensor,), output)
    else:
        _move(followed, tensor, output, getitem, (tensor, parts))


def _leaves_first(parts: list[Any], dims: int) -> bool:
    """Whether an index takes all of the first axis, and leaves it the first."""
    numbers = [part for part in parts if not (part is None or part is Ellipsis or isinstance(part, int | slice))]
    if isinstance(parts[0], slice):
        return parts[0] == slice(None) and len(numbers) < 2
    return parts[0] is Ellipsis and len(numbers) < 2 and _taken_by(parts) < dims


def _taken_by(parts: Sequence[Any]) -> int:
    """How many axes the parts of an index take."""
    return sum(_width(part) for part in parts if part is not None and part is not Ellipsis)


def _width(part: Any) -> int:
    is_mask = isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8)
    return part.dim() if is_mask else 1


def _of_each_axis(parts: list[Any], dims: int) -> list[Any]:
    """With slices for the axes that an index leaves out."""
    at = next((number for number, part in enumerate(parts) if part is Ellipsis), len(parts))
    return [*parts[:at], *[slice(None)] * (dims - _taken_by(parts)), *parts[at + 1 :]]


def _looked_up(followed: KnownRows, parts: list[Any], output: Any) -> None:
    """Rows of a table of the model: they are those of the numbers."""
    index = next((part for part in parts if isinstance(part, Tensor)), None)
    known = Mark.MODEL if index is None else followed.of(index)
    if isinstance(known, Lineage) and isinstance(output, Tensor):
        new = output.dim() - len(known.shape)
        if parts[0] is index and new >= 0 and tuple(output.shape[: len(known.shape)]) == known.shape:
            known = known.then(tuple(output.shape), _with_axes(0, new), "looked up")
        else:
            known = Mark.MIXED
    followed.put(output, known)


@_for("_base grad")
def _other(followed: KnownRows, call: Call) -> None:
    """An attribute that is a tensor of its own."""


@_for("embedding one_hot")
def _embedded(followed: KnownRows, call: Call) -> None:
    tensors = [own for own in (*call.args[:2], call.kwargs.get("weight")) if isinstance(own, Tensor)]
    number = next((own for own in tensors if not own.is_floating_point()), None)
    table = next((own for own in tensors if own.is_floating_point()), None)
    if number is not None and table is not None and followed.of(table) not in (Mark.MODEL, Mark.MADE):
        _take(followed, table, [number], call.output)  # rows of a batch
    elif number is not None and not followed.plainly(number):
        _looked_up(followed, [number], call.output)


@_for("index_select")
def _selected(followed: KnownRows, call: Call) -> None:
    tensor, given = call.tensor, call.named("dim", "index")
    axis, index = given["dim"] % max(tensor.dim(), 1), given["index"]
    if axis == 0 or not followed.plainly(tensor) or _moves_tokens(tensor, call.output, axis):
        _take(followed, tensor, [*[slice(None)] * axis, index], call.output)


@_for("gather take_along_dim sort topk")
def _gathered(followed: KnownRows, call: Call) -> None:
    tensor, output = call.tensor, call.output
    if not isinstance(tensor, Tensor) or not tensor.dim():
        return
    names = {"gather": ("dim", "index"), "take_along_dim": ("index", "dim"), "topk": ("k", "dim"), "sort": ("dim",)}
    given = call.named(*names[call.name])
    dim, index = given.get("dim"), given.get("index", given.get("indices"))
    if call.name in ("sort", "topk"):
        dim, (output, index) = given.get("dim", -1), output
    if not isinstance(dim, int) or not isinstance(index, Tensor):
        followed.put(output, Mark.MIXED)
        return
    axis, numbers = dim % tensor.dim(), NumbersOf(index)
    if axis == 0 or not followed.plainly(tensor):
        followed.moved(tensor, output, after.gathered(axis, numbers))


@_for("masked_select")
def _masked(followed: KnownRows, call: Call) -> None:
    tensor, mask = call.tensor, call.named("mask")["mask"]
    if mask.shape[:-1] != tensor.shape[: mask.dim() - 1] or mask.dim() != tensor.dim():
        followed.put(call.output, Mark.MIXED)
    else:
        _move(followed, tensor, call.output, call.function, call.args, call.kwargs)


@_for("select narrow split chunk unbind tensor_split split_with_sizes __iter__")
def _sliced(followed: KnownRows, call: Call) -> None:
    tensor, name = call.tensor, call.name
    if not isinstance(tensor, Tensor) or not tensor.dim():
        return
    names = {"select": ("dim", "index"), "narrow": ("dim", "start"), "unbind": ("dim",), "__iter__": ()}
    given = call.named(*names.get(name, ("sizes", "dim")))
    dim = given.get("dim", 0)
    if not isinstance(dim, int) or (dim % tensor.dim() != 0 and followed.plainly(tensor)):
        return
    axis, parts = dim % tensor.dim(), [call.output] if isinstance(call.output, Tensor) else list(call.output)
    start = int(given["start"]) % max(tensor.shape[axis], 1) if name == "narrow" else 0
    for number, part in enumerate(parts):
        if name == "select" or part.dim() < tensor.dim():
            own: Any = int(given.get("index", number))
        else:
            start, own = start + part.shape[axis], slice(start, start + part.shape[axis])
        _take(followed, tensor, [*[slice(None)] * axis, own], part)


_BY_AXIS = "index_copy index_add index_reduce scatter scatter_add scatter_reduce"
_BY_INDEX = "index_put masked_scatter"


@_for(" ".join(["__setitem__", *(f"{name} {name}_" for name in f"{_BY_AXIS} {_BY_INDEX}".split())]))
def _written(followed: KnownRows, call: Call) -> None:
    """Rows of one tensor go to places of another."""
    name, to = call.name, call.tensor
    by_axis = name.startswith(("index_copy", "index_add", "index_reduce", "scatter"))
    given = call.named(*(("dim", "index", "value") if by_axis else ("index", "value", "accumulate")))
    index = given.get("index", given.get("mask", given.get("indices")))
    value: Any = next((given[key] for key in ("value", "values", "src", "source") if key in given), None)
    made = to if name == "__setitem__" or name.endswith("_") else call.output
    own, known = followed.of(to), followed.of(value) if isinstance(value, Tensor) else Mark.MADE
    if isinstance(known, Mark) or not value.dim() or not value.numel():
        followed.write(made, known if known is Mark.MIXED else own)
        return
    adds = "add" in name or "reduce" in name or bool(given.get("accumulate"))
    if adds and own is None:  # rows in their order go before those that were moved
        followed.write(made, own)
        return
    several = isinstance(index, tuple) or (isinstance(index, list) and name != "__setitem__")
    axis = given["dim"] % to.dim() if by_axis else 0
    if by_axis and axis and name.startswith("scatter"):
        keep(followed, (value,) if isinstance(own, Mark) else (to, value), made)
        return
    parts = [slice(None)] * axis + (list(index or ()) if several else [index])
    if known is None and own in (None, Mark.MADE) and _leaves_first(parts, to.dim()):
        followed.write(made, None)
        return
    if name.startswith(("scatter", "masked_scatter")):
        parts = _whole_rows(index, value, to, mask=name.startswith("masked"))
    followed.write(made, _overwritten(followed, to, value, parts, adds))


def _whole_rows(index: Any, value: Tensor, to: Tensor, mask: bool) -> list[Any]:
    """As an index of rows what torch takes as one of entries; nothing where it names no whole rows."""
    rows = index.shape[:1] if not mask else index.shape[:-1]
    wide = index.expand(to.shape) if mask else index
    ends = range(len(rows), wide.dim())
    if (not mask and value.shape != index.shape) or any(wide.stride(n) and wide.shape[n] > 1 for n in ends):
        return []
    if value.shape[-1:] != to.shape[-1:] or (mask and value.dim() != 2):
        return []
    for _ in ends:
        wide = wide[..., 0]
    return [wide]


def _overwritten(followed: KnownRows, to: Tensor, value: Tensor, parts: list[Any], adds: bool) -> Known:
    """What is known of a tensor once `value` stands at an index of it."""
    own, new, shape = followed.lineage(to), followed.lineage(value), tuple(to.shape)
    index = _of_each_axis(_as_numbers(parts), to.dim())
    if not isinstance(new, Lineage) or not parts or None in index:
        return Mark.MIXED
    none = Lineage(new.source, shape, False, lambda: [after.nowhere(shape, after.EMPTY)] * len(new.source))
    base = own if isinstance(own, Lineage) else none
    held = [NumbersOf(part) if isinstance(part, Tensor | np.ndarray) else part for part in index]

    def make() -> after.Coordinates:
        read = [*map(_read, held)]
        if base.source == new.source:
            both = zip(base.coordinates, new.coordinates, strict=True)
            return [after.put_into(old, shape, read, its, adds) for old, its in both]
        # Of another source: rows that stand where they did.
        rows = after.put_into(base.coordinates[0], shape, read, new.coordinates[0], adds)
        same = base.source[:1] == new.source[:1] and rows.equal(base.coordinates[0])
        return base.coordinates if same else [after.nowhere(shape)] * len(base.source)

    return base.together(shape, make)


@_for("copy_ __set__")
def _copied(followed: KnownRows, call: Call) -> None:
    to, value = call.args[:2]
    if isinstance(value, Tensor) and value.dim():
        known = followed.of(value)
        followed.write(to, known if value.shape == to.shape or not isinstance(known, Lineage) else Mark.MIXED)


@_for("__deepcopy__")
def _again(followed: KnownRows, call: Call) -> None:
    keep(followed, call.args[:1], call.output)


_ALONG_ONE = {"diff": 2, "unfold": 1, "kthvalue": 2, "quantile": 2, "nanquantile": 2}
"""Functions that change one axis, and where in their arguments it stands."""


@_for(" ".join(_ALONG_ONE))
def _along(followed: KnownRows, call: Call) -> None:
    place, tensor, given = _ALONG_ONE[call.name], call.tensor, call.kwargs
    dim = given.get("dim", given.get("dimension", call.args[place] if len(call.args) > place else -1))
    images = call.name == "unfold" and call.output.dim() < tensor.dim()  # torch.nn.functional.unfold
    first = not images and (not isinstance(dim, int) or dim % max(tensor.dim(), 1) == 0)
    (mix if first else keep)(followed, (tensor,), call.output)


@_for("pad constant_pad_nd")
def _widened(followed: KnownRows, call: Call) -> None:
    tensor, sizes = call.tensor, call.named("pad")["pad"]
    first = sizes[2 * tensor.dim() - 2 :] if len(sizes) == 2 * tensor.dim() else ()
    (mix if any(first) else keep)(followed, (tensor,), call.output)


@_for("where")
def _chosen(followed: KnownRows, call: Call) -> None:
    """Entries of two tensors: if only one of them was moved, a row may be of either."""
    output = call.output
    if not isinstance(output, Tensor):  # the numbers of what holds
        mix(followed, call.given, output)
        return
    given = list(tensors_in(call.given))
    conditions = [own for own in given if own.dtype == torch.bool]
    given = given if len(conditions) != 1 else [own for own in given if own is not conditions[0]]
    found = [followed.of(own) for own in given if output.dim() and own.shape[:1] == output.shape[:1]]
    if None in found and any(isinstance(own, Lineage) for own in found):
        followed.put(output, Mark.MIXED)
    else:
        keep(followed, call.given, output)


_ALONG = {"vstack": (2, 0), "row_stack": (2, 0), "hstack": (2, 1), "column_stack": (2, 1), "dstack": (3, 2)}
"""What torch joins along an axis of its own, from how many axes on."""


@_for(" ".join(["cat concat concatenate stack", *_ALONG]))
def _joined(followed: KnownRows, call: Call) -> None:
    parts, output = list(call.tensor) if isinstance(call.tensor, list | tuple) else [call.tensor], call.output
    if not parts or not isinstance(output, Tensor) or not all(isinstance(part, Tensor) for part in parts):
        return
    given = call.named("dim")
    least, axis = _ALONG.get(call.name, (0, given.get("dim", given.get("axis", 0))))
    if min(part.dim() for part in parts) < least:
        mix(followed, call.given, output)
        return
    axis %= output.dim()
    every = [followed.of(part) for part in parts]
    if all(known is None for known in every) and (axis or len(parts) < 2):
        return
    if Mark.MIXED in every or all(isinstance(known, Mark) for known in every):
        lone = every[0] if len({*every}) == 1 and every[0] is not Mark.MODEL else Mark.MADE
        followed.put(output, Mark.MIXED if Mark.MIXED in every else lone)
        return
    if call.name == "stack":  # parts with a new axis each
        own = [followed.lineage(part) for part in parts]
        shape, new = (*output.shape[:axis], 1, *output.shape[axis + 1 :]), ("new", axis)
        deep = [
            one.then(shape, lambda c, _: c.unsqueeze(axis), new) if isinstance(one, Lineage) else one for one in own
        ]
        pairs = [(shape, one) for one in deep]
    elif axis and None in every:  # side by side: rows in their order go before those that were moved
        return
    else:
        pairs = [(tuple(part.shape), followed.lineage(part)) for part in parts if part.numel()]
    moved = [known for _, known in pairs if isinstance(known, Lineage)]
    if not moved:
        followed.put(output, None)
        return
    main = next((known for known in moved if known.source != known.shape), moved[0])
    found = [known if isinstance(known, Lineage) else followed.source(size) for size, known in pairs]
    if any(part.source == main.source and len(part.shape) != len(main.shape) for part in found):
        followed.put(output, Mark.MIXED)
        return
    followed.put(output, main.together(tuple(output.shape), after.joined(found, main, axis), ("cat", axis, *found)))


@_for(
    "mean sum max min amax amin logsumexp norm prod std var median nanmean argmax argmin any all nansum std_mean "
    "var_mean nanmedian mode count_nonzero aminmax linalg_norm linalg_vector_norm frobenius_norm nuclear_norm "
    "special_logsumexp"
)
def _reduced(followed: KnownRows, call: Call) -> None:
    tensor = call.tensor
    if not isinstance(tensor, Tensor):
        return
    first = call.output[0] if isinstance(call.output, tuple) else call.output
    given = call.named("p", "dim") if call.name == "norm" else call.named("dim")
    dims = call.kwargs.get("dim", given.get("axis", given.get("dim")))
    if isinstance(dims, Tensor):  # the larger of two tensors
        keep(followed, call.given, call.output)
        return
    if dims is None or not isinstance(first, Tensor) or not first.dim():
        return
    if tensor.dim() < 3 and followed.plainly(tensor):  # what is left of the first axis is no row of a batch
        return
    axes = sorted({own % tensor.dim() for own in _integers(dims)})
    if 0 not in axes and followed.plainly(tensor):
        return
    kept = first.dim() == tensor.dim()

    def change(own: Tensor, shape: Sizes) -> Tensor:
        left = after.lost(own, axes)
        return left if kept else left.squeeze(tuple(axes))

    followed.moved(tensor, first, change, ("reduce", kept, *axes))


@_for("einsum")
def _summed(followed: KnownRows, call: Call) -> None:
    args, output = call.args, call.output
    if not isinstance(args[0], str) or not isinstance(output, Tensor) or not output.dim():
        mix(followed, call.given, output)
        return
    given, arrow, made = args[0].replace(" ", "").partition("->")
    if not arrow:
        made = "".join(sorted(letter for letter in set(given) - {","} if given.count(letter) == 1))
    operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    parts = list(zip(given.split(","), operands, strict=True))
    if "." in given or any(len(set(letters)) != len(letters) for letters, _ in parts):
        rows = [letters for letters, own in parts if followed.of(own) is None]
        if any(isinstance(followed.of(own), Lineage) for _, own in parts) or (
            rows and all(e[:1] != made[:1] for e in rows)
        ):
            followed.put(output, Mark.MIXED)
        return
    # The rows are those of the first operand that has the first axis and is none of the model's.
    for letters, own in sorted(parts, key=lambda part: made[0] not in part[0]):
        known = followed.of(own)
        if isinstance(known, Mark) and known is not Mark.MIXED:
            continue
        if known is Mark.MIXED:
            followed.put(output, known)
        elif known is not None or letters[:1] != made[:1]:
            followed.moved(own, output, after.labelled(letters, made), ("einsum", letters, made))
        return
    if all(followed.of(own) is Mark.MODEL for _, own in parts):
        followed.put(output, Mark.MODEL)


@_for("matmul bmm baddbmm __matmul__ mm addmm")
def _multiplied(followed: KnownRows, call: Call) -> None:
    left, right, output = call.args[1 if call.name == "addmm" else 0], call.args[-1], call.output
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return
    made, flat = followed.of(left) is Mark.MADE, left.dim() == right.dim() == 2
    if made and flat and followed.of(right) not in (Mark.MADE, Mark.MODEL):
        followed.put(output, Mark.MIXED)  # as of a permutation
    elif right.dim() > max(left.dim(), 2):
        keep(followed, (right,), output)
    elif flat and followed.of(left) is Mark.MODEL and isinstance(followed.of(right), Lineage):
        # Rows that lie along the second axis, as in (W @ x.T).T.
        followed.moved(right, output, after.labelled("jk", "ik"), "product")
    elif not followed.plainly(left):
        keep(followed, (left,), output)


@_for("_pack_padded_sequence")
def _packed(followed: KnownRows, call: Call) -> None:
    packs = call.function  # what reads it later holds none of the call's tensors
    _move(followed, call.tensor, call.output[0], lambda *given: packs(*given)[0], call.args)


_PADDING = -4
"""In place of a coordinate, until it is that of the row's first token."""


@_for("_pad_packed_sequence")
def _padded(followed: KnownRows, call: Call) -> None:
    function = call.function

    def pads(own: Tensor, sizes: Tensor, batch_first: bool, padding: float, length: int) -> Tensor:
        found: Tensor = function(own, sizes, batch_first, _PADDING, length)[0]
        return found.where(found != _PADDING, found.narrow(1 if batch_first else 0, 0, 1))

    _move(followed, call.tensor, call.output[0], pads, call.args)


@_for("lstm gru rnn_tanh rnn_relu")
def _recurred(followed: KnownRows, call: Call) -> None:
    """Of the last states [layers, B, H], the rows are those of the input."""
    tensor, args, output = call.tensor, call.args, call.output
    if not isinstance(tensor, Tensor) or tensor.dim() < 2:
        return
    keep(followed, (tensor,), output[0])
    packed = isinstance(args[1], Tensor) and tensor.dim() == 2 and args[1].dim() == 1
    rows = output[1].shape[1]
    if not packed and tensor.dim() != 3:
        return
    batch = 0 if packed or (isinstance(args[-1], bool) and args[-1]) else 1

    def last(own: Tensor, shape: Sizes) -> Tensor:
        if packed:  # the first rows are those of the first token of every sequence
            return own[:rows][None, :, :1]
        return after.lost(own, [1 - batch]).movedim(batch, 1).reshape(1, -1, own.shape[2])[:, :, :1]

    for states in output[1:]:
        if isinstance(states, Tensor):
            followed.moved(tensor, states, last, ("states", packed, batch))
