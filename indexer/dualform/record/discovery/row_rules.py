"""What functions of torch make of the rows of the tensors that they are given (followed_rows.py).

A rule is called with what follows the rows, the function's name, its arguments and what it answered, and puts what it
knows of the answer. A function of KEPT leaves the first axis as it is. The rows of what any other returns are not
known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dualform.record import lineage as after
from dualform.record.lineage import Known, KnownRows, Lineage, Mark, Sizes, numbers_of

Rule: TypeAlias = Callable[[KnownRows, str, tuple[Any, ...], dict[str, Any], Any], None]
"""Of a function of torch: what it says of its output. It is called with the function's name, arguments and output."""
RULES: dict[str, Rule] = {}

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


def _for(*names: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
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


def keep(followed: KnownRows, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """The axes of what comes out are those of what goes in."""
    given = list(tensors_in((*args, *kwargs.values())))
    for own in tensors_in((output,)):
        if own.dim():
            _keep_in(followed, given, own)


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


def mix(followed: KnownRows, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """Of what comes out nothing is known, if rows of a batch go in."""
    if all(followed.of(own) in (Mark.MODEL, Mark.MADE) for own in tensors_in((*args, *kwargs.values())) if own.dim()):
        keep(followed, args, kwargs, output)
        return
    for own in tensors_in((output,)):
        if own.dim():
            (followed.write if any(own is given for given in args) else followed.put)(own, Mark.MIXED)


@_for(
    *("zeros", "ones", "full", "empty", "rand", "randn", "randint", "randperm", "arange", "linspace", "eye", "normal"),
    *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like", "bernoulli"),
    *("new_zeros", "new_ones", "new_full", "new_empty"),
)
def _fresh(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    if all(output is not own for own in args):
        followed.put(output, Mark.MADE)


@_for("tensor", "as_tensor", "new_tensor")
def _from_outside(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """Of Python, which may have moved rows."""
    if isinstance(args[0], Tensor) and name != "new_tensor":
        keep(followed, args[:1], {}, output)
    elif output.dim():
        followed.put(output, Mark.MIXED)


@_for("transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t", "adjoint", "T", "H", "mT", "mH")
def _transposed(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    tensor = args[0]
    if not isinstance(tensor, Tensor) or not isinstance(output, Tensor):
        return
    axes = _axes_of(name, tensor.dim(), [*args[1:], *kwargs.values()])
    if axes[:1] != [0] or not followed.plainly(tensor):
        followed.moved(tensor, output, after.permuted(axes), ("permute", *axes))


def _axes_of(name: str, dims: int, given: list[Any]) -> list[int]:
    """The order of axes that a function of torch makes."""
    axes = list(range(dims))
    if name in ("T", "H", "t"):
        return axes[::-1]
    if name in ("mT", "mH", "adjoint"):
        return [*axes[:-2], *axes[:-3:-1]]
    if name == "permute":
        order = given[0] if isinstance(given[0], list | tuple) else given
        return [own % dims for own in order]
    if name in ("transpose", "swapaxes", "swapdims"):
        one, two = (own % dims for own in given)
        axes[one], axes[two] = two, one
        return axes
    sources, targets = ([own] if isinstance(own, int) else list(own) for own in given)
    moved = {to % dims: own % dims for own, to in zip(sources, targets, strict=True)}
    rest = iter(own for own in axes if own not in moved.values())
    return [moved[axis] if axis in moved else next(rest) for axis in axes]


@_for(
    *(
        "reshape",
        "view",
        "flatten",
        "unflatten",
        "squeeze",
        "unsqueeze",
        "view_as",
        "reshape_as",
        "ravel",
        "atleast_2d",
    ),
)
def _reshaped(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    tensor = args[0]
    if not isinstance(tensor, Tensor) or not isinstance(output, Tensor) or tensor.numel() != output.numel():
        return
    shape = tuple(output.shape)
    kept = tensor.dim() and shape[:1] == tuple(tensor.shape[:1])
    if tensor.numel() and not (kept and followed.plainly(tensor)):
        followed.moved(tensor, output, after.reshaped(shape), "reshape")


@_for("expand", "expand_as", "broadcast_to")
def _expanded(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    tensor = args[0]
    new = output.dim() - tensor.dim()
    known = followed.of(tensor)
    if known is Mark.MODEL and (new or output.shape[0] != tensor.shape[0]):
        followed.put(output, Mark.MADE)
    elif known is not None or new:
        ones = (1,) * new
        followed.moved(tensor, output, lambda own, _: [each.reshape(ones + each.shape) for each in own], "expand")


@_for("repeat", "tile")
def _repeated(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    tensor, given = args[0], [*args[1:], *kwargs.values()]
    times = list(given[0]) if given and isinstance(given[0], list | tuple) else given
    times = [1] * (tensor.dim() - len(times)) + times
    known = followed.of(tensor)
    if known is Mark.MODEL:
        followed.put(output, Mark.MADE)
    elif known is not None or times[: len(times) - tensor.dim() + 1] != [1]:
        followed.moved(tensor, output, after.repeated(times), ("repeat", *times))


@_for("repeat_interleave")
def _interleaved(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    tensor, given = args[0], dict(zip(("repeats", "dim"), args[1:], strict=False)) | kwargs
    times, axis = given.get("repeats"), given.get("dim")
    if axis is None and tensor.dim() != 1:
        followed.put(output, None if followed.plainly(tensor) and tensor.dim() < 2 else Mark.MIXED)
        return
    axis = (axis or 0) % tensor.dim()
    if followed.of(tensor) is Mark.MODEL:
        followed.put(output, Mark.MADE)
    elif axis == 0 or not followed.plainly(tensor):
        if isinstance(times, Tensor) and times.numel() > 1:
            read = numbers_of(times)
            _index(followed, tensor, output, axis, lambda: None if (n := read()) is None else _each(n))
        else:
            numbers = np.repeat(np.arange(tensor.shape[axis]), int(times if times is not None else 1))
            index = [slice(None)] * axis + [numbers]
            followed.moved(
                tensor, output, after.indexed(_whole(index, tensor.dim())), ("interleave", axis, len(numbers))
            )


def _each(times: Any) -> Any:
    return np.repeat(np.arange(len(times)), times)


def _whole(index: list[Any], dims: int) -> list[Any]:
    return index + [slice(None)] * (dims - sum(part is not None for part in index))


def _moves_tokens(tensor: Tensor, output: Any, axis: int) -> bool:
    """Whether what is done along an axis may give the tokens of a row another order."""
    return axis == 1 and tensor.dim() > 2 and isinstance(output, Tensor) and output.shape == tensor.shape


def _index(followed: KnownRows, tensor: Tensor, output: Any, axis: int, read: Callable[[], Any]) -> None:
    """`output` holds entries of one axis by numbers that are read later."""
    dims, count = tensor.dim(), tensor.shape[axis]

    def change(own: after.Coordinates, shape: Sizes) -> after.Coordinates:
        numbers = read()
        if numbers is None:
            return after.unknown(own)
        numbers = np.where(numbers < 0, numbers + count, numbers)
        return after.indexed(_whole([slice(None)] * axis + [numbers], dims))(own, shape)

    followed.moved(tensor, output, change)


@_for("__getitem__")
def _item(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    tensor, index = args[0], args[1]
    parts = list(index) if isinstance(index, tuple) else [index]
    if not isinstance(output, Tensor):
        return
    moves = len(parts) > 1 and isinstance(parts[1], Tensor | list | np.ndarray) and _moves_tokens(tensor, output, 1)
    if not moves and followed.plainly(tensor) and _leaves_first(parts, tensor.dim()):
        return
    known = followed.of(tensor)
    if known is Mark.MODEL:
        _looked_up(followed, parts, output)
        return
    if isinstance(known, Mark):
        followed.put(output, known)
        return
    spread, steady = _spread(parts, tensor.dim())
    if spread is None:
        followed.put(output, Mark.MIXED)
        return
    whole = slice(None)
    if len(spread) == tensor.dim() > 1 and all(isinstance(p, slice) and p == whole for p in spread[:-1]) and steady:
        keep(followed, (tensor,), {}, output)
        return

    def change(own: after.Coordinates, shape: Sizes) -> after.Coordinates:
        made = _read(spread, shape)
        return after.unknown(own) if made is None else after.indexed(made)(own, shape)

    followed.moved(tensor, output, change, ("item", *map(_hashed, spread)) if steady else None)


def _leaves_first(parts: list[Any], dims: int) -> bool:
    """Whether an index takes all of the first axis, and leaves it the first."""
    numbers = [part for part in parts if not (part is None or part is Ellipsis or isinstance(part, int | slice))]
    if isinstance(parts[0], slice):
        return parts[0] == slice(None) and len(numbers) < 2
    taken = sum(part.dim() if _is_mask(part) else 1 for part in parts if part is not None and part is not Ellipsis)
    return parts[0] is Ellipsis and len(numbers) < 2 and taken < dims


def _is_mask(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8)


def _hashed(part: Any) -> Any:
    return (part.start, part.stop, part.step) if isinstance(part, slice) else part


def _spread(parts: list[Any], dims: int) -> tuple[list[Any] | None, bool]:
    """One part for each axis, and None for new ones, numbers as what reads them; and whether there are none of those.
    None in place of the parts where one of them is not known.
    """
    found, steady, rest = list[Any](), True, 0
    for part in parts:
        if isinstance(part, Tensor | list | np.ndarray):
            numbers = torch.as_tensor(part, device=None if isinstance(part, Tensor) else "cpu")
            if _is_mask(numbers) and not numbers.dim():
                return None, False
            found.append(numbers_of(numbers.bool() if numbers.dtype == torch.uint8 else numbers))
            rest += numbers.dim() if _is_mask(numbers) else 1
            steady = False
        elif part is None or part is Ellipsis or (isinstance(part, int | slice) and not isinstance(part, bool)):
            found.append(part)
            rest += part is not None and part is not Ellipsis
        else:
            return None, False
    whole = [slice(None)] * (dims - rest)
    at = next((n for n, part in enumerate(found) if part is Ellipsis), len(found))
    return [*found[:at], *whole, *found[at + 1 :]], steady


def _read(spread: list[Any], shape: Sizes) -> list[Any] | None:
    """The parts, with numbers for what is to be read."""
    made, axis = list[Any](), 0
    for part in spread:
        if callable(part):
            numbers = part()
            if numbers is None:
                return None
            if numbers.dtype == bool:
                size = shape[axis : axis + numbers.ndim]
                made += [own.astype(np.int64) for own in np.broadcast_to(numbers, size).nonzero()]
                axis += numbers.ndim
                continue
            made.append(np.where(numbers < 0, numbers + shape[axis], numbers))
        else:
            made.append(part)
        axis += part is not None
    return made


def _looked_up(followed: KnownRows, parts: list[Any], output: Any) -> None:
    """Rows of a table of the model: they are those of the numbers."""
    index = next((part for part in parts if isinstance(part, Tensor)), None)
    known = Mark.MODEL if index is None else followed.of(index)
    if isinstance(known, Lineage) and isinstance(output, Tensor):
        new = output.dim() - len(known.shape)
        if parts[0] is index and new >= 0 and tuple(output.shape[: len(known.shape)]) == known.shape:
            ones = (1,) * new
            known = known.then(
                tuple(output.shape), lambda own, _: [e.reshape(e.shape + ones) for e in own], "looked up"
            )
        else:
            known = Mark.MIXED
    followed.put(output, known)


@_for("_base", "grad")
def _other(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """An attribute that is a tensor of its own."""


@_for("embedding", "one_hot")
def _embedded(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    tensors = [own for own in (*args[:2], kwargs.get("weight")) if isinstance(own, Tensor)]
    number = next((own for own in tensors if not own.is_floating_point()), None)
    table = next((own for own in tensors if own.is_floating_point()), None)
    if number is not None and table is not None and followed.of(table) not in (Mark.MODEL, Mark.MADE):
        _index(followed, table, output, 0, numbers_of(number))  # rows of a batch
    elif number is not None and not followed.plainly(number):
        _looked_up(followed, [number], output)


@_for(
    *(
        "__setitem__",
        "index_put",
        "index_copy",
        "index_add",
        "index_reduce",
        "scatter",
        "scatter_add",
        "scatter_reduce",
    ),
    *("index_put_", "index_copy_", "index_add_", "index_reduce_", "scatter_", "scatter_add_", "scatter_reduce_"),
    *("masked_scatter", "masked_scatter_"),
)
def _written(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """Rows of one tensor go to places of another."""
    by_axis = name.startswith(("index_copy", "index_add", "index_reduce", "scatter"))
    names = ("tensor", "dim", "index", "value") if by_axis else ("tensor", "index", "value", "accumulate")
    given = dict(zip(names, args, strict=False)) | kwargs
    to, index = given["tensor"], given.get("index", given.get("mask", given.get("indices")))
    value: Any = next((given[key] for key in ("value", "values", "src", "source") if key in given), None)
    made = to if name == "__setitem__" or name.endswith("_") else output
    own, known = followed.of(to), followed.of(value) if isinstance(value, Tensor) else Mark.MADE
    if isinstance(known, Mark) or not value.dim() or not value.numel():
        followed.write(made, known if known is Mark.MIXED else own)
        return
    adds = "add" in name or "reduce" in name or bool(given.get("accumulate"))
    if adds and own is None:  # rows in their order go before those that were moved
        followed.write(made, own)
        return
    several = isinstance(index, tuple) or (isinstance(index, list) and name != "__setitem__")
    parts: list[Any] = list(index or ()) if several else [index]
    axis = given["dim"] % to.dim() if by_axis else 0
    if by_axis and axis and name.startswith("scatter"):
        keep(followed, (value,) if isinstance(own, Mark) else (to, value), {}, made)
        return
    parts = [slice(None)] * axis + parts
    if known is None and own in (None, Mark.MADE) and _leaves_first(parts, to.dim()):
        followed.write(made, None)
        return
    if name.startswith(("scatter", "masked_scatter")):
        parts = _whole_rows(parts[0], value, to, mask=name.startswith("masked"))
    followed.write(made, _overwritten(followed, to, value, parts, adds))


def _whole_rows(index: Tensor, value: Tensor, to: Tensor, mask: bool) -> list[Any]:
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
    own, new = followed.lineage(to), followed.lineage(value)
    spread = _spread(parts, to.dim())[0] if parts else None
    if not isinstance(new, Lineage) or spread is None or None in spread:
        return Mark.MIXED
    nothing = Lineage(
        new.source, tuple(to.shape), False, lambda: [after.nowhere(to.dim(), after.EMPTY)] * len(new.source)
    )
    base = own if isinstance(own, Lineage) else nothing

    def change(coordinates: after.Coordinates, shape: Sizes) -> after.Coordinates:
        index = _read(spread, shape)
        if index is None:
            return after.unknown(coordinates)
        if base.source == new.source:
            both = zip(coordinates, new.coordinates, strict=True)
            return [after.put_into(old, shape, index, its, adds) for old, its in both]
        # Of another source: rows that stand where they did.
        rows = after.put_into(coordinates[0], shape, index, new.coordinates[0], adds)
        same = base.source[:1] == new.source[:1] and (rows == coordinates[0]).all()
        return coordinates if same else after.unknown(coordinates)

    return base.then(tuple(to.shape), change)


@_for("copy_", "__set__")
def _copied(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    to, value = args[0], args[1]
    if isinstance(value, Tensor) and value.dim():
        known = followed.of(value)
        followed.write(to, known if value.shape == to.shape or not isinstance(known, Lineage) else Mark.MIXED)


@_for("__deepcopy__")
def _again(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    keep(followed, args[:1], {}, output)


@_for("broadcast_tensors")
def _broadcast(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    for tensor, own in zip(tensors_in(args), output, strict=True):
        _expanded(followed, name, (tensor,), {}, own)


_ALONG_ONE = {"diff": 2, "unfold": 1, "kthvalue": 2, "quantile": 2, "nanquantile": 2}
"""Functions that change one axis, and where in their arguments it stands."""


@_for(*_ALONG_ONE)
def _along(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    place, tensor = _ALONG_ONE[name], args[0]
    dim = kwargs.get("dim", kwargs.get("dimension", args[place] if len(args) > place else -1))
    images = name == "unfold" and output.dim() < tensor.dim()  # torch.nn.functional.unfold
    first = not images and (not isinstance(dim, int) or dim % max(tensor.dim(), 1) == 0)
    (mix if first else keep)(followed, (tensor,), {}, output)


@_for("pad", "constant_pad_nd")
def _widened(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    tensor, sizes = args[0], args[1] if len(args) > 1 else kwargs["pad"]
    first = sizes[2 * tensor.dim() - 2 :] if len(sizes) == 2 * tensor.dim() else ()
    (mix if any(first) else keep)(followed, (tensor,), {}, output)


@_for("select", "narrow", "split", "chunk", "unbind", "tensor_split", "split_with_sizes", "__iter__", "flip", "roll")
def _sliced(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    tensor = args[0]
    if not isinstance(tensor, Tensor) or not tensor.dim():
        return
    names: dict[str, tuple[str, ...]] = {
        "select": ("dim", "index"), "narrow": ("dim", "start", "length"), "unbind": ("dim",), "flip": ("dims",),
        "roll": ("shifts", "dims"), "__iter__": (),
    }  # fmt: skip
    given = dict(zip(names.get(name, ("sizes", "dim")), args[1:], strict=False)) | kwargs
    if name in ("flip", "roll"):
        _turned(followed, name, tensor, args, given, output)
        return
    dim = given.get("dim", 0)
    if not isinstance(dim, int):
        return
    axis = dim % tensor.dim()
    if axis != 0 and followed.plainly(tensor):
        return
    if axis == tensor.dim() - 1 > 0 and name not in ("select", "unbind"):  # other columns of the same rows
        for part in output if isinstance(output, tuple | list) else [output]:
            keep(followed, (tensor,), {}, part)
        return
    before, start = [slice(None)] * axis, 0
    parts = [output] if isinstance(output, Tensor) else list(output) if isinstance(output, tuple | list) else []
    for number, part in enumerate(parts):
        if name in ("select", "unbind"):
            at = int(given["index"]) % tensor.shape[axis] if name == "select" else number
            own: Any = at
        else:
            first = int(given["start"]) % max(tensor.shape[axis], 1) if name == "narrow" else start
            own = slice(first, first + part.shape[axis])
            start += part.shape[axis]
        index = _whole([*before, own], tensor.dim())
        followed.moved(tensor, part, after.indexed(index), ("item", *map(_hashed, index)))


def _turned(
    followed: KnownRows, name: str, tensor: Tensor, args: tuple[Any, ...], given: dict[str, Any], output: Any
) -> None:
    if name == "flip":
        dims = given["dims"] if isinstance(given.get("dims"), list | tuple) else args[1:] or [given["dims"]]
        shifts: list[int | None] = [None] * len(dims)
    else:
        dims = given.get("dims")
        if dims is None or dims == ():
            followed.put(output, Mark.MIXED)
            return
        dims = [dims] if isinstance(dims, int) else list(dims)
        shifts = [given["shifts"]] if isinstance(given["shifts"], int) else list(given["shifts"])
    axes = [own % tensor.dim() for own in dims]
    moves = any(_moves_tokens(tensor, output, axis) for axis in axes)
    if not moves and 0 not in axes and followed.plainly(tensor):
        return
    index: list[Any] = [slice(None)] * tensor.dim()

    def change(own: after.Coordinates, shape: Sizes) -> after.Coordinates:
        for axis, shift in zip(axes, shifts, strict=True):
            numbers = np.arange(shape[axis])
            numbers = numbers[::-1] if shift is None else np.roll(numbers, shift)
            own = after.indexed([*index[:axis], numbers, *index[axis + 1 :]])(own, shape)
        return own

    followed.moved(tensor, output, change, None if moves else (name, *axes, *shifts))


@_for("where")
def _chosen(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """Entries of two tensors: if only one of them was moved, a row may be of either."""
    if not isinstance(output, Tensor):  # the numbers of what holds
        mix(followed, args, kwargs, output)
        return
    given = list(tensors_in((*args, *kwargs.values())))
    conditions = [own for own in given if own.dtype == torch.bool]
    given = given if len(conditions) != 1 else [own for own in given if own is not conditions[0]]
    full = [own for own in given if output.dim() and own.shape[:1] == output.shape[:1]]
    found = [followed.of(own) for own in full]
    if None in found and any(isinstance(own, Lineage) for own in found):
        followed.put(output, Mark.MIXED)
    else:
        keep(followed, args, kwargs, output)


@_for("index_select")
def _selected(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    given = dict(zip(("tensor", "dim", "index"), args, strict=False)) | kwargs
    tensor, axis, index = given["tensor"], given["dim"] % max(args[0].dim(), 1), given["index"]
    if followed.of(tensor) is Mark.MODEL:
        _looked_up(followed, [index] if axis == 0 else [slice(None), index], output)
    elif axis == 0 or not followed.plainly(tensor) or _moves_tokens(tensor, output, axis):
        read = numbers_of(index)
        _index(followed, tensor, output, axis, lambda: None if (n := read()) is None else n.reshape(-1))


@_for("gather", "take_along_dim", "sort", "topk")
def _gathered(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    tensor = args[0]
    if not isinstance(tensor, Tensor) or not tensor.dim():
        return
    names: dict[str, tuple[str, ...]] = {
        "gather": ("dim", "index"), "take_along_dim": ("indices", "dim"), "topk": ("k", "dim"), "sort": ("dim",),
    }  # fmt: skip
    given = dict(zip(names[name], args[1:], strict=False)) | kwargs
    dim = given.get("dim", {"sort": -1, "topk": -1}.get(name))
    values, index = output, given.get("index", given.get("indices"))
    if name in ("sort", "topk"):
        values, index = output
    if not isinstance(dim, int) or not isinstance(index, Tensor):
        followed.put(values, Mark.MIXED)
        return
    axis = dim % tensor.dim()
    if axis != 0 and followed.plainly(tensor):
        return
    read = numbers_of(index)

    def change(own: after.Coordinates, shape: Sizes) -> after.Coordinates:
        numbers = read()
        return after.unknown(own) if numbers is None else after.gathered(axis, numbers)(own, shape)

    followed.moved(tensor, values, change)


@_for("masked_select")
def _masked(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    tensor, mask = args[0], args[1] if len(args) > 1 else kwargs["mask"]
    if mask.shape[:-1] != tensor.shape[: mask.dim() - 1]:
        followed.put(output, Mark.MIXED)
        return
    read = numbers_of(mask)

    def change(own: after.Coordinates, shape: Sizes) -> after.Coordinates:
        numbers = read()
        if numbers is None or len(numbers.shape) != len(shape):
            return after.unknown([np.zeros(1, np.int64)] * len(own))
        return after.indexed([e.astype(np.int64) for e in np.broadcast_to(numbers, shape).nonzero()])(own, shape)

    followed.moved(tensor, output, change)


_ALONG = {"vstack": (2, 0), "row_stack": (2, 0), "hstack": (2, 1), "column_stack": (2, 1), "dstack": (3, 2)}
"""What torch joins along an axis of its own, from how many axes on."""


@_for("cat", "concat", "concatenate", "stack", *_ALONG)
def _joined(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    parts = list(args[0]) if isinstance(args[0], list | tuple) else [args[0]]
    if not parts or not isinstance(output, Tensor) or not all(isinstance(part, Tensor) for part in parts):
        return
    least, axis = _ALONG.get(name, (0, args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))))
    if min(part.dim() for part in parts) < least:
        mix(followed, args, kwargs, output)
        return
    axis %= output.dim()
    every = [followed.of(part) for part in parts]
    if all(known is None for known in every) and (axis or len(parts) < 2):
        return
    if all(isinstance(known, Mark) for known in every):
        lone = every[0] if len({*every}) == 1 and every[0] is not Mark.MODEL else Mark.MADE
        followed.put(output, Mark.MIXED if Mark.MIXED in every else lone)
    elif name == "stack":
        _stacked(followed, parts, every, axis, output)
    else:
        _catenated(followed, parts, every, axis, output)


def _stacked(followed: KnownRows, parts: list[Tensor], every: list[Known | None], axis: int, output: Tensor) -> None:
    """As of parts with a new axis each, that are joined along it."""

    def change(own: after.Coordinates, shape: Sizes) -> after.Coordinates:
        return [np.expand_dims(each, axis) for each in own]

    shape = (*output.shape[:axis], 1, *output.shape[axis + 1 :])
    deep = [
        (known if isinstance(known, Lineage) else followed.source(tuple(part.shape))).then(shape, change, ("new", axis))
        if not isinstance(known, Mark)
        else known
        for part, known in zip(parts, every, strict=True)
    ]
    _put_joined(followed, [shape] * len(parts), deep, axis, output)


def _catenated(followed: KnownRows, parts: list[Tensor], every: list[Known | None], axis: int, output: Tensor) -> None:
    own = [
        (tuple(part.shape), followed.source(tuple(part.shape)) if known is None else known)
        for part, known in zip(parts, every, strict=True)
        if part.numel()
    ]
    if axis and None in every:  # side by side: rows in their order go before those that were moved
        return
    _put_joined(followed, [shape for shape, _ in own], [known for _, known in own], axis, output)


def _put_joined(followed: KnownRows, shapes: list[Sizes], every: Sequence[Known], axis: int, output: Tensor) -> None:
    moved = [known for known in every if isinstance(known, Lineage)]
    if Mark.MIXED in every or not moved:
        followed.put(output, Mark.MIXED if Mark.MIXED in every else None)
        return
    main = next((known for known in moved if known.source != known.shape), moved[0])
    parts = [
        known if isinstance(known, Lineage) else followed.source(shape)
        for shape, known in zip(shapes, every, strict=True)
    ]
    if any(part.source == main.source and len(part.shape) != len(main.shape) for part in parts):
        followed.put(output, Mark.MIXED)
        return
    what = ("cat", axis, *parts)
    followed.put(output, main.then(tuple(output.shape), after.joined(parts, main, axis), what))


@_for(
    *("mean", "sum", "max", "min", "amax", "amin", "logsumexp", "norm", "prod", "std", "var", "median", "nanmean"),
    *(
        "argmax",
        "argmin",
        "any",
        "all",
        "nansum",
        "std_mean",
        "var_mean",
        "nanmedian",
        "mode",
        "count_nonzero",
        "aminmax",
    ),
    *("linalg_norm", "linalg_vector_norm", "frobenius_norm", "nuclear_norm", "special_logsumexp"),
)
def _reduced(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    tensor = args[0]
    if not isinstance(tensor, Tensor):
        return
    first = output[0] if isinstance(output, tuple) else output
    place = 2 if name == "norm" else 1
    dims = kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else None))
    if isinstance(dims, Tensor):  # the larger of two tensors
        keep(followed, args, kwargs, output)
        return
    if dims is None or not isinstance(first, Tensor) or not first.dim():
        return
    if tensor.dim() < 3 and followed.plainly(tensor):  # what is left of the first axis is no row of a batch
        return
    axes = sorted({own % tensor.dim() for own in ([dims] if isinstance(dims, int) else dims)})
    if 0 not in axes and followed.plainly(tensor):
        return
    kept = first.dim() == tensor.dim()
    followed.moved(tensor, first, after.reduced(axes, kept), ("reduce", kept, *axes))


@_for("einsum")
def _summed(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    if not isinstance(args[0], str) or not isinstance(output, Tensor) or not output.dim():
        mix(followed, args, kwargs, output)
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


@_for("matmul", "bmm", "baddbmm", "__matmul__", "mm", "addmm")
def _multiplied(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    left, right = args[1 if name == "addmm" else 0], args[-1]
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return
    made = followed.of(left) is Mark.MADE
    if made and left.dim() == right.dim() == 2 and followed.of(right) not in (Mark.MADE, Mark.MODEL):
        followed.put(output, Mark.MIXED)  # as of a permutation
    elif right.dim() > max(left.dim(), 2):
        keep(followed, (right,), {}, output)
    elif left.dim() == right.dim() == 2 and followed.of(left) is Mark.MODEL and isinstance(followed.of(right), Lineage):
        # Rows that lie along the second axis, as in (W @ x.T).T.
        followed.moved(right, output, after.labelled("jk", "ik"), "product")
    elif not followed.plainly(left):
        keep(followed, (left,), {}, output)


@_for("_pack_padded_sequence")
def _packed(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    tensor, read, batch_first = args[0], numbers_of(args[1]), bool(args[2])

    def change(own: after.Coordinates, shape: Sizes) -> after.Coordinates:
        lengths = read()
        if lengths is None:
            return after.unknown([each.reshape(each.shape[1:]) if each.shape[0] == 1 else each[0] for each in own])
        time, row = (np.arange(lengths.max(initial=0))[:, None] < lengths).nonzero()
        both = [row, time] if batch_first else [time, row]
        return after.indexed([*both, *[slice(None)] * (len(shape) - 2)])(own, shape)

    followed.moved(tensor, output[0], change)


@_for("_pad_packed_sequence")
def _padded(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    tensor, read, batch_first = args[0], numbers_of(args[1]), bool(args[2])
    long = output[0].shape[1 if batch_first else 0]

    def change(own: after.Coordinates, shape: Sizes) -> after.Coordinates:
        sizes = read()
        if sizes is None:
            return after.unknown([each[None] for each in own])
        row = np.arange(sizes[0])[None].repeat(long, 0)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        time = np.arange(long)[:, None]
        real = (time < len(sizes)) & (row < sizes[np.minimum(time, len(sizes) - 1)])
        numbers = np.where(real, starts[np.minimum(time, len(sizes) - 1)] + row, row)
        numbers = numbers.T if batch_first else numbers
        return [
            after.collapsed(each) for each in after.indexed([numbers, *[slice(None)] * (len(shape) - 1)])(own, shape)
        ]

    followed.moved(tensor, output[0], change)


@_for("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurred(followed: KnownRows, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """Of the last states [layers, B, H], the rows are those of the input."""
    tensor = args[0]
    if not isinstance(tensor, Tensor) or tensor.dim() < 2:
        return
    keep(followed, (tensor,), {}, output[0])
    packed = isinstance(args[1], Tensor) and tensor.dim() == 2 and args[1].dim() == 1
    rows = output[1].shape[1]
    if not packed and tensor.dim() != 3:
        return
    batch = 0 if packed or (isinstance(args[-1], bool) and args[-1]) else 1

    def last(each: after.Numbers) -> after.Numbers:
        if packed:  # the first rows are those of the first token of every sequence
            return (each[:rows] if each.shape[0] > 1 else each)[None, :, :1]
        return after.lost(each, [1 - batch]).transpose(1 - batch, batch, 2)[:, :, :1]

    def change(own: after.Coordinates, shape: Sizes) -> after.Coordinates:
        return [last(each) for each in own]

    for states in output[1:]:
        if isinstance(states, Tensor):
            followed.moved(tensor, states, change, ("states", packed, batch))
