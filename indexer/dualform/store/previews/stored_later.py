"""Stores a preview set in a memory whose training is over."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualform.errors import AlreadyExists, BadInput
from dualform.store.durable_files import remove
from dualform.store.folder_lock import folder_lock
from dualform.store.manifest import Manifest
from dualform.store.previews.content import Content
from dualform.store.previews.preview_file import FOLDER, dataset_name, free_name, preview_folder, write_preview_set
from dualform.store.writing_lock import being_written, writing


def store_later(
    path: str | os.PathLike[str],
    dataset: str | None,
    samples: NDArray[np.int64],
    content: Content,
    *,
    replace: bool,
    cut_off: bool,
) -> None:
    """As Preview set.store. It is the last run of the training that gets it, for a later one hides those before."""
    folder, name = Path(path).absolute(), dataset_name(dataset)
    with folder_lock(folder):
        first = Manifest.read(folder)
        places = [folder, *(folder / run.folder for run in first.runs)]
        having = [place for place in places if name in Manifest.read(place).preview_sets]
        if having and not replace:
            whose = f"dataset {name!r}" if name else "samples without a dataset"
            raise AlreadyExists(
                f"{having[-1]} already has a preview set for {whose}.",
                hint="Pass replace=True to replace it.",
            )
        last = places[-1]
        manifest = Manifest.read(last)
        _check_unwritten(last, manifest, cut_off)
        file = free_name(f"{FOLDER}/{preview_folder(name)}", manifest.files)
        mark, entry = write_preview_set(last, file, samples, content)
        before = manifest.preview_sets.get(name)
        manifest.preview_sets[name], manifest.files[file] = entry, mark
        if before is not None:
            del manifest.files[before["file"]]
        manifest.write(last)
        if before is not None:
            remove(last / before["file"])


def _check_unwritten(run: Path, manifest: Manifest, cut_off: bool) -> None:
    """Raises Locked where somebody records into a run's folder, BadInput where that cannot be told."""
    for part in manifest.shards if manifest.recording else ():
        found = writing(run / part.folder)
        if found.going_on:
            raise being_written(run / part.folder, found)
        if found.going_on is None and not cut_off:
            raise BadInput(
                f"The recording in {run} has not ended, and may still be running.",
                hint="If it was cut off, pass cut_off=True.",
                field="path",
            )
