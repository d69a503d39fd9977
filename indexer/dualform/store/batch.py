"""What a recording hands to the store: a batch a step, the header, and marks.

What one recorded step brings to the store, as plain values.

Shapes: B rows of the step; n slots of one extent; d_in and d_out of a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.store.files.durable_files import checksum, checksum_pieces
from dualform.store.layer import Layer, Sampling, StoredOptimizer
from dualform.store.rows import OtherRow, Others
from dualform.store.tables import SETTINGS, ColumnTypes

Named: TypeAlias = tuple[str, NDArray[Any]]
TOLD = ("watch", "defects", "steps", "parameter_groups", "factors", "rounding_gradients")
"""Tables that may get rows of a step once that is over, as of its update."""


@dataclass(frozen=True)
class Mark:
    """The network and its optimizers once so many steps of a run were taken."""

    step: int
    """How many."""
    weights: str
    """Digest of the model's state dict."""
    buffers: str
    """Digest of what the optimizers keep of recorded parameters."""
    updates: tuple[int, ...]
    """By optimizer, how many updates were measured by then, since the first run began."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """How many rows the tables TOLD had by then, in the shard of the first process."""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "updates": list(self.updates)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Mark:
        return cls(**{**fields, "updates": tuple(fields["updates"])})


@dataclass(frozen=True)
class Cut:
    """How much of a run is part of the memory, where another one went on from one of its marks."""

    steps: int
    rows: Mapping[str, int]
    """As Mark has it: what was told later, of steps before, is no part either."""


@dataclass(frozen=True)
class ContinuedRun:
    """A further run of a training, in a folder inside the memory's own."""

    folder: str
    first_step: int
    """The number of its first step among those of all runs."""
    rows: Mapping[str, int]
    """Of the run before, as Cut has it."""


def cuts(runs: Sequence[ContinuedRun]) -> list[Cut | None]:
    """Of the first run and the further ones; None for the last, which counts whole."""
    starts = [0, *(run.first_step for run in runs)]
    return [*(Cut(run.first_step - start, run.rows) for run, start in zip(runs, starts, strict=False)), None]


def digest_of(arrays: Iterable[Named]) -> str:
    """One checksum over all names and bytes, whatever the order."""
    every = sorted((name, checksum(np.asarray(array, order="C").tobytes())) for name, array in arrays)
    return checksum_pieces(f"{name}:{own}\n".encode() for name, own in every)


def named_buffers(buffers: Mapping[str, Mapping[str, NDArray[Any]]]) -> Iterable[Named]:
    """As BUFFER/PARAMETER."""
    return ((f"{kind}/{name}", array) for name, own in buffers.items() for kind, array in own.items())


Array: TypeAlias = NDArray[Any]

TOLERANCE = 1e-4
"""Largest share of a gradient that may stay unexplained: float32 gradients come out at 1e-7 to 1e-5."""


@dataclass(frozen=True)
class Extent:
    """The slots of one call in one space: consecutive, row after row."""

    space: str
    call: int
    """0, 1, … within the step and space."""
    rows: int
    """B: rows of the batch that this call saw; 0 where rows are not known."""
    length: int | None
    """Positions of each row; None where a slot is a row (keys [B, d])."""
    row: NDArray[np.int32] | None = None
    """int32[n] of each slot where the slots are not regular (a padding mask, routed tokens); -1 where unknown."""
    position: NDArray[np.int64] | None = None
    """int64[n] where it is not i % length."""
    columns: Mapping[str, Array] = field(default_factory=dict)
    """[n] each: what is said of single slots (token columns)."""

    @property
    def slots(self) -> int:
        """n."""
        return len(self.row) if self.row is not None else self.rows * (1 if self.length is None else self.length)


@dataclass(frozen=True)
class Product:
    """How the training rounded the product of one call's errors and keys before it was part of a gradient."""

    dtype: str
    """Of half precision: "bfloat16" or "float16"."""
    copy: int
    """Number, within the step, of the copy of the weights that it was computed with: the products of one are added up
    in its type."""
    place: int
    """Number within the step, in the order in which products were added."""


@dataclass(frozen=True)
class LayerRows:
    """One layer's rows of one extent: all n slots of it. C-contiguous, and nobody writes to them any more."""

    call: int
    keys: Array
    """As the layer's key source takes them (sources/): float32[n, d_in], finite, unless it says otherwise."""
    values: NDArray[np.float32] | None
    """float32[n, d_out]: raw output gradients; None where the recorder keeps no values."""
    product: Product | None = None
    """None where the product was not rounded, as far as is known."""


@dataclass(frozen=True)
class ParameterGroup:
    """The optimizer's settings for one parameter group at one update: those that the update rule names."""

    settings: Mapping[str, float | bool]
    """The first of them is always lr."""
    number: int | None = None
    """Among the groups of all optimizers; None for its place in the log."""


@dataclass(frozen=True, eq=False)
class RoundingGradient:
    """Entries of a bias's gradient that are rounding alone, as the optimizer got them: no slot's part of an update."""

    rows: NDArray[np.int32]
    """int32[r], ascending: entries of the block."""
    gradient: NDArray[np.float64]
    """float64[r]."""


@dataclass(frozen=True)
class Factor:
    """The measured gradient factor c_s of one parameter at one update."""

    parameter: str
    group: int
    """Index of the parameter's group in the optimizer."""
    factor: float | None
    """None where the optimizer skipped the parameter because it had no gradient."""
    residual: float
    """Relative share of the gradient that the recorded slots do not explain."""
    first_step: int | None = None
    """As StepLog has it, where several optimizers have each their own."""
    alone: RoundingGradient | None = None
    """What of the gradient no slot has a part in."""


@dataclass(frozen=True)
class StepLog:
    """What the optimizer did at one recorded step."""

    step: int
    updated: bool
    """False where the step only accumulated gradients."""
    first_step: int | None = None
    """The update used the gradients of the recorded steps first_step to step, both included."""
    groups: tuple[ParameterGroup, ...] = ()
    factors: tuple[Factor, ...] = ()
    more: bool = False
    """Whether another log of this step came before, of other optimizers."""


UNEXPLAINED = "is not in the recorded slots"
"""What the reason of a defect says where it is a part of a gradient."""


@dataclass(frozen=True)
class Defect:
    """What may keep a layer from being rebuilt exactly from `step` on."""

    step: int
    layer: str
    reason: str


@dataclass(frozen=True)
class WatchLog:
    """One parameter after the update of one step. Random R[d_in, 8] for a weight W; a bias is taken as it is.

    The first three are Frobenius norms over sqrt(8) for a weight, plain norms for a bias; all five are absolute.
    """

    step: int
    parameter: str
    one_step: float
    """||W R - what the recurrence makes of the last observed W R||."""
    accumulated: float
    """||W R - rebuilt R||."""
    way: float
    """||(W - W_0) R||."""
    rounding: float
    """The floor that float32's rounding of W sets: the root of the sum over updates of u^2 ||W||_F^2 / 3."""
    noise: float = 0.0
    """What rounding of weights and gradients may account for in `one_step`."""


@dataclass(frozen=True)
class SpaceShare:
    """How many slots of one space a sampled step had."""

    space: str
    share: float
    """With which probability each sample, or the step, was kept."""
    slots: int
    """That the training made."""
    kept: int
    """Of them, that the batch brings."""


@dataclass(frozen=True)
class Batch:
    """The slots and logs of one recorded step."""

    step: int
    samples: Mapping[str, Array]
    """[B] each: dataset, label, sample, then user columns; row b of the step is entry b. Integers, floats, booleans,
    or objects holding texts. NULL is a masked entry, or None in an object array."""
    extents: Sequence[Extent]
    """Ordered by (space, call)."""
    layers: Mapping[str, Sequence[LayerRows]]
    """By layer, ascending by call. A layer is absent from calls that it has no rows for."""
    unknown: Mapping[str, Any] | None = None
    """What is said of slots whose row is not known (scalars only); None where there are none."""
    joined: Sequence[Layer] = ()
    """Layers seen for the first time at this step."""
    logs: list[StepLog] = field(default_factory=list)
    """Logs of steps whose outcome is known by now; not only this step's."""
    defects: list[Defect] = field(default_factory=list)
    watch: list[WatchLog] = field(default_factory=list)
    others: list[OtherRow] = field(default_factory=list)
    shares: Sequence[SpaceShare] = ()
    """By space, where the step was sampled."""
    random_states: Mapping[str, bytes] = field(default_factory=dict)
    """By device, the state of its random number generator when the step began; empty where nobody asked."""
    mark: Mark | None = None
    """How the training stands behind this batch, where it may be resumed there."""

    @property
    def row_bytes(self) -> int:
        """The memory that keys, values and rows of no layer hold on to."""
        rows = [part for parts in self.layers.values() for part in parts]
        own = sum(part.keys.nbytes + (0 if part.values is None else part.values.nbytes) for part in rows)
        return own + sum(row.content.nbytes for row in self.others)

    @property
    def said_bytes(self) -> int:
        """About what the columns of samples and of single slots hold on to."""
        lists = [array for extent in self.extents for array in (extent.row, extent.position, *extent.columns.values())]
        return sum(array.nbytes for array in (*self.samples.values(), *lists) if array is not None)


Arrays: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Header:
    """What is known before the first batch."""

    path: Path
    """The memory's folder."""
    layers: Sequence[Layer]
    optimizer: str
    """The name of its class; of the first one where there are several."""
    rule: str
    """The update rule that it follows; "" where none is known."""
    reason: str
    """Why there is no rule; empty where there is one."""
    initial: Mapping[str, NDArray[Any]]
    """The model's state dict before the first step."""
    buffers: Mapping[str, Arrays] = field(default_factory=dict)
    """What the optimizer kept by then, by parameter and by its own name for it."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Layers that are not recorded, and why; those that no step has reached yet among them."""
    label_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By dataset, the names of labels 0, 1, …"""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Further names of recorded parameters in the state dict -> the name they are recorded under."""
    settings: ColumnTypes = field(default_factory=lambda: SETTINGS)
    """DuckDB types of the settings that the update rules name; others get columns when they are first seen."""
    others: Others | None = None
    """What is kept of parameters and buffers that no slot explains; None for nothing."""
    halved: Mapping[str, str] = field(default_factory=dict)
    """By parameter, "bfloat16" or "float16" where it is of that type and its updates are rounded as the rule rounds."""
    sampling: Sampling | None = None
    """How slots are sampled to hold a budget; None where all are kept."""
    further_optimizers: Sequence[StoredOptimizer] = ()
    """Those that update blocks beside the one named above."""

    @property
    def optimizers(self) -> Sequence[StoredOptimizer]:
        return [StoredOptimizer(self.optimizer, self.rule, self.reason), *self.further_optimizers]


@dataclass(frozen=True)
class Ending:
    """What is known once the training has ended."""

    finished: bool = True
    """Whether it came to its end."""
    final: Mapping[str, NDArray[Any]] | None = None
    """The model's state dict as the training left it."""
    buffers: Mapping[str, Arrays] = field(default_factory=dict)
    """What the optimizer keeps by then, of which checksums are kept."""
    skipped: Mapping[str, str] | None = None
    """The layers that were never recorded, and why; None where that is as it was."""
    mark: Mark | None = None
    """How the training stands, for it may be resumed."""
