"""The training that was run first, as the judge of the one that is run again."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import TypeAlias

import numpy as np

from dualform.errors import BadInput, RecordingError
from dualform.store.batch import Batch
from dualform.store.digests import Digest, digests
from dualform.store.header import Ending, Header
from dualform.store.layer import Layer
from dualform.store.snapshot import Snapshot

_HINT = (
    "Run the same script with the same seeds, data, batch order, machine and number of threads; on a GPU also with "
    "torch.use_deterministic_algorithms(True)."
)


Shape: TypeAlias = tuple[str, int, int, str]
"""Name, d_in, d_out and space of a layer."""


class FirstTraining:
    """What a memory without keys says of its training, step by step."""

    def __init__(self, memory: Snapshot) -> None:
        """Raises BadInput for a memory that needs no rerun, or whose training did not come to its end."""
        if any(layer.keys for layer in memory.layers.values()):
            raise BadInput(
                f"{memory.path} stores its keys, so it needs no rerun.",
                hint="Call dualform.open(path), or dualform.ledger(path, model, influence).",
                field="path",
            )
        if memory.deleted:
            raise BadInput(
                f"{memory.path} cannot be rerun: samples were deleted, and a rerun would bring them back.",
                hint="Record the training again without them.",
                field="path",
            )
        if len(memory.manifest.shards) > 1:
            raise BadInput(
                f"{memory.path} was recorded by {len(memory.manifest.shards)} processes; a rerun takes one.",
                hint="Record with keys=True, or train in one process.",
                field="path",
            )
        if memory.recording:
            raise BadInput(
                f"The training recorded in {memory.path} did not end, or still runs.",
                hint="Record it to its end, then rerun it.",
                field="path",
            )
        self._memory, self._steps = memory, memory.steps
        self._spaces = {layer.name: layer.space for layer in memory.layers.values()}
        self._table = memory.table("digests")
        self._step_of_row = self._table["step"].to_numpy()
        self._seen = 0
        self._missing = {_shape(layer) for layer in memory.layers.values()}
        """Layers that the second run has not reached yet."""

    def check_start(self, header: Header) -> None:
        """Raises RecordingError where the second run begins with other layers, or starts from other weights."""
        reached = self._expected(0)
        self._join(header.layers, "step 0", {shape for shape in self._missing if shape[0] in reached})
        first = self._memory.initial()
        for name in [*header.initial, *(name for name in first if name not in header.initial)]:
            if name not in header.initial or name not in first or not np.array_equal(first[name], header.initial[name]):
                raise RecordingError(
                    f"step 0: {name!r} differs from its value at the start of the first training.", hint=_HINT
                )

    def check(self, batch: Batch) -> None:
        """Raises RecordingError, naming step and layer, where a step was not fed what it was fed the first time."""
        self._join(batch.joined, f"step {batch.step}")
        if batch.step >= self._steps:
            raise RecordingError(f"step {batch.step}: the first training ended after {self._steps} steps.", hint=_HINT)
        self._seen = max(self._seen, batch.step + 1)
        if not batch.layers:
            return  # late news of the optimizer
        first, again = self._expected(batch.step), digests(batch, self._spaces)
        for name in self._spaces:
            one, other = first.get(name), again.get(name)
            if one != other:
                raise RecordingError(f"step {batch.step}, layer {name!r}: {_difference(one, other)}.", hint=_HINT)

    def check_end(self, ending: Ending | None = None) -> None:
        """Raises RecordingError where the second run stopped early, or never reached a layer; and where it ended with
        other weights: what a last update is made of stands in no digest. `ending`: None where weights do not count.
        """
        if self._seen < self._steps:
            raise RecordingError(
                f"The second training stopped after {self._seen} of {self._steps} steps.",
                hint="Run all steps inside `with rerun`.",
            )
        self._require(sorted(self._missing), "the end")
        first, again = self._memory.final(), None if ending is None else ending.final
        if first is None or again is None:
            return
        for name in sorted(first.keys() | again.keys()):
            if name not in first or name not in again or not np.array_equal(first[name], again[name], equal_nan=True):
                raise RecordingError(f"The second training ended with a different {name!r}.", hint=_HINT)

    def _join(self, layers: Iterable[Layer], when: str, expected: Set[Shape] = frozenset()) -> None:
        """Take note of layers that the second run reaches.

        Raises RecordingError where the first has no such layer, or where one of those `expected` is not among them.
        """
        joined = {_shape(layer) for layer in layers}
        self._require(sorted((joined - self._missing) | (expected - joined)), when)
        self._missing -= joined

    def _require(self, without: Iterable[Shape], when: str) -> None:
        """Raises RecordingError for the first of some layers that only one run has."""
        for name, d_in, d_out, space in without:
            raise RecordingError(
                f"{when}: layer {name!r} ({d_in} to {d_out}, by {space}) is recorded in only one of the two runs.",
                hint="Rerun the model that was recorded.",
            )

    def _expected(self, step: int) -> dict[str, Digest]:
        low, high = np.searchsorted(self._step_of_row, [step, step + 1])
        rows = self._table.slice(low, high - low).to_pylist()
        return {row["layer"]: Digest(row["keys"], row["columns"]) for row in rows}


def _shape(layer: Layer) -> Shape:
    return layer.name, layer.d_in, layer.d_out, layer.space


def _difference(first: Digest | None, again: Digest | None) -> str:
    if first is None or again is None:
        return "it ran in only one of the two trainings"
    if first.columns != again.columns:
        return "the columns of its slots differ from the first training"
    return "its inputs differ from the first training"
