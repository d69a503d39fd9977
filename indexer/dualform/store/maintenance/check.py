"""Checks every checksum, row count and mark of a memory, and finds what does not belong to it.

What lies in a memory's folder and is no part of the memory, by what its manifest names.

Files of others beside it are left alone: only what has a name that dualform gives counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dualform.errors import BadInput, Damaged
from dualform.store.files.durable_files import checksum_file
from dualform.store.files.segment import SegmentCache
from dualform.store.maintenance.attributions import FOLDER as ATTRIBUTIONS, TABLES
from dualform.store.manifest import FILE, Manifest
from dualform.store.previews.stored_previews import FOLDER as PREVIEW_SETS
from dualform.store.reading.runs import opened
from dualform.store.reading.snapshot import Snapshot
from dualform.store.reading.space import Extents
from dualform.store.rows import OWNER
from dualform.store.sources.key_format import KeySource

_FOLDERS = re.compile(r"(shard|run)-\d{5}(-\d+)?")
_WEIGHTS = re.compile(r"(initial|final|buffers|forgotten-\d{5})\.safetensors(\.tmp)?")
_PREVIEW_SET = r"samples-\d{6}\.arrow(\.tmp)?"
_OF_QUERY_SETS = re.compile(rf"((queries|errors|examples|error-keys)-.*|labels|outputs)\.npy(\.tmp)?|{_PREVIEW_SET}")
_OF_PREVIEW_SETS = re.compile(_PREVIEW_SET)
_ATTRIBUTIONS = re.compile(rf"({'|'.join(TABLES)})-.*\.arrow(\.tmp)?")


def leftovers(folder: Path) -> list[Path]:
    """Shards, runs, weights, query sets and preview sets that an interrupted rewriting or a resumed training left
    behind, in order.

    Raises NotAMemory or Damaged as reading the manifest does.
    """
    manifest = Manifest.read(folder)
    named = {part.folder for part in manifest.shards} | {run.folder for run in manifest.runs}
    found = [path for path in folder.iterdir() if _FOLDERS.fullmatch(path.name) and path.name not in named]
    found += [path for path in (folder / f"{FILE}.tmp",) if path.exists()]
    found += [path for path in _within(folder / "weights", _WEIGHTS) if f"weights/{path.name}" not in manifest.files]
    kept = _within(folder / ATTRIBUTIONS, _ATTRIBUTIONS)
    found += [path for path in kept if f"{ATTRIBUTIONS}{path.name}" not in manifest.files]
    for query_set in _within(folder / "probes", re.compile(".*")):
        own = _within(query_set, _OF_QUERY_SETS)
        if query_set.name not in manifest.query_sets and len(own) == len(_within(query_set, re.compile(".*"))):
            found.append(query_set)
        else:
            found += [path for path in own if path.relative_to(folder).as_posix() not in manifest.files]
    for preview_set in _within(folder / PREVIEW_SETS, re.compile(".*")):
        own = _within(preview_set, _OF_PREVIEW_SETS)
        found += [path for path in own if path.relative_to(folder).as_posix() not in manifest.files]
    return sorted(found)


def check_no_links(folder: Path) -> None:
    """Raises BadInput, naming it, for a symbolic link among the files and folders of a memory.

    Removing a link removes nothing that it leads to. Links that are not the memory's own are left alone.
    """
    whole = [path for path in folder.iterdir() if _FOLDERS.fullmatch(path.name)]
    own = [*whole, *(Path(at, name) for path in whole for at, inner, files in os.walk(path) for name in inner + files)]
    own += [folder / FILE, *_within(folder / "weights", _WEIGHTS)]
    own += [folder / ATTRIBUTIONS, *_within(folder / ATTRIBUTIONS, _ATTRIBUTIONS)]
    for parent, names in ((folder / "probes", _OF_QUERY_SETS), (folder / PREVIEW_SETS, _OF_PREVIEW_SETS)):
        each = _within(parent, re.compile(".*"))
        own += [folder / "weights", parent, *each, *(path for one in each for path in _within(one, names))]
    for path in sorted(set(own)):
        if path.is_symlink():
            raise BadInput(
                f"{path} is a symbolic link to {os.readlink(path)}, where deleted samples would stay.",
                hint=f"Replace the link with the folder or file itself: move the target to {path}.",
                field="path",
            )


def _within(folder: Path, names: re.Pattern[str]) -> list[Path]:
    return [path for path in folder.iterdir() if names.fullmatch(path.name)] if folder.is_dir() else []


def next_name(name: str) -> str:
    """The name of the folder that takes the place of a shard's or a run's: never one that was in use before."""
    base, _, number = name.partition("-")[2].partition("-")
    return f"{name.partition('-')[0]}-{base}-{int(number or 0) + 1}"


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
