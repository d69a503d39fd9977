"""What of a memory's galleries goes with samples that are forgotten: what they looked like."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dualform.forgetting.targets import Targets
from dualform.query.view import View
from dualform.store.galleries.gallery_file import free_name
from dualform.store.galleries.stored_gallery import StoredGallery
from dualform.store.manifest import Manifest
from dualform.store.snapshot import Snapshot


def removed_galleries(view: View, targets: Targets) -> tuple[str, ...]:
    """Datasets whose galleries go as a whole: none of their samples is left, or some that go have no number by which
    the gallery would tell them apart.
    """
    every = {name for run in view.snapshot.runs for name in run.manifest.galleries}
    return tuple(sorted(every & _whole(targets)))


def shown(view: View, targets: Targets) -> Mapping[str, int]:
    """By dataset, of how many samples the galleries that stay lose what they looked like."""
    found = dict[str, int]()
    for run in view.snapshot.runs:
        for dataset in run.manifest.galleries.keys() - _whole(targets):
            gone = targets.shown.get(dataset)
            count = 0 if gone is None else int((run.gallery(dataset).rows(gone) >= 0).sum())
            if count:
                found[dataset] = max(count, found.get(dataset, 0))
    return found


def write_galleries(run: Snapshot, manifest: Manifest, targets: Targets, folder: Path, made: list[Path]) -> None:
    """Write those of a run that lose something anew, in a folder, and have the manifest say so: the files before are no
    part of the run any more. `made`: what was written, as far as it came.
    """
    galleries, files = dict(manifest.galleries), dict(manifest.files)
    for dataset, entry in manifest.galleries.items():
        gone = targets.shown.get(dataset)
        gallery = StoredGallery.of(run.path, entry, manifest.files)
        if dataset in _whole(targets):
            del galleries[dataset]
        elif gone is not None and (gallery.rows(gone) >= 0).any():
            name = free_name(entry["file"].rpartition("/")[0], manifest.files)
            made.append(folder / name)
            files[name] = gallery.write_without(gone, folder / name)
            left = len(gallery.samples) - int((gallery.rows(gone) >= 0).sum())
            galleries[dataset] = entry | {"file": name, "samples": left}
        else:
            continue
        del files[entry["file"]]
    manifest.galleries, manifest.files = galleries, files


def _whole(targets: Targets) -> set[str]:
    return {dataset or "" for dataset in targets.datasets} | targets.unnumbered
