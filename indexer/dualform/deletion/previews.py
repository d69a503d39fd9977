"""What of a memory's preview sets goes with samples that are deleted: what they looked like."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dualform.deletion.targets import Targets
from dualform.query.view import View
from dualform.store.manifest import Manifest
from dualform.store.previews.preview_file import free_name
from dualform.store.previews.stored_previews import StoredPreviewSet
from dualform.store.snapshot import Snapshot


def removed_preview_sets(view: View, targets: Targets) -> tuple[str, ...]:
    """Datasets whose preview sets go as a whole: none of their samples is left, or some that go have no number by which
    the preview set would tell them apart.
    """
    every = {name for run in view.snapshot.runs for name in run.manifest.preview_sets}
    return tuple(sorted(every & _whole(targets)))


def shown(view: View, targets: Targets) -> Mapping[str, int]:
    """By dataset, of how many samples the preview sets that stay lose what they looked like."""
    found = dict[str, int]()
    for run in view.snapshot.runs:
        for dataset in run.manifest.preview_sets.keys() - _whole(targets):
            gone = targets.shown.get(dataset)
            count = 0 if gone is None else int((run.preview_set(dataset).rows(gone) >= 0).sum())
            if count:
                found[dataset] = max(count, found.get(dataset, 0))
    return found


def write_preview_sets(run: Snapshot, manifest: Manifest, targets: Targets, folder: Path, made: list[Path]) -> None:
    """Write those of a run that lose something anew, in a folder, and have the manifest say so: the files before are no
    part of the run any more. `made`: what was written, as far as it came.
    """
    preview_sets, files = dict(manifest.preview_sets), dict(manifest.files)
    for dataset, entry in manifest.preview_sets.items():
        gone = targets.shown.get(dataset)
        preview_set = StoredPreviewSet.of(run.path, entry, manifest.files)
        if dataset in _whole(targets):
            del preview_sets[dataset]
        elif gone is not None and (preview_set.rows(gone) >= 0).any():
            name = free_name(entry["file"].rpartition("/")[0], manifest.files)
            made.append(folder / name)
            files[name] = preview_set.write_without(gone, folder / name)
            left = len(preview_set.samples) - int((preview_set.rows(gone) >= 0).sum())
            preview_sets[dataset] = entry | {"file": name, "samples": left}
        else:
            continue
        del files[entry["file"]]
    manifest.preview_sets, manifest.files = preview_sets, files


def _whole(targets: Targets) -> set[str]:
    return {dataset or "" for dataset in targets.datasets} | targets.unnumbered
