"""What lies in a memory's folder and is no part of the memory, by what its manifest names.

Files of others beside it are left alone: only what has a name that dualform gives counts.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from dualform.errors import BadInput
from dualform.store.attributions import FOLDER as ATTRIBUTIONS, TABLES
from dualform.store.manifest import FILE, Manifest
from dualform.store.previews.preview_file import FOLDER as PREVIEW_SETS

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
