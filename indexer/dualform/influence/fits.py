"""Whether a ledger can be made: seen before a training is walked through, or run again."""

from __future__ import annotations

from torch import nn

from dualform.errors import BadInput
from dualform.influence.influence import Influence
from dualform.record.example_signals import SignalPasses, named_tensors
from dualform.store.byte_counts import readable
from dualform.store.machine_memory import memory_bytes

_SUM_BYTES = 8
"""Of a ledger's float64, one for each group and example."""


def count_examples(model: nn.Module, influence: Influence) -> int:
    """How many examples an influence has, once their losses were computed at the model's own weights.

    Raises BadInput for inputs, labels and a loss that do not fit one another or the model, and for a loss that is not
    finite.
    """
    passes = SignalPasses(model, [], {}, influence.examples)
    passes.losses(named_tensors(model))
    return passes.count


def check_room(groups: int, examples: int, influence: Influence) -> None:
    """Raises BadInput where the sums alone would take more than half of the machine's memory."""
    needed, there = _SUM_BYTES * groups * examples, memory_bytes()
    if 2 * needed > there:
        raise BadInput(
            f"influence {influence.name!r} has {examples:,} examples and {groups:,} groups of {', '.join(influence.by)}"
            f": {readable(needed)} of sums; the machine has {readable(there)} of RAM.",
            hint="Follow fewer examples at a time, or group by a column of fewer values.",
            field="influence",
        )
