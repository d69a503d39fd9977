"""What a training of the paper's would take, in bytes and seconds, with keys stored and with it run again.

`dualform.estimate` measures a training that is at hand; this is arithmetic on one that is not. For T slots, layers of
widths d and n queries: stored keys are T * d numbers a layer, float32 or half of that; a rerun keeps T rows of slot
columns and two digests a step and layer, trains twice, and scores every key on its way past.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dualform.errors import BadInput

SLOT_BYTES = 12
"""Of a slot's columns in DuckDB, about, compressed."""
DIGEST_BYTES = 48
"""Of a step's digests of one layer, about."""
PRODUCT_SECONDS = 1e-9
"""For one number of a key and one of a query, about, on one core."""


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
    def rerun_bytes(self) -> int:
        """On disk, with the training run again."""
        return self.table_bytes + self.digest_bytes

    @property
    def store_seconds(self) -> float:
        """A disk that writes fewer bytes a second than `key_bytes / training_seconds` makes it longer."""
        return self.training_seconds + self.answer_seconds

    @property
    def rerun_seconds(self) -> float:
        return 2 * self.training_seconds + self.answer_seconds


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
