"""Where the batches of a training that is run again go: checked against the first run, asked, and let go or written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from dualform.record.key_form import KeyForm
from dualform.rerun.first_training import FirstTraining
from dualform.rerun.window import KeyBuffer
from dualform.store.batch import Batch
from dualform.store.header import Ending, Header
from dualform.store.previews.preview_set import PreviewSet
from dualform.store.query_sets import QuerySetArrays
from dualform.store.writer import Writer


class RerunSink:
    """Stands where the store's writer does."""

    def __init__(
        self,
        header: Header,
        first: FirstTraining,
        buffers: Sequence[KeyBuffer],
        forms: Mapping[str, KeyForm],
        writer: Writer | None,
    ) -> None:
        """`buffers`: of the layers and views that are asked; `forms`: how the keys of each layer lie. `writer`: of a
        second recording, where one is made; else nothing is written.

        Raises RecordingError where another training starts.
        """
        first.check_start(header)
        self._first, self._buffers, self._forms, self._writer = first, buffers, forms, writer
        self.complete = False
        """Whether the whole training was run again."""

    def append(self, batch: Batch) -> None:
        """Raises RecordingError for a step that is not the first training's."""
        self._first.check(batch)
        for name, calls in batch.layers.items():
            buffers = [buffer for buffer in self._buffers if buffer.stored == name]
            for rows in calls if buffers else ():
                for _, keys in self._forms[name].blocks(torch.from_numpy(rows.keys)):
                    for buffer in buffers:
                        buffer.append(keys.numpy())
        if self._writer is not None:
            self._writer.append(batch)

    def tick(self) -> None:
        """Nothing falls due: what is written need not outlive a crash."""

    def commit(self) -> None:
        """There is nothing to make durable."""

    def add_query_set(self, query_set: QuerySetArrays) -> None:
        """The first run has stored it."""

    def add_preview_set(self, dataset: str | None, preview_set: PreviewSet, most_bytes: int | None = None) -> None:
        """As of query sets."""

    def close(self, ending: Ending) -> None:
        """Raises RecordingError where the second run stopped early."""
        if not ending.finished:
            self.abandon()
            return
        self._first.check_end(ending if self._writer is not None else None)
        for buffer in self._buffers:
            buffer.finish()
        if self._writer is not None:
            self._writer.close(ending)
        self.complete = True

    def abandon(self) -> None:
        """What a second recording wrote is of no use."""
        if self._writer is not None:
            self._writer.abandon()
