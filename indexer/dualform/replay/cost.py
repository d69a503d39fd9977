"""What a training's answers will take, in bytes and seconds, with keys stored and with the training run again.

For T slots, layers of widths d and n queries: stored keys are T * d numbers a layer, float32 or half of that; a replay
keeps T rows of slot columns and two digests a step and layer, trains twice, and scores every key on its way past.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dualform.errors import BadInput

SLOT_BYTES = 12
"""Of a slot's columns in DuckDB, compressed: measured 10 with a dataset, random labels and token positions."""
DIGEST_BYTES = 48
"""Of a step's digests of one layer: measured 42 in a table of 100,000."""
PRODUCT_SECONDS = 1e-9
"""For one number of a key and one of a query, on one core: measured 0.4e-9 for the best slots and 0.9e-9 for sums by
position; the best of each of thousands of groups take 5e-9."""


@dataclass(frozen=True)
class Cost:
    """One training and its questions, both ways."""

    slots: int
    key_bytes: int
    """Of the keys, stored; error signals, which outputs and weights need, come on top."""
    table_bytes: int
    """Of the slots' columns, which both ways keep."""
    digest_bytes: int
    training_seconds: float
    """Of one training."""
    answer_seconds: float
    """Of scoring every key with every query, which both ways do once."""

    @property
    def store_bytes(self) -> int:
        """On disk, with keys stored."""
        return self.key_bytes + self.table_bytes

    @property
    def replay_bytes(self) -> int:
        """On disk, with the training run again."""
        return self.table_bytes + self.digest_bytes

    @property
    def store_seconds(self) -> float:
        """A disk that writes fewer bytes a second than `key_bytes / training_seconds` makes it longer."""
        return self.training_seconds + self.answer_seconds

    @property
    def replay_seconds(self) -> float:
        return 2 * self.training_seconds + self.answer_seconds

    def __str__(self) -> str:
        ways = (("store", self.store_bytes, self.store_seconds), ("replay", self.replay_bytes, self.replay_seconds))
        lines = [f"{name:8}{_size(size):>10} on disk{_time(seconds):>14}" for name, size, seconds in ways]
        return "\n".join([f"{self.slots:,} slots", *lines])


def estimate(
    slots: int, layers: Sequence[int], queries: int, steps: int, seconds_per_step: float, number_bytes: int = 4
) -> Cost:
    """What `slots` slots of layers of these widths d_in, recorded over `steps` steps, and `queries` queries to each
    layer will take. `seconds_per_step` is the training's own, measured over some steps; `number_bytes` are those of one
    number of a key, 2 where the layer computes in bfloat16 or float16.

    Raises BadInput for a negative number.
    """
    if min(slots, queries, steps, seconds_per_step, number_bytes, *layers) < 0:
        raise BadInput("a cost is estimated from numbers that are not negative.")
    numbers = slots * sum(layers)
    return Cost(
        slots=slots,
        key_bytes=number_bytes * numbers,
        table_bytes=SLOT_BYTES * slots,
        digest_bytes=DIGEST_BYTES * steps * len(layers),
        training_seconds=steps * seconds_per_step,
        answer_seconds=PRODUCT_SECONDS * numbers * queries,
    )


def _size(size: int) -> str:
    for unit, scale in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size / 1e3:.1f} kB"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
