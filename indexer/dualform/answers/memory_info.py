"""The contents of a memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dualform.answers.columns import Columns, column_of
from dualform.answers.status import Status
from dualform.answers.table import Table, counted
from dualform.errors import BadInput


@dataclass(frozen=True)
class Patches:
    """Which patches of its input a convolution takes: a number for each dimension but the channels'."""

    size: tuple[int, ...]
    """Of its input in training."""
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    """Zeros on each side."""
    dilation: tuple[int, ...]

    @property
    def places(self) -> tuple[int, ...]:
        """How many patches there are along each dimension; the last one varies first in their order."""
        sides = zip(self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple((own + 2 * zeros - far * (k - 1) - 1) // step + 1 for own, k, step, zeros, far in sides)

    def spans(self, place: int) -> tuple[tuple[int, int], ...]:
        """Where one patch starts and stops in the input along each dimension, without the padding."""
        found = []
        for own, k, step, zeros, far, count in reversed(
            list(zip(self.size, self.kernel, self.stride, self.padding, self.dilation, self.places, strict=True))
        ):
            place, number = divmod(place, count)
            start = number * step - zeros
            found.append((max(0, start), min(own, start + far * (k - 1) + 1)))
        return tuple(reversed(found))


@dataclass(frozen=True)
class LayerInfo:
    name: str
    d_in: int
    """The width of a key, without the 1 for the bias."""
    d_out: int
    bias: bool
    space: str
    """The slot space of the layer."""
    slots: int
    distinct_keys: int
    """The number of stored keys: fewer than slots if inputs repeat, and 0 if keys were not stored (see `reason`)."""
    values: bool
    """Whether error signals were stored."""
    status: Status
    """How exact the record is at the end of the training."""
    views: tuple[str, ...] = ()
    """Names of its parts, which can be queried like layers: groups of a convolution; q, k and v of an attention."""

    batch_dim: int = 0
    """The axis of the batch in the layer's inputs."""
    patches: Patches | None = None
    """For a convolution; None for other layers."""

    @property
    def exact(self) -> bool:
        """Whether the record is exact."""
        return self.status.exact

    @property
    def reason(self) -> str:
        """Why the record is not exact, or what limits an exact one; otherwise empty."""
        return self.status.reason


@dataclass(frozen=True)
class QuerySetInfo:
    name: str
    rows: int
    """The number of queries of its first layer: one for each example or, in layers that see tokens, for each token."""
    layers: tuple[str, ...]
    previews: str = ""
    """The kind of its previews: "images", "texts" or "table"; empty without previews."""
    examples: int | None = None
    """The number of examples; None if unknown."""


@dataclass(frozen=True, repr=False)
class MemoryInfo(Table):
    """The contents of a memory, as of one snapshot. Iterating gives its layers."""

    format: int
    """The version of the format on disk (docs/format.md)."""
    snapshot: int
    """The number of commits in the snapshot."""
    recording: bool
    """False once the recorder has ended. It stays True if the training was killed (`cut_off`)."""
    slots: Mapping[str, int]
    """The number of slots by space."""
    steps: int
    """The number of recorded steps."""
    optimizer: str
    """Class names, such as "SGD"."""
    layers: tuple[LayerInfo, ...]
    skipped: Mapping[str, str]
    """Layers that were not recorded, with the reason."""
    datasets: Mapping[str, int]
    """The number of slots by dataset, over all spaces. Slots without a dataset are left out."""
    columns: Mapping[str, Mapping[str, str]]
    """The columns of slots and their DuckDB types, by space."""
    query_sets: tuple[QuerySetInfo, ...]
    cut_off: str = ""
    """One sentence on how far a recording got that did not end; otherwise empty."""
    final: Mapping[str, str] = field(default_factory=dict)
    """The digest of each parameter and buffer at the end of the training; empty if unknown."""
    sampling: str = ""
    """One sentence on how slots were sampled to hold a budget, and the share that was kept; empty if all were."""
    answered_by: str = ""
    """The backend that scores keys, and the compiled loops or why they are missing."""
    previews: Mapping[str, str] = field(default_factory=dict)
    """The kind of previews ("images", "texts" or "table") of each dataset that has some; "" means samples without a
    dataset."""
    output_layer: str | None = None
    """The layer that gives the network's outputs, the default of queries; None if unknown."""

    def require_output_layer(self) -> str:
        """`output_layer`. Raises BadInput if it is not known."""
        if self.output_layer is None:
            names = [layer.name for layer in self.layers]
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise BadInput(
                "which layer gives the network's outputs is not known.",
                hint=f"Pass layer=, one of {', '.join(names[-_NAMED:])}{more}.",
                field="layer",
            )
        return self.output_layer

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[LayerInfo]:
        return iter(self.layers)

    @property
    def rows(self) -> int:
        return len(self.layers)

    def table(self, most: int | None = None) -> Columns:
        """One row for each layer: name, space, widths, slots, whether it has values, and status."""
        layers = self.layers[:most]
        return Columns(
            {
                "layer": column_of([own.name for own in layers]),
                "space": column_of([own.space for own in layers]),
                "d_in": column_of([own.d_in for own in layers]),
                "d_out": column_of([own.d_out for own in layers]),
                "slots": column_of([own.slots for own in layers]),
                "values": column_of([own.values for own in layers]),
                "status": column_of([str(own.status) for own in layers]),
            }
        )

    def title(self) -> str:
        state = "still recording" if self.recording and not self.cut_off else self.cut_off
        slots = [counted(count, f"{space} slot") for space, count in self.slots.items()]
        said = (counted(len(self.layers), "layer"), f"{counted(self.steps, 'step')} of {self.optimizer}", *slots, state)
        parts = [
            f"MemoryInfo: {', '.join(own for own in said if own)}",
            f"query sets: {_first({query_set.name: query_set.rows for query_set in self.query_sets})}",
            f"datasets (slots): {_first(self.datasets)}",
        ]
        skipped = f"{counted(len(self.skipped), 'layer')} not recorded (.skipped)" if self.skipped else ""
        return "; ".join(part for part in (*parts, skipped, self.sampling.rstrip(".")) if part)


def _first(counts: Mapping[str, int]) -> str:
    """The first names, each with its count."""
    shown = [f"{name} ({count:,})" for name, count in [*counts.items()][:_SHOWN_NAMES]]
    more = [f"and {len(counts) - _SHOWN_NAMES:,} more"] if len(counts) > _SHOWN_NAMES else []
    return ", ".join([*shown, *more]) or "none"


_NAMED = 8
"""Layers that a refusal names, the last of them."""
_SHOWN_NAMES = 5
"""Query sets and datasets that a title names."""
