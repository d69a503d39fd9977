"""Whether samples of a trial that came again brought the inputs that they had brought before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dualform.store.layer import Layer
from dualform.store.samples import Samples
from dualform.store.snapshot import Snapshot


def share_of_others(memory: Snapshot, layer: Layer) -> float | None:
    """Of the inputs of a layer, stored once each, that came with samples which had come before: the share that had not
    come before, as augmentation and dropout make them. None where no sample and no input came twice.
    """
    space, entries, per_row = memory.space(layer.space), memory.entries(layer.name), layer.key_format.per_row
    of_entry = memory.keys(layer.name).row_of_entry
    if of_entry is None:
        return None
    inputs = of_entry[::per_row] // per_row
    datapoints = space.spread(np.arange(space.samples.count))[entries.slots_of(np.arange(0, entries.count, per_row))]
    samples = _samples(space.samples)[datapoints]
    known = samples >= 0
    first_datapoint = np.full(space.samples.count, space.samples.count)
    np.minimum.at(first_datapoint, samples[known], datapoints[known])
    again = known & (datapoints > first_datapoint[samples])
    new = np.zeros(len(inputs), dtype=bool)
    new[np.unique(inputs, return_index=True)[1]] = True
    if not again.any():
        return None if new.all() else 0.0
    return float(new[again].mean())


def _samples(samples: Samples) -> NDArray[np.int64]:
    """int64[D]: each datapoint's sample, numbered from 0; -1 where nothing was said."""
    number = dict[tuple[str | None, int], int]()
    said = zip(samples.column("dataset").to_pylist(), samples.column("sample").to_pylist(), strict=True)
    return np.array([-1 if one[1] is None else number.setdefault(one, len(number)) for one in said], dtype=np.int64)
