"""Where the batches of a training that is run again go: checked against the first run, asked, and let go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from dualform.record.key_form import KeyForm
from dualform.replay.first_training import FirstTraining
from dualform.replay.window import Gatherer
from dualform.store.batch import Batch
from dualform.store.header import Ending, Header
from dualform.store.probes import ProbeArrays


class ReplaySink:
    """Stands where the store's writer does, and writes nothing."""

    def __init__(
        self, header: Header, first: FirstTraining, gatherers: Sequence[Gatherer], forms: Mapping[str, KeyForm]
    ) -> None:
        """`gatherers`: of the layers and views that are asked; `forms`: how the keys of each layer lie.

        Raises RecordingError where another training starts.
        """
        first.check_start(header)
        self._first, self._gatherers, self._forms = first, gatherers, forms
        self.complete = False
        """Whether the whole training was run again."""

    def append(self, batch: Batch) -> None:
        """Raises RecordingError for a step that is not the first training's."""
        self._first.check(batch)
        for name, calls in batch.layers.items():
            gatherers = [gatherer for gatherer in self._gatherers if gatherer.stored == name]
            for rows in calls if gatherers else ():
                for _, keys in self._forms[name].blocks(torch.from_numpy(rows.keys)):
                    for gatherer in gatherers:
                        gatherer.append(keys.numpy())

    def tick(self) -> None:
        """Nothing falls due."""

    def commit(self) -> None:
        """There is nothing to make durable."""

    def add_probe(self, probe: ProbeArrays) -> None:
        """The first run has stored it."""

    def close(self, ending: Ending) -> None:
        """Raises RecordingError where the second run stopped early."""
        if not ending.finished:
            return
        self._first.check_end()
        for gatherer in self._gatherers:
            gatherer.finish()
        self.complete = True

    def abandon(self) -> None:
        """There is nothing to let go of."""
