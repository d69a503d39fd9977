"""Every checksum, row count and mark of a memory, held against its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from dualform.errors import Damaged
from dualform.store.durable import checksum_file
from dualform.store.snapshot import Snapshot

Progress = Callable[[str, int, int], None]
"""(what, done, total), in files."""


def check_memory(path: str | Path, progress: Progress | None = None) -> list[str]:
    """What is wrong with a memory, one sentence each; an empty list where nothing is.

    Raises NotAMemory where the folder is none, or its format is newer.
    """
    try:
        memory = Snapshot.open(path)
    except Damaged as error:
        return [error.message]
    marks = {s.path: s.checksum for segments in memory.segments.values() for s in segments}
    marks |= {memory.path / name: mark.checksum for name, mark in memory.manifest.files.items()}
    problems = []
    for done, (file, expected) in enumerate(marks.items()):
        if progress:
            progress(str(file.relative_to(memory.path)), done, len(marks))
        if checksum_file(file) != expected:
            problems.append(f"{file} was altered: its checksum is not the one that was committed.")
    if progress:
        progress("tables", len(marks), len(marks))
    return problems + _check_counts(memory)


def _check_counts(memory: Snapshot) -> list[str]:
    problems = []
    for space in memory.manifest.spaces:
        slots = memory.column(space, "slot")
        if not np.array_equal(slots, np.arange(len(slots))):
            problems.append(f"the slots of space {space!r} are not numbered 0 to {len(slots) - 1} without a gap.")
    for (layer, kind), segments in memory.segments.items():
        next_row = 0
        for segment in segments:
            if segment.first_row != next_row:
                problems.append(f"{segment.path}: {layer!r} {kind} jump from row {next_row} to {segment.first_row}.")
            next_row = segment.first_row + segment.rows
    for layer in [layer.name for layer in memory.layers.values() if layer.keys]:
        keys = memory.keys(layer)
        if keys.row_of_slot is not None and len(keys.row_of_slot) and keys.row_of_slot.max() >= keys.rows:
            problems.append(f"layer {layer!r}: a slot names key row {keys.row_of_slot.max()} of {keys.rows}.")
    return problems
