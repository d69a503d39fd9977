"""What a budget keeps of a step: whole samples, with all of their slots in all layers.

Rows are numbered anew, in their order, so that what is left lies as if the batch had had no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualform.errors import BadInput
from dualform.store.batch import Array, Batch, Extent, LayerRows, SpaceShare
from dualform.store.sampling import ROWS_OF_A_RANK, Sampling
from dualform.store.tables import SHARE

Stays: TypeAlias = NDArray[np.bool_]
UNKNOWN_ROW = -1


def with_share(batch: Batch, share: float) -> Batch:
    """The batch, its samples with the probability that they were kept with."""
    count = len(next(iter(batch.samples.values())))
    unknown = None if batch.unknown is None else {**batch.unknown, SHARE: share}
    return replace(batch, samples={**batch.samples, SHARE: np.full(count, share)}, unknown=unknown)


def sampled(batch: Batch, spaces: Mapping[str, str], rule: Sampling, share: float, step: int, rank: int) -> Batch:
    """The slots whose lots lie under a share, 0.0 for none. `spaces`: that of each layer; `step`: of all runs."""
    rows = np.arange(len(next(iter(batch.samples.values()))))
    drawn = rule.lots(step, np.append(rows + rank * ROWS_OF_A_RANK, UNKNOWN_ROW)) < share
    stays, unknown = drawn[:-1], bool(drawn[-1])
    chosen = {(extent.space, extent.call): _slots_of(extent, stays, unknown) for extent in batch.extents}
    shares: dict[str, SpaceShare] = {}
    for extent in batch.extents:
        before = shares.get(extent.space, SpaceShare(extent.space, share, 0, 0))
        kept = int(chosen[extent.space, extent.call].sum())
        shares[extent.space] = replace(before, slots=before.slots + extent.slots, kept=before.kept + kept)
    return replace(
        batch,
        samples={name: column[stays] for name, column in batch.samples.items()},
        extents=[_extent(extent, chosen[extent.space, extent.call], stays) for extent in batch.extents],
        layers={
            name: [_rows(part, chosen[spaces[name], part.call]) for part in parts]
            for name, parts in batch.layers.items()
        },
        unknown=batch.unknown if unknown else None,
        shares=list(shares.values()),
    )


def _slots_of(extent: Extent, stays: Stays, unknown: bool) -> Stays:
    """bool[n]: which of an extent's slots stay."""
    if extent.row is None:
        return np.repeat(stays[: extent.rows], 1 if extent.length is None else extent.length)
    return np.append(stays, unknown)[extent.row]  # row -1 is the last


def _extent(extent: Extent, chosen: Stays, stays: Stays) -> Extent:
    row = None if extent.row is None else extent.row[chosen]
    if row is not None:
        numbers = np.append(np.cumsum(stays) - stays, UNKNOWN_ROW).astype(np.int32)
        row = numbers[row]
    return replace(
        extent,
        rows=int(stays[: extent.rows].sum()),
        row=row,
        position=None if extent.position is None else extent.position[chosen],
        columns={name: column[chosen] for name, column in extent.columns.items()},
    )


def _rows(part: LayerRows, chosen: Stays) -> LayerRows:
    values = None if part.values is None else part.values[chosen]
    return replace(part, keys=_keys(part.keys, chosen), values=values)


def _keys(keys: Array, chosen: Stays) -> Array:
    """A stored key stands for as many slots as any other, those that follow one another."""
    found: Array = keys[chosen if len(keys) == len(chosen) else chosen.reshape(len(keys), -1)[:, 0]]
    return found


def check_keys(batch: Batch, spaces: Mapping[str, str]) -> None:
    """Raises BadInput where one stored key stands for slots of several samples. `spaces`: that of each layer."""
    extents = {(extent.space, extent.call): extent for extent in batch.extents}
    for layer, parts in batch.layers.items():
        for part in parts:
            extent = extents[spaces[layer], part.call]
            if len(part.keys) != extent.slots and not _of_single_rows(len(part.keys), extent):
                raise BadInput(
                    f"layer {layer!r} stores one key for several samples, so single samples cannot be kept.",
                    hint='Keep whole steps: Recorder(…, keep="steps").',
                    field="keep",
                )


def _of_single_rows(keys: int, extent: Extent) -> bool:
    """Whether each of so many stored keys, which stand for an extent's slots in their order, is of one row alone."""
    if extent.row is None:
        return extent.rows == 0 or keys % extent.rows == 0
    rows = extent.row.reshape(keys, -1) if keys else extent.row[None]
    return bool((rows == rows[:, :1]).all())
