"""Where the batches of a training that is run again go: checked against the first run, asked, and let go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.record.sinks import NO_ARRAYS, QUEUE_BYTES, Header, bytes_of
from dualform.record.writer_thread import WriterThread
from dualform.replay.first_training import FirstTraining
from dualform.replay.window import Gatherer
from dualform.store.batch import Batch


class ReplaySink:
    """Works on a thread of its own, as the store's sink does. Writes nothing."""

    def __init__(self, header: Header, first: FirstTraining, gatherers: Mapping[str, Gatherer]) -> None:
        """`gatherers`: by layer, of those that are asked. Raises RecordingError where another training starts."""
        first.check_start(header)
        self._first, self._gatherers = first, gatherers
        self._thread = WriterThread(QUEUE_BYTES)
        self.complete = False
        """Whether the whole training was run again."""

    def check(self) -> None:
        self._thread.check()

    def put(self, batch: Batch) -> None:
        self._thread.put(lambda: self._take(batch), bytes_of(batch))

    def _take(self, batch: Batch) -> None:
        self._first.check(batch)
        for name, calls in batch.layers.items():
            for rows in calls if name in self._gatherers else ():
                self._gatherers[name].append(rows.keys)

    def flush(self) -> None:
        self._thread.do(lambda: None)

    def add_probe(
        self,
        name: str,
        queries: Mapping[str, NDArray[np.float32]],
        labels: NDArray[np.int64] | None,
        outputs: NDArray[np.float32] | None,
    ) -> None:
        """The first run has stored it."""

    def close(
        self,
        final: Mapping[str, NDArray[Any]],
        finished: bool,
        skipped: Mapping[str, str],
        buffers: Mapping[str, NDArray[Any]] = NO_ARRAYS,
    ) -> None:
        """Raises RecordingError where the second run stopped early."""

        def close() -> None:
            self._first.check_end()
            for gatherer in self._gatherers.values():
                gatherer.finish()

        try:
            if finished:
                self._thread.do(close)
                self.complete = True
        finally:
            self._thread.stop()
