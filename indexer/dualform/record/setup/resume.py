"""Where a training that is resumed goes on in the folder of its memory: as a further run, from one of the marks.

    RUN/memory.json     marks: after 5 and 10 steps        runs: none, then run-00001 from step 5 on
    RUN/run-00001       a memory of its own, whose first step is step 5 of the training

A mark is made whenever the recorder is flushed. The mark whose weights and buffers the resumed training has tells at
which step its checkpoint was saved; what was recorded behind it is no part of the memory from then on, and stays on
disk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dualform.errors import BadInput, RecordingError
from dualform.record import ranks
from dualform.record.taps import Tap
from dualform.store.batch import ContinuedRun, Cut, Mark, cuts, digest_of, named_buffers
from dualform.store.layer import Layer
from dualform.store.locks import being_written, folder_lock, writing
from dualform.store.manifest import SHARD_FILE, Manifest, is_only_begun
from dualform.store.reading.snapshot import Snapshot, why_misplaced
from dualform.store.weights import Buffers


@dataclass(frozen=True)
class MarkedRun:
    """One of the runs so far."""

    path: Path
    first_step: int
    manifest: Manifest
    cut: Cut | None
    """What of it counts; None for all."""

    @property
    def marks(self) -> list[Mark]:
        return [mark for mark in self.manifest.marks if self.cut is None or mark.step <= self.cut.steps]


class Resumption:
    """A further run of a training."""

    def __init__(self, folder: Path, at_step: int | None) -> None:
        """`at_step`: after how many steps of the training the checkpoint was saved; None where the weights tell.

        Raises NotAMemory or Damaged for the folder, RecordingError where it has no mark, or none of that step,
        Locked where another process still records it.
        """
        self._folder, self._at_step = folder, at_step
        self._first = self._manifest()
        starts = [0, *(run.first_step for run in self._first.runs)]
        places = [folder, *(folder / run.folder for run in self._first.runs)]
        self._runs = [
            MarkedRun(place, start, Manifest.read(place), cut)
            for place, start, cut in zip(places, starts, cuts(self._first.runs), strict=True)
        ]
        self._check_ended()
        # Behind all that are named, also in a copy, which has no others: a later name is that of a run that follows.
        number = 1 + max((int(run.folder.split("-")[1]) for run in self._first.runs), default=0)
        while (folder / f"run-{number:05d}").exists():
            number += 1
        self.path = folder / f"run-{number:05d}"
        """Of the further run: a folder that is not there yet."""
        self._begins: ContinuedRun | None = None
        self.share = 1.0
        """Which share of its slots was kept at last, where they were sampled to hold a budget."""
        self.layers: list[Layer] = []
        """Those of the runs that go on."""
        self.manifests: list[Manifest] = []
        """Theirs, each of all shards and up to where the next run begins."""
        if not self._known():
            said = "" if at_step is None else f" after {at_step} steps"
            raise RecordingError(
                f"the training of {folder} cannot be resumed{said}: its recorder was not flushed then.",
                hint="Record into another folder, and call recorder.flush() whenever you save a checkpoint."
                + (f" It was flushed {self._moments()}." if at_step is not None and self._moments() else ""),
            )

    def _check_ended(self) -> None:
        """Raises Locked where another process still records the training."""
        last = self._runs[-1]
        for part in last.manifest.shards if last.manifest.recording else ():
            place = last.path / part.folder
            found = writing(place)
            if found.going_on and not found.here:
                raise being_written(place, found)

    def layers_beside(self, taps: Sequence[Tap]) -> list[Layer]:
        """Of all runs so far, the layers that these taps are not of."""
        tapped = {tap.name for tap in taps}
        found = {layer.name: layer for run in self._runs for layer in run.manifest.layers}
        return [layer for name, layer in found.items() if name not in tapped]

    def _known(self) -> list[tuple[MarkedRun, Mark]]:
        """The marks that come into question."""
        every = [(run, mark) for run in self._runs for mark in run.marks]
        return [(r, m) for r, m in every if self._at_step is None or r.first_step + m.step == self._at_step]

    def _moments(self) -> str:
        steps = sorted({run.first_step + mark.step for run in self._runs for mark in run.marks})
        shown = [str(step) for step in steps[-8:]]
        return f"after {', '.join(['…'] * (len(steps) > 8) + shown)} steps" if steps else ""

    def find(self, weights: Mapping[str, NDArray[Any]], buffers: Buffers) -> Mark:
        """The mark from which the training goes on, whose state dict was this one, and what the optimizers kept.

        Raises RecordingError where there is none or several, and Damaged where a shard does not reach as far.
        """
        weighed, kept = digest_of(weights.items()), digest_of(named_buffers(buffers))
        alike = [(run, mark) for run, mark in self._known() if mark.weights == weighed]
        found = [(run, mark) for run, mark in alike if mark.buffers == kept]
        if not found:
            self._refuse(alike)
        steps = sorted({run.first_step + mark.step for run, mark in found})
        if len(steps) > 1:
            raise RecordingError(
                f"the network had the same weights after {' and after '.join(map(str, steps))} steps.",
                hint=f"Pass the number of steps after which the checkpoint was saved: resume={steps[-1]}.",
            )
        run, mark = found[-1]
        going_on = self._runs[: self._runs.index(run) + 1]
        self._check(going_on, mark, steps[0])
        self._begins = ContinuedRun(self.path.name, steps[0], mark.rows)
        self.layers = list({layer.name: layer for own in going_on for layer in own.manifest.layers}.values())
        return mark

    def _check(self, runs: Sequence[MarkedRun], mark: Mark, step: int) -> None:
        """Raises as `find`: `runs` are those up to a mark in the last of them, after `step` steps of all."""
        cuts_of = [*(run.cut for run in runs[:-1]), Cut(mark.step, mark.rows)]
        held = [Snapshot.open(run.path, cut=cut) for run, cut in zip(runs, cuts_of, strict=True)]
        self.manifests = [run.manifest for run in held]
        if why := why_misplaced(held, mark):
            raise RecordingError(
                f"the flush of {self._folder} after {step} steps counted wrongly: {why}.",
                hint="Load a checkpoint of another flush, or record into a new folder.",
            )
        if runs[-1].manifest.sampling is not None:
            shares = held[-1].table("shares")["share"].to_pylist()
            self.share = min((share for share in shares if share), default=1.0)  # it is 0 where there was no room

    @property
    def first_step(self) -> int:
        """The number of the further run's first step, once it is known."""
        assert self._begins is not None
        return self._begins.first_step

    def _refuse(self, alike: list[tuple[MarkedRun, Mark]]) -> None:
        if alike:
            run, mark = alike[-1]
            raise RecordingError(
                f"the weights are those after {run.first_step + mark.step} steps of {self._folder}, but the "
                "state of the optimizer is not.",
                hint="Load the state of every optimizer from the checkpoint, too, before the first step.",
            )
        raise RecordingError(
            f"the network differs from what it was when the recorder of {self._folder} was flushed, {self._moments()}.",
            hint="Load a checkpoint saved at such a flush, after the end of its step. For a later checkpoint, "
            "record into a new folder.",
        )

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """A moment in which the further run is put on disk, and nobody deletes samples: from its end on, when every
        process has begun its shard, it is part of the memory, and what it does not follow is none.

        Raises RecordingError where samples were deleted since the recorder was made, or a process does not begin.
        """
        assert self._begins is not None
        with folder_lock(self._folder, wait=True):
            manifest = self._manifest()
            yield
            self._await_shards()
            before = [run for run in manifest.runs if run.first_step < self._begins.first_step]
            replace(manifest, runs=[*before, self._begins]).write(self._folder)

    def _await_shards(self) -> None:
        # A training that is killed before that would else leave a run that is there in part, and nobody could open it.
        deadline = time.monotonic() + ranks.WAIT_SECONDS
        for part in Manifest.read(self.path).shards[1:]:
            while not (self.path / part.folder / SHARD_FILE).exists():
                if time.monotonic() > deadline:
                    raise RecordingError(
                        f"the first process waited {ranks.WAIT_SECONDS:g} seconds for {part.folder} of {self.path}.",
                        hint="Record on every process, into one folder that all of them can read.",
                    )
                time.sleep(0.01)

    def _manifest(self) -> Manifest:
        """What the memory says of itself at this moment. Raises RecordingError where samples were deleted."""
        found = Manifest.read(self._folder)
        if found.deleted is not None:
            raise RecordingError(
                f"the training of {self._folder} cannot be resumed: samples were deleted.",
                hint="Record into a new folder, and open both: dualform.open([first, second]).",
            )
        return found


def resumption_of(folder: Path, resume: bool | int) -> Resumption | None:
    """None for a training that is not resumed, also where there is nothing yet that it could go on from.

    Raises BadInput for what is no number of steps, and as `Resumption`.
    """
    if not isinstance(resume, Integral) or (not isinstance(resume, bool) and resume < 1):
        raise BadInput(
            f"resume must be True, False or a number of steps, not {resume!r}.",
            hint="Pass resume=True, or the number of steps after which the checkpoint was saved.",
            field="resume",
        )
    empty = not (folder.is_dir() and any(folder.iterdir()))
    if resume is False or (resume is True and (empty or is_only_begun(folder))):
        return None
    return Resumption(folder, None if resume is True else int(resume))
