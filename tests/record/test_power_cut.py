"""The power goes at some moment of a recording: what was not synced is absent, or torn.

What a flush has acknowledged is there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dualform
from dualform.errors import NotAMemory
from dualform.store.maintenance.check import check_memory
from tests.record.faulty_disk import STEPS, Training, WatchedDisk, answers, steps_of
from tests.reliability import report, rounds

SEED = 17


class DiskWithoutPower(WatchedDisk):
    """Knows which names and bytes were synced, and makes folders of what a power cut leaves before some acts.

    DuckDB syncs its file before it returns from a commit; of other files only what was synced here is sure to be there.
    """

    def __init__(self, folder: Path, images: Path, moments: set[int]) -> None:
        """`images`: where such folders are made; `moments`: the numbers of those acts."""
        super().__init__(folder)
        self.training = Training()
        self.acknowledged: dict[Path, int] = {}
        """By image, how many steps were acknowledged by then."""
        self._images, self._moments = images, moments
        self._rng = np.random.default_rng(SEED)
        self._names: dict[Path, dict[str, int]] = {}
        """By folder, the synced names and their inodes."""
        self._contents: dict[int, bytes] = {}
        """By inode, what was synced of it."""
        self._held: list[int] = []
        """Open files: while they are open, no other file gets their inodes."""

    def meet(self, operation: str, path: Path, call: Any, *arguments: Any, **named: Any) -> Any:
        number = len(self.done) - 1
        if number in self._moments:
            for how, files in (("absent", self._synced(self.folder)), ("torn", self._torn())):
                self._make(self._images / f"{number}-{how}", files)
        found = super().meet(operation, path, call, *arguments, **named)
        if operation == "open":
            self._held.append(os.dup(found))
        if operation == "fsync" and path.is_dir():
            self._names[path] = {entry.name: entry.inode() for entry in os.scandir(path)}
        elif operation == "fsync":
            content = Path(f"/proc/self/fd/{arguments[0]}").read_bytes()
            self._contents[os.fstat(arguments[0]).st_ino] = content
        return found

    def _synced(self, folder: Path) -> Iterator[tuple[Path, bytes]]:
        """Files whose names were synced, with the bytes that were."""
        for name, inode in self._names.get(folder, {}).items():
            path = folder / name
            if path.is_dir():
                yield from self._synced(path)
            elif name == "slots.duckdb":
                yield path, path.read_bytes()
            else:
                yield path, self._contents.get(inode, b"")

    def _torn(self) -> Iterator[tuple[Path, bytes]]:
        """All names as they are, with what was synced and some bytes more, or zeros in their place."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                content, synced = path.read_bytes(), len(self._contents.get(path.stat().st_ino, b""))
                kept = len(content) if path.name == "slots.duckdb" else self._rng.integers(synced, len(content) + 1)
                zeros = (len(content) - kept) * int(self._rng.integers(2))
                yield path, content[:kept] + bytes(zeros)

    def _make(self, image: Path, files: Iterator[tuple[Path, bytes]]) -> None:
        image.mkdir()
        for path, content in files:
            place = image / path.relative_to(self.folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        self.acknowledged[image] = self.training.acknowledged

    def let_go(self) -> None:
        for handle in self._held:
            os.close(handle)


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system shows no bytes of files without a name")
def test_what_a_power_cut_leaves_has_all_that_was_acknowledged(tmp_path):
    torch.set_num_threads(1)
    for name in ("first", "m"):  # with the first one, the process learns what the file system can do
        disk = WatchedDisk(tmp_path / name)
        with disk.used():
            Training().record(tmp_path / name)
    moments = np.random.default_rng(SEED).permutation(len(disk.done))[: rounds(2, 200)]
    (tmp_path / "images").mkdir()
    cut = DiskWithoutPower(tmp_path / "cut", tmp_path / "images", set(moments.tolist()))
    with cut.used():
        cut.training.record(tmp_path / "cut")
    cut.let_go()
    whole = cache(partial(answers, tmp_path / "m"))
    assert len(cut.acknowledged) == 2 * len(moments)
    for image, acknowledged in cut.acknowledged.items():
        if not (image / "memory.json").exists():
            assert not acknowledged, image
            with pytest.raises(NotAMemory):
                dualform.open(image)
            continue
        steps = steps_of(image)
        assert acknowledged <= steps <= STEPS, image
        assert check_memory(image) == [], image
        assert not steps or answers(image, steps) == whole(steps), image
        shutil.rmtree(image)
    report(
        "the power goes right before such an act: what was not synced is absent, or torn",
        seed=SEED,
        count=len(cut.acknowledged),
        outcome="each folder opened with whole steps, none lost that was flushed, or held no memory before the first",
    )
