"""Ledgers of a training that is run again: what it has is recorded meanwhile, and goes once they are made.

What a slot did to a loss takes its error signal, its key and what the optimizer made of both in every later update. So
the second training is written as any other, with keys and values, to a temporary folder, and is walked through there
(influence/walk.py): the ledgers are those of a memory that had stored the keys, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from shutil import disk_usage, rmtree
from tempfile import gettempdir, mkdtemp
from weakref import finalize

from torch import nn

from dualform.answers import Ledger
from dualform.errors import BadInput
from dualform.influence.fits import check_room, count_examples
from dualform.influence.groups import groups_of_layers
from dualform.influence.influence import Influence
from dualform.influence.walk import ledger
from dualform.query.view import View, never
from dualform.record.wrappers import whole_model
from dualform.store.byte_counts import readable
from dualform.store.header import Header
from dualform.store.snapshot import Snapshot
from dualform.store.writer import Writer


class SecondRecording:
    """Of the whole training, for the influences that are followed through it."""

    def __init__(
        self, view: View, model: nn.Module, influences: Sequence[Influence], folder: str | PathLike[str] | None
    ) -> None:
        """`view`: of the memory of the first training. `folder`: where there is room for keys and values; the system's
        own for temporary files where None.

        Raises BadInput for a model, labels, a loss or columns that do not fit, for sums that the machine has no memory
        for, and where the disk has no room for keys and values.
        """
        self._model, self._influences = whole_model(model), influences
        for influence in influences:
            examples = count_examples(self._model, influence)
            groups, *_ = groups_of_layers(view, view.snapshot.layers, tuple(influence.by), never)
            check_room(len(groups), examples, influence)
        self._folder = Path(gettempdir() if folder is None else folder)
        _check_disk(view.snapshot, self._folder)
        self._path = Path()
        self._ledgers: list[Ledger] | None = None

    def writer(self, header: Header) -> Writer:
        """What takes the batches. Its folder goes with the ledgers, or with this object."""
        place = mkdtemp(dir=self._folder, prefix="dualform-rerun-")
        self._remove = finalize(self, rmtree, place, ignore_errors=True)
        self._path = Path(place) / "memory"
        return Writer(replace(header, path=self._path))

    def ledgers(self) -> list[Ledger]:
        """One for each influence, once the training has come to its end. What was recorded goes with the first call.

        Raises Inexact where a layer cannot be rebuilt from what was recorded.
        """
        if self._ledgers is None:
            try:
                self._ledgers = [ledger(self._path, self._model, influence) for influence in self._influences]
            finally:
                self._remove()
        return self._ledgers


def _check_disk(memory: Snapshot, folder: Path) -> None:
    if not folder.is_dir():
        raise BadInput(
            f"{folder} is not a folder.", hint="Pass an existing folder: Rerun(…, folder=…).", field="folder"
        )
    needed = sum(4 * memory.entries(layer.name).count * (layer.d_in + layer.d_out) for layer in memory.layers.values())
    free = disk_usage(folder).free
    if needed > free:
        raise BadInput(
            f"An Influence needs up to {readable(needed)} for keys and values, but {folder} has {readable(free)} free.",
            hint="Pass a folder with enough room: Rerun(…, folder=…).",
            field="folder",
        )
