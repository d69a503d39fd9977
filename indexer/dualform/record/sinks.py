"""Where recorded batches go: off the training thread into the store's writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dualform.record.writer_thread import WriterThread
from dualform.rules import settings_of
from dualform.store.batch import Batch
from dualform.store.layer import Layer
from dualform.store.writer import Writer

QUEUE_BYTES = 256 << 20
"""How much may wait to be written before the training waits too."""

NO_ARRAYS: Mapping[str, NDArray[Any]] = MappingProxyType({})


@dataclass(frozen=True)
class Header:
    """What a memory says of its training before the first batch."""

    path: Path
    layers: Sequence[Layer]
    skipped: Mapping[str, str]
    """Layers that are not recorded, and why; those that no step has reached yet among them."""
    optimizer: str
    rule: str
    """The update rule that the optimizer follows; "" where none is known."""
    reason: str
    """Why there is no rule; empty where there is one."""
    initial: Mapping[str, NDArray[Any]]
    """The model's state dict before the first step."""
    momentum: Mapping[str, NDArray[Any]]
    """Momentum buffers that existed by then, by parameter name."""
    label_names: Mapping[str, Sequence[str]]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Further names of recorded parameters in the state dict -> the name they are recorded under."""


class Sink(Protocol):
    """Takes what a recorder records. Any method may raise what went wrong with an earlier one."""

    def check(self) -> None:
        """Raises what went wrong by now."""

    def put(self, batch: Batch) -> None:
        """Take a batch; may return before it is written."""

    def flush(self) -> None:
        """Returns once everything put is durable."""

    def add_probe(
        self,
        name: str,
        queries: Mapping[str, NDArray[np.float32]],
        labels: NDArray[np.int64] | None,
        outputs: NDArray[np.float32] | None,
    ) -> None:
        """Store a probe. Raises BadInput for a name that is taken."""

    def close(
        self,
        final: Mapping[str, NDArray[Any]],
        finished: bool,
        skipped: Mapping[str, str],
        buffers: Mapping[str, NDArray[Any]] = NO_ARRAYS,
    ) -> None:
        """Store the final weights; everything is durable on return. `finished`: the training came to its end;
        `skipped`: the layers that were never recorded, and why; `buffers`: the optimizer's, by parameter name.
        """


class StoreSink:
    """Feeds the store's writer from a thread of its own."""

    def __init__(self, header: Header, queue_bytes: int = QUEUE_BYTES) -> None:
        """Creates the memory. Raises AlreadyExists, and whatever else the writer meets."""
        self._thread = WriterThread(queue_bytes)
        try:
            self._thread.do(lambda: self._create(header))
        except BaseException:
            self._thread.stop()
            raise

    def _create(self, header: Header) -> None:
        self._writer = Writer(
            header.path,
            layers=header.layers,
            skipped=header.skipped,
            optimizer=header.optimizer,
            rule=header.rule,
            reason=header.reason,
            initial=header.initial,
            momentum=header.momentum,
            label_names=header.label_names,
            aliases=header.aliases,
            settings=settings_of(header.rule),
        )
        self._thread.when_idle = self._writer.tick

    def check(self) -> None:
        self._thread.check()

    def put(self, batch: Batch) -> None:
        self._thread.put(lambda: self._writer.append(batch), bytes_of(batch))

    def flush(self) -> None:
        self._thread.do(self._writer.commit)

    def add_probe(
        self,
        name: str,
        queries: Mapping[str, NDArray[np.float32]],
        labels: NDArray[np.int64] | None,
        outputs: NDArray[np.float32] | None,
    ) -> None:
        self._thread.do(
            lambda: self._writer.add_probe(name, queries=queries, labels=labels, outputs=outputs), fatal=False
        )

    def close(
        self,
        final: Mapping[str, NDArray[Any]],
        finished: bool,
        skipped: Mapping[str, str],
        buffers: Mapping[str, NDArray[Any]] = NO_ARRAYS,
    ) -> None:
        def close() -> None:
            self._writer.manifest.skipped = dict(skipped)
            self._writer.set_final(final, buffers)
            self._writer.close(finished=finished)

        try:
            self._thread.do(close)
        except BaseException:
            self._thread.stop()
            self._writer.abandon()
            raise
        self._thread.stop()


def bytes_of(batch: Batch) -> int:
    """The memory a batch holds on to."""
    rows = sum(
        part.keys.nbytes + (0 if part.values is None else part.values.nbytes)
        for parts in batch.layers.values()
        for part in parts
    )
    lists = [array for extent in batch.extents for array in (extent.row, extent.position, *extent.columns.values())]
    return rows + sum(array.nbytes for array in (*batch.samples.values(), *lists) if array is not None)
