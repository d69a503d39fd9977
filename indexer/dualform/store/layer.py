"""What the manifest says of a layer and of its optimizer, and how its values are stored.

A recorded layer: what the manifest says of it. Shapes: d_in and d_out of the layer.

How a layer's values are stored: as keys of a source are, but that float32 rows are a NumPy file, too.

Shapes: n entries of a batch; d_out of the layer.

Which slots a memory with a budget keeps: those whose lot lies under a share, which only becomes smaller.

    lot(seed, step, row)  =  (h >> 11) / 2^53,     h = mixed(mixed(mixed(0, seed), step), row)
    mixed(h, x)  =  the finalizer of SplitMix64 on (h XOR x) + 0x9E3779B97F4A7C15, modulo 2^64

All of it is integer arithmetic, so that a lot is the same on every machine, on every rank and after a resumption. The
finalizer is that of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).

Parameter blocks: which rows and columns of which parameter of the model a layer stands for.

A parameter is seen as a matrix [rows, columns], its trailing axes flattened into one, or as a vector [rows]; of a stack
of matrices [E, R, C], as of experts, the leading axes may be flattened instead, [E R, C]. A block is a range of its
rows and a range of its columns; the layer may use it transposed. Shapes: d_in and d_out of the layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import prod
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput, NotAMemory
from dualform.store.files.durable_files import checksum
from dualform.store.files.segment import MatrixForm, npy
from dualform.store.sources import FORMATS, Geometry, KeyFormat
from dualform.store.sources.key_format import KeySource, StoredRows

Range: TypeAlias = tuple[int, int]
"""From the first one to the last one, which is excluded."""
Matrix = TypeVar("Matrix")
"""A NumPy array or a torch tensor."""


@dataclass(frozen=True)
class Parameter:
    """One parameter block: the columns of a layer's [W | b], [d_out, d_in + 1], that a parameter of the model brings.

    Blocks of one layer that bring the same columns are added up, as the two biases of an LSTM are; layers that hold
    the same block of one parameter are tied, and their terms add up.
    """

    name: str
    """In the model's state dict."""
    start: int
    stop: int
    """One past the last column; the bias is column d_in."""
    rows: Range | None = None
    """Rows of the named parameter that the block stands for, the last one excluded; None for all."""
    transposed: bool = False
    """Whether the block is stored as [columns of W, d_out]."""
    columns: Range | None = None
    """Columns of the named parameter, its trailing axes flattened, as `rows`."""
    leading: int = 1
    """How many axes of the named parameter are flattened into its rows."""

    @property
    def block_name(self) -> str:
        """What logs and coefficients call it: the parameter's name, and its ranges where it is not all of it."""
        if self.columns is not None:
            return f"{self.name}[{_said(self.rows)}, {_said(self.columns)}]"
        return self.name if self.rows is None else f"{self.name}[{_said(self.rows)}]"

    def block_of(self, parameter: Matrix) -> Matrix:
        """[d_out, columns of W], or [d_out] of a bias: the block of a parameter, as the layer uses it.

        A view, but of a tensor whose trailing axes do not lie in their order.
        """
        stored: Any = self.stored_block_of(parameter)
        found: Matrix = stored.T if self.transposed else stored
        return found

    def stored_block_of(self, parameter: Matrix) -> Matrix:
        """As `block_of`, the way round that it is stored: all layers that hold the block see the same."""
        found: Any = parameter
        if found.ndim > 2:
            found = found.reshape(as_matrix(found.shape, self.leading))
        if self.rows is not None:
            found = found[self.rows[0] : self.rows[1]]
        if self.columns is not None:
            found = found[:, self.columns[0] : self.columns[1]]
        block: Matrix = found
        return block

    def shape_within(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """Of `block_of` a parameter of that shape; None where its ranges leave it."""
        height, width = as_matrix(shape, self.leading)
        fits = (self.rows or (0, height))[1] <= height and (self.columns is None or self.columns[1] <= (width or 0))
        return tuple(self.block_of(np.broadcast_to(np.zeros(()), tuple(shape))).shape) if fits else None

    def put(self, into: NDArray[Any], block: Any) -> None:
        """Write a block, as the layer uses it, to its place in a parameter, which is a contiguous array."""
        assert into.flags.c_contiguous, "its block would be a copy"
        self.block_of(into)[...] = block

    def within(self, shape: Sequence[int]) -> Parameter:
        """The same block of a parameter of that shape, without ranges that are all of it."""
        height, width = as_matrix(shape, self.leading)
        rows = None if self.rows == (0, height) else self.rows
        return replace(self, rows=rows, columns=None if self.columns == (0, width) else self.columns)

    def overlaps(self, other: Parameter) -> bool:
        """Whether two blocks of one parameter have a number in common, or may have as far as their ranges tell."""
        meet = _meet(self.rows, other.rows) and _meet(self.columns, other.columns)
        return meet or self.leading != other.leading

    def to_json(self) -> dict[str, Any]:
        """What the manifest says; of leading axes only where there are several, as versions before there were do."""
        said = {own.name: getattr(self, own.name) for own in fields(self)}
        return said if self.leading > 1 else {name: own for name, own in said.items() if name != "leading"}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Parameter:
        ranges = {name: fields.get(name) for name in ("rows", "columns")}
        return cls(**{**fields, **{name: None if own is None else (own[0], own[1]) for name, own in ranges.items()}})


def as_matrix(shape: Sequence[int], leading: int = 1) -> tuple[int, int | None]:
    """Rows and columns of a parameter: so many of its axes are flattened into rows, the others into columns; no columns
    of a vector or a number.
    """
    if len(shape) < 2:
        return prod(shape), None
    return prod(shape[:leading]), prod(shape[leading:])


def of_shape(kept: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """What an optimizer keeps of a parameter: of the parameter's shape, or one number for all of it, float64[]."""
    if kept.shape == tuple(shape):
        return kept
    return kept.reshape(()) if kept.size == 1 else np.broadcast_to(kept, tuple(shape))


def whole(blocks: Sequence[Parameter], shape: Sequence[int]) -> bool:
    """Whether blocks are together all of their parameter, which has that shape."""
    if any(block.rows is None and block.columns is None for block in blocks):
        return True
    covered = np.zeros(tuple(shape), dtype=np.bool_)
    for block in blocks:
        block.put(covered, True)
    return bool(covered.all())


def _said(numbers: Range | None) -> str:
    return ":" if numbers is None else f"{numbers[0]}:{numbers[1]}"


def _meet(one: Range | None, other: Range | None) -> bool:
    return one is None or other is None or (one[0] < other[1] and other[0] < one[1])


@dataclass(frozen=True)
class StoredOptimizer:
    """One of those that trained the network."""

    name: str
    """Of its class."""
    rule: str
    """The update rule that it follows; "" where none is known, so that weights cannot be rebuilt."""
    reason: str
    """Why there is no rule, where there is none."""
    blocks: tuple[str, ...] = ()
    """Names of the parameter blocks that it updates; of the first optimizer they are not listed: all others."""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "blocks": list(self.blocks)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> StoredOptimizer:
        return cls(fields["name"], fields["rule"], fields["reason"], tuple(fields["blocks"]))


def names_of(optimizers: Sequence[StoredOptimizer]) -> str:
    """What they are called together: "SGD and AdamW"."""
    *others, last = dict.fromkeys(optimizer.name for optimizer in optimizers)
    return f"{', '.join(others)} and {last}" if others else last


def for_one(optimizers: Sequence[StoredOptimizer]) -> dict[str, str]:
    """What memory.json says of them where it names one optimizer.

    Of several it is none that a version of dualform would follow that knows of one alone.
    """
    first, *others = optimizers
    if not others:
        return {"name": first.name, "rule": first.rule, "reason": first.reason}
    reason = "several optimizers updated the network: attention scores are exact, a later dualform rebuilds weights"
    return {"name": names_of(optimizers), "rule": "", "reason": reason}


def joined_optimizers(runs: Sequence[Sequence[StoredOptimizer]]) -> list[StoredOptimizer]:
    """Those of several runs of one training: a block that is not updated by one rule throughout has none."""
    named = dict.fromkeys(block for optimizers in runs for other in optimizers[1:] for block in other.blocks)
    found: dict[StoredOptimizer, list[str]] = {_joined([optimizers[0] for optimizers in runs]): []}
    for block in named:
        each = [next((own for own in optimizers[1:] if block in own.blocks), optimizers[0]) for optimizers in runs]
        found.setdefault(_joined(each), []).append(block)
    first, *others = found.items()
    return [first[0], *(replace(optimizer, blocks=tuple(blocks)) for optimizer, blocks in others)]


def _joined(runs: Sequence[StoredOptimizer]) -> StoredOptimizer:
    """One optimizer after another, as one."""
    rules = list(dict.fromkeys(optimizer.rule for optimizer in runs))
    reasons = [optimizer.reason for optimizer in runs if optimizer.reason]
    if len(rules) > 1 and not reasons:
        reasons = [f"the runs follow different update rules: {', '.join(rules)}."]
    name = " then ".join(dict.fromkeys(optimizer.name for optimizer in runs))
    return StoredOptimizer(name, rules[0] if len(rules) == 1 else "", reasons[0] if reasons else "")


Keep: TypeAlias = Literal["samples", "steps"]
KEEPS: tuple[Keep, ...] = ("samples", "steps")
ROWS_OF_A_RANK = 1 << 32
"""The rows of a batch are numbered over all ranks: row b of rank r is r times this many, plus b."""

_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class Sampling:
    """The rule by which the slots of one run are sampled."""

    keep: Keep
    """What has a lot: each sample of a step, with all of its slots in all layers; or each step."""
    seed: int
    budget: int
    """Bytes that this process may take on disk."""

    def lots(self, step: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[n], each at least 0 and below 1: the lots of some rows of a step of the training. Rows are those of
        all ranks; slots whose row is not known share the lot of row -1.
        """
        of_step = _mixed(_mixed(np.zeros(1, np.uint64), self.seed), step)
        drawn = of_step if self.keep == "steps" else _mixed(of_step, rows)
        found: NDArray[np.float64] = (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return np.broadcast_to(found, len(rows))

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def _mixed(state: NDArray[np.uint64], number: int | NDArray[np.int64]) -> NDArray[np.uint64]:
    """uint64[n]. Arrays of unsigned integers wrap around in silence."""
    given = np.asarray(number % (1 << 64), np.uint64) if isinstance(number, int) else number.astype(np.uint64)
    z: NDArray[np.uint64] = (state ^ given) + _STRIDE
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


VALUE_SOURCES = tuple(name for name, own in FORMATS.items() if own.holds_values)
"""The key sources whose form values have, too."""


class ValueFormat:
    """Values are handed over as float32[n, d_out], and every question reads them so."""

    def __init__(self, source: str, d_out: int) -> None:
        """`source`: one of VALUE_SOURCES."""
        self._rows = FORMATS[source](d_out, {})
        *halves, _ = self._rows.forms
        # Both kinds of file are NumPy's: the name of the one of halves says what they are.
        halves = [replace(form, suffix=f"{source}.npy") for form in halves]
        self.forms: Sequence[MatrixForm] = (*halves, npy("<f4", d_out))
        """The forms that files of values have. The last one holds any values, the one before it some."""

    def encoded(self, values: NDArray[Any], form: MatrixForm) -> NDArray[Any] | None:
        """Values as rows of a form; None where it cannot hold them to the bit."""
        return self._rows.encoded(np.ascontiguousarray(values, dtype=np.float32), form)

    def source(self, stored: StoredRows) -> KeySource:
        """The values that stored rows, of any of the forms, stand for."""
        return self._rows.source(stored)


PRECISIONS = ("bfloat16", "float16", "float32")
"""What a layer is computed in, the coarsest first."""


_LONGEST_FOLDER = 236
"""Bytes of a folder's name, so that names of files that begin and end otherwise fit into 255."""


def layer_folder(name: str) -> str:
    """The name of a layer's folder: the layer's own, escaped where a file system could not hold it, or take it for
    another folder. That of a long name ends in the name's checksum.
    """
    quoted = quote(name, safe="")
    if len(quoted) > _LONGEST_FOLDER:
        return f"{quoted[:200]}%.{checksum(name.encode())}"
    return "%2E" * len(name) if name in (".", "..") else quoted or "%"


def affine(d_in: int, weight: str, bias: str | None) -> tuple[Parameter, ...]:
    """The parameters of a layer with one weight [d_out, d_in] and at most one bias [d_out]."""
    whole = Parameter(weight, 0, d_in)
    return (whole,) if bias is None else (whole, Parameter(bias, d_in, d_in + 1))


@dataclass(frozen=True)
class Layer:
    """One layer of the recorded model, under the name the model gives its module."""

    name: str
    space: str
    """The slot space that its slots belong to."""
    d_in: int
    """Width of a key, without the 1 that stands for the bias."""
    d_out: int
    parameters: tuple[Parameter, ...]
    """Weights in the order of their columns, then biases."""
    source: str = "rows"
    """How its keys are stored, by the name of a format of sources/; docs/format.md has a table of them."""
    repeats: bool = False
    """Whether the layer's inputs repeat (raw data), so that each distinct key is stored once."""
    values: bool = True
    """Whether error signals are stored."""
    dtype: str = "float32"
    """What the training computed in: one of PRECISIONS."""
    reason: str = ""
    """Why values are not stored, where it is the kind of layer that has none."""
    geometry: Geometry = field(default_factory=dict, hash=False)
    """What the key source has to know beyond d_in, by name; integers."""
    groups: int = 1
    """Of how many blocks along its diagonal W consists, all of one size and in order. A weight then has the columns of
    one block, d_in / groups, and the blocks under one another.
    """
    batch_dim: int = 0
    """Which axis of its keys was the batch, in the training, where they had tokens."""

    value_source: str = "rows"
    """How its values are stored: one of VALUE_SOURCES."""
    deleted: int = 0
    """How many of its slots were taken out of the memory (manifest.py)."""
    sampled: bool = False
    """Whether the recorder held a budget, so that its slots may be a sample."""

    @property
    def stored(self) -> Layer:
        """The layer that is on disk: itself, unless it is a view."""
        return self

    @property
    def own_keys(self) -> slice:
        """The columns of the stored layer's keys that are its own."""
        return slice(0, self.d_in)

    @property
    def own_values(self) -> slice:
        """Likewise of values, and so the rows of its weights."""
        return slice(0, self.d_out)

    def log_name(self, block: str) -> str:
        """What logs call a block that the layer calls by this name."""
        return block

    @property
    def view_names(self) -> tuple[str, ...]:
        """What may be asked in place of the layer: each of its groups, by number (stored_layers.py)."""
        numbers = map(str, range(self.groups if self.groups > 1 else 0))
        return tuple(f"{self.name}.{number}" if self.name else number for number in numbers)

    @property
    def weight_width(self) -> int:
        """Columns of a weight that has all of them."""
        return self.d_in // self.groups

    @cached_property
    def key_format(self) -> KeyFormat:
        """How its keys are stored. Raises BadInput for a layer whose keys have no such form."""
        if self.source not in FORMATS:
            raise BadInput(
                f"layer {self.name!r} has no key source {self.source!r}.", hint=f"Key sources: {', '.join(FORMATS)}."
            )
        try:
            return FORMATS[self.source](self.d_in, self.geometry)
        except (ValueError, TypeError) as error:
            raise BadInput(f"layer {self.name!r}: {error}", field="layers") from None

    @cached_property
    def value_format(self) -> ValueFormat:
        """How its values are stored."""
        return ValueFormat(self.value_source, self.d_out)

    @cached_property
    def keys(self) -> bool:
        """Whether keys can be read."""
        return bool(self.key_format.forms)

    @property
    def weights(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.start < self.d_in)

    @property
    def biases(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.start == self.d_in)

    @property
    def folder(self) -> str:
        """The folder's name: the layer's own, escaped where a file system could not hold it."""
        return layer_folder(self.name)

    def to_json(self) -> dict[str, Any]:
        """What the manifest says; what it does not say means what it did before there was such a thing."""
        said = {own.name: getattr(self, own.name) for own in fields(self)}
        said["forgotten"] = said.pop("deleted")  # as format 2 calls it
        said["parameters"] = [block.to_json() for block in self.parameters]
        later = {"geometry": {}, "groups": 1, "batch_dim": 0, "value_source": "rows", "forgotten": 0, "sampled": False}
        return {name: own for name, own in said.items() if name not in later or own != later[name]}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Layer:
        """The layer that `to_json` described. Raises NotAMemory for what only a later version can have written."""
        fields = {"deleted" if name == "forgotten" else name: own for name, own in fields.items()}
        unread = sorted(fields.keys() - cls.__dataclass_fields__.keys())
        geometry = fields.get("geometry", {})
        if fields["source"] not in FORMATS:
            unread.append(f"source {fields['source']!r}")
        elif geometry.keys() - FORMATS[fields["source"]].geometry_names:
            unread.append(f"geometry {', '.join(sorted(geometry))}")
        if fields.get("value_source", "rows") not in VALUE_SOURCES:
            unread.append(f"value source {fields['value_source']!r}")
        said = {name for block in fields["parameters"] for name in block}
        unread += sorted(said - Parameter.__dataclass_fields__.keys())
        if unread:
            raise NotAMemory(
                f"layer {fields['name']!r} has {', '.join(unread)}, which this version of dualform does not read.",
                hint="Upgrade dualform: pip install --upgrade dualform.",
            )
        given = {name: tuple(numbers) for name, numbers in geometry.items()}
        parameters = tuple(map(Parameter.from_json, fields["parameters"]))
        layer = cls(**{**fields, "parameters": parameters, "geometry": given})
        try:
            layer.key_format  # noqa: B018  asked for what it raises
        except BadInput as error:
            raise NotAMemory(error.message) from None
        return layer
