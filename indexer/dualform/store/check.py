"""Every checksum, row count and mark of a memory, held against its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dualform.errors import Damaged
from dualform.store.durable_files import checksum_file
from dualform.store.extents import Extents
from dualform.store.leftovers import leftovers
from dualform.store.manifest import FILE, Manifest
from dualform.store.others import OWNER
from dualform.store.runs import opened
from dualform.store.segment_cache import SegmentCache
from dualform.store.snapshot import Snapshot
from dualform.store.sources.key_source import KeySource

Progress = Callable[[str, int, int], None]
"""(what, done, total), in files."""


def check_memory(path: str | Path, progress: Progress | None = None) -> list[str]:
    """What is wrong with a memory, one sentence each; an empty list where nothing is.

    That a recording was cut off is nothing wrong: `how_it_ended` says so. Raises NotAMemory where the folder is
    none, or its format is another.
    """
    problems = what_is_wrong(path, progress)
    try:
        deleted = Manifest.read(Path(path)).deleted
    except Damaged:  # which was said
        return problems
    if deleted:
        problems += [
            f"{left} does not belong to the memory and may hold deleted samples: remove it."
            for left in leftovers(Path(path))
        ]
    return problems


def what_is_wrong(path: str | Path, progress: Progress | None = None) -> list[str]:
    """As `check_memory`, of what the memory consists of alone."""
    try:
        memory = opened(path, SegmentCache(most_bytes=0))
    except Damaged as error:
        return [error.message]
    checks = [*_segments(memory), *(check for run in memory.runs for check in _files(run))]
    problems = []
    for done, (file, verify) in enumerate(checks):
        if progress:
            progress(str(file.relative_to(memory.path)), done, len(checks))
        problems += verify()
    if progress:
        progress("tables", len(checks), len(checks))
    problems += memory.check_tables()
    return problems or _check_counts(memory)


def how_it_ended(path: str | Path) -> str:
    """Where a recording stands that did not come to its end, in a sentence or two; empty if it did, or if it cannot be
    read. Raises as `check_memory`.
    """
    try:
        memory = opened(path, SegmentCache(most_bytes=0))
    except Damaged:
        return ""
    torn = [journal for run in memory.runs for journal in run.contents.torn]
    said = "".join(f" The last frame of {journal} is incomplete and was ignored." for journal in torn)
    return memory.cut_off + said


def _segments(memory: Snapshot) -> Iterator[tuple[Path, Callable[[], list[str]]]]:
    for sources in memory.sources.values():
        for source in sources:
            if source.segment is not None:
                yield source.segment.path, lambda source=source: _read(source)  # type: ignore[misc]


def _read(source: KeySource) -> list[str]:
    try:
        source.verify()
    except Damaged as error:
        return [error.message]
    return []


def _files(memory: Snapshot) -> Iterator[tuple[Path, Callable[[], list[str]]]]:
    for name, mark in memory.manifest.files.items():
        file = memory.path / name
        yield (
            file,
            lambda file=file, mark=mark: (  # type: ignore[misc]
                [] if checksum_file(file) == mark.checksum else [f"{file} was altered: its checksum does not match."]
            ),
        )


def _check_counts(memory: Snapshot) -> list[str]:
    problems = []
    for space in memory.spaces:
        if not _in_order(memory.space(space).extents):
            slots = memory.count(space)
            problems.append(f"the slots of space {space!r} are not numbered 0 to {slots - 1} without a gap.")
    for (layer, kind), sources in memory.sources.items():
        next_row = 0
        for source in sources:
            if source.first_row != next_row:
                whose = "other parameters" if (layer, kind) == OWNER else f"layer {layer!r}"
                problems.append(f"{whose}: its {kind} jump from row {next_row} to {source.first_row}.")
            next_row = source.first_row + source.rows
    for run in memory.runs:
        named = {block.block_name for layer in run.layers.values() for block in layer.parameters}
        logged = run.table("factors")["parameter"].unique().to_pylist()
        if unknown := [name for name in logged if name not in named]:
            problems.append(f"{run.path / FILE} lists updates of the parameter {unknown[0]!r}, which no layer has.")
        try:
            run.initial()
        except Damaged as error:
            problems.append(error.message)
    try:
        _ = memory.others
    except Damaged as error:
        problems.append(error.message)
    for layer in [layer.name for layer in memory.layers.values() if layer.keys]:
        try:
            keys = memory.keys(layer)
        except Damaged as error:
            problems.append(error.message)
            continue
        if keys.row_of_entry is not None and len(keys.row_of_entry) and keys.row_of_entry.max() >= keys.rows:
            problems.append(f"layer {layer!r}: a slot names key row {keys.row_of_entry.max()} of {keys.rows}.")
    return problems


def _in_order(extents: Extents) -> bool:
    return bool(np.array_equal(extents.first_slot, np.cumsum(extents.slots) - extents.slots))
