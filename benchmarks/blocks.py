"""A layer's keys and values, slot block by slot block, in float64. Shapes: b slots of a block, d_in, d_out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dualform.store.snapshot import Snapshot

BLOCK = 8192


def key_value_blocks(
    memory: Snapshot, layer: str, stays: NDArray[np.bool_]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]]:
    """Slots int64[b] that stay, their keys float32[b, d_in] and values float32[b, d_out]."""
    keys, values = memory.keys(layer), memory.values(layer)
    for start in range(0, len(stays), BLOCK):
        stop = min(start + BLOCK, len(stays))
        own = stays[start:stop]
        if own.any():
            yield np.flatnonzero(own) + start, keys.entry_block(start, stop)[own], values.block(start, stop)[own]


def sgd_coefficients(memory: Snapshot, parameter: str) -> NDArray[np.float64]:
    """float64[steps]: what each step's gradient counts for in the final weights, measured factor included.

    The recurrence of SGD with momentum, written out: v = m v + c g, w = w - lr v. Raises ValueError where the training
    used more than that.
    """
    groups = memory.table("parameter_groups").to_pandas().query("group == 0").sort_values("step")
    if groups[["dampening", "weight_decay"]].to_numpy().any() or groups[["nesterov", "maximize"]].to_numpy().any():
        raise ValueError("the benchmark's own recurrence knows SGD with momentum alone")
    factors = memory.table("factors").to_pandas()
    own = factors[factors["parameter"] == parameter].sort_values("step")
    if not np.array_equal(own["step"], groups["step"]) or not np.array_equal(own["step"], np.arange(len(own))):
        raise ValueError("the benchmark's own recurrence wants an update at every step")
    rate, momentum = groups["lr"].to_numpy(), groups["momentum"].to_numpy()
    ahead, found = 0.0, np.empty(len(rate))
    for step in reversed(range(len(rate))):
        # What velocity at this step adds to the weights from here to the end: lr_s + m_{s+1} (lr_{s+1} + ...).
        ahead = rate[step] + (momentum[step + 1] * ahead if step + 1 < len(rate) else 0.0)
        found[step] = -ahead
    found *= own["factor"].to_numpy(dtype=np.float64)
    return found
