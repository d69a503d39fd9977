"""Where a training is saved in the midst of a step, and where a run did not begin as the one before it ended."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import Inexact, RecordingError
from dualform.store.manifest import Manifest
from tests.record.listed import rows_of

STEPS = 8
SAVED = 4
"""The step in the midst of which a checkpoint is saved."""


class Saved(nn.Module):
    """Two layers, of which an optimizer each moves one; a BatchNorm between them if it is asked for."""

    def __init__(self, normed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        middle = nn.BatchNorm1d(6) if normed else nn.Tanh()
        self.net = nn.Sequential(nn.Linear(5, 6), middle, nn.Linear(6, 3))
        first = [p for module in self.net[:2] for p in module.parameters()]
        self.optimizers = [
            torch.optim.SGD(first, lr=0.1, momentum=0.9),
            torch.optim.AdamW(self.net[2].parameters(), lr=0.02),
        ]

    def state(self):
        return {name: value.clone() for name, value in self.net.state_dict().items()}

    def checkpoint(self, file: Path) -> None:
        torch.save([self.net.state_dict(), *(optimizer.state_dict() for optimizer in self.optimizers)], file)

    def load(self, file: Path) -> None:
        weights, *states = torch.load(file)
        self.net.load_state_dict(weights)
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)

    def gradients(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        x, y = torch.randn(4, 5, generator=generator), torch.randint(3, (4,), generator=generator)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        cross_entropy(self.net(x), y).backward()

    def update(self, *numbers: int) -> None:
        for number in numbers or range(len(self.optimizers)):
            self.optimizers[number].step()

    def recorder(self, path: Path, **options) -> dualform.Recorder:
        return dualform.Recorder(self.net, self.optimizers, path, quiet=True, **options)

    def step(self, recorder: dualform.Recorder, number: int) -> None:
        with recorder.step():
            self.gradients(number)
            self.update()


def save(training: Saved, recorder: dualform.Recorder, file: Path) -> dict[str, torch.Tensor]:
    """A checkpoint, and the recorder flushed beside it."""
    training.checkpoint(file)
    recorder.flush()
    return training.state()


def behind_the_update(training, recorder, file):
    with recorder.step():
        training.gradients(SAVED)
        training.update()
        return save(training, recorder, file)


def between_step_and_update(training, recorder, file):
    with recorder.step():
        training.gradients(SAVED)
    saved = save(training, recorder, file)
    training.update()
    return saved


def between_two_updates(training, recorder, file):
    with recorder.step():
        training.gradients(SAVED)
        training.update(0)
    saved = save(training, recorder, file)
    training.update(1)
    return saved


def behind_late_updates(training, recorder, file):
    with recorder.step():
        training.gradients(SAVED)
    training.update()
    return save(training, recorder, file)


def with_half_an_update_to_come(training, recorder, file):
    with recorder.step():
        training.gradients(SAVED)
        training.update(0)
    return save(training, recorder, file)


MOMENTS = [
    behind_the_update,
    between_step_and_update,
    between_two_updates,
    behind_late_updates,
    with_half_an_update_to_come,
]


@pytest.mark.parametrize(
    ("moment", "normed"), [(behind_the_update, True), *((moment, False) for moment in MOMENTS[1:])]
)
def test_what_was_saved_in_the_midst_of_a_step_is_resumed_exactly(tmp_path, moment, normed):
    """The live network is the oracle: of the steps before, of the checkpoint, and of those that follow it."""
    training = Saved(normed)
    seen = [training.state()]
    with training.recorder(tmp_path / "m") as recorder:
        for number in range(STEPS):
            if number == SAVED:
                saved = moment(training, recorder, tmp_path / "checkpoint")
            else:
                training.step(recorder, number)
            if number < SAVED:
                seen.append(training.state())
    seen.append(saved)

    training = Saved(normed)
    training.load(tmp_path / "checkpoint")
    with training.recorder(tmp_path / "m", resume=True) as recorder:
        for number in range(SAVED + 1, STEPS):
            training.step(recorder, number)
            seen.append(training.state())

    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == STEPS
        for at_step, live in enumerate(seen):
            rebuilt = memory.weights(at_step=at_step)
            for name, value in live.items():
                assert torch.allclose(rebuilt[name].double(), value.double(), atol=3e-6), (at_step, name)
        for layer, reconstruction in memory.verify().items():
            assert (reconstruction.exact, reconstruction.reason) == (True, ""), layer
            assert reconstruction.reconstruction_error < 1e-5
        assert memory.slots(range(4 * STEPS))["step"].tolist() == [step for step in range(STEPS) for _ in range(4)]


def test_what_an_open_step_has_not_updated_yet_is_refused_by_name(tmp_path):
    training = Saved(normed=True)
    with training.recorder(tmp_path / "m") as recorder:
        for number in range(STEPS):
            with recorder.step():
                training.gradients(number)
                if number == SAVED:
                    save(training, recorder, tmp_path / "checkpoint")
                training.update()
    training = Saved(normed=True)
    training.load(tmp_path / "checkpoint")
    with (
        pytest.raises(
            RecordingError, match=r"differs from what it was when the recorder of .* flushed, after 5, 8 steps"
        ) as own,
        training.recorder(tmp_path / "m", resume=True) as recorder,
    ):
        training.step(recorder, SAVED)
    assert "after the end of its step" in own.value.hint
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == STEPS


def test_a_flush_in_the_first_step_counts_too(tmp_path):
    training = Saved()
    with training.recorder(tmp_path / "m") as recorder:
        with recorder.step():
            training.gradients(0)
            training.update()
            save(training, recorder, tmp_path / "checkpoint")
        assert [mark.step for mark in Manifest.read(tmp_path / "m").marks] == [1]


def test_what_is_finished_is_on_disk_behind_a_flush_inside_a_step(tmp_path):
    training = Saved()
    with training.recorder(tmp_path / "m") as recorder:
        for number in range(3):
            training.step(recorder, number)
        with recorder.step():
            training.gradients(3)
            training.update()
            recorder.flush()
            with dualform.open(tmp_path / "m") as memory:
                assert memory.info().steps == 3
                assert len(rows_of(tmp_path / "m", "steps")) == 3


def test_a_recording_that_stops_within_a_step_makes_no_mark_of_it(tmp_path, monkeypatch):
    """What writes fails behind the update of step 2, and the training goes on unrecorded."""
    training = Saved()
    recorder = training.recorder(tmp_path / "m", on_error="warn")
    with recorder:
        for number in range(2):
            training.step(recorder, number)
        batches = recorder._controller.session.writer

        def fail(*_):
            raise RecordingError("the disk was full for a moment.")

        monkeypatch.setattr(batches, "put", fail)
        with pytest.warns(RuntimeWarning, match="recording stopped after"):
            training.step(recorder, 2)
        training.checkpoint(tmp_path / "checkpoint")
    training = Saved()
    training.load(tmp_path / "checkpoint")
    with pytest.raises(RecordingError), training.recorder(tmp_path / "m", resume=True) as recorder:
        training.step(recorder, 3)


class One(Saved):
    """Under one optimizer."""

    def __init__(self, normed: bool = False) -> None:
        super().__init__(normed)
        self.optimizers = [torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)]


def trained(kind: type[Saved], path: Path, first: int, until: int, **options) -> None:
    """Steps from `first` on; where a checkpoint is there it is loaded, else one is saved behind step SAVED."""
    training, checkpoint = kind(), path / "checkpoint"
    if checkpoint.exists():
        training.load(checkpoint)
    with training.recorder(path / "m", **options) as recorder:
        for number in range(first, until):
            training.step(recorder, number)
            if number == SAVED:
                save(training, recorder, checkpoint)


def misplace(folder: Path, old: bool) -> None:
    """The mark behind step SAVED as one that was made a step short; `old`: of a version that told less of it."""
    manifest = Manifest.read(folder)

    def rows(known):
        return {name: count for name, count in known.items() if not old or name in ("watch", "defects")}

    manifest.marks = [
        replace(mark, step=mark.step - 1, rows=rows(mark.rows)) for mark in manifest.marks if mark.step == SAVED + 1
    ]
    manifest.runs = [replace(run, first_step=SAVED, rows=rows(run.rows)) for run in manifest.runs]
    manifest.write(folder)


@pytest.mark.parametrize(("kind", "old"), [(One, True), (Saved, False)])
def test_a_moment_that_was_counted_wrongly_is_refused_and_a_run_from_it_is_off_in_every_question(tmp_path, kind, old):
    trained(kind, tmp_path, 0, 7)
    shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name} again"))
    misplace(tmp_path.with_name(f"{tmp_path.name} again") / "m", old)
    with pytest.raises(RecordingError, match=r"the flush of .* after 4 steps counted wrongly"):
        trained(kind, tmp_path.with_name(f"{tmp_path.name} again"), SAVED + 1, STEPS, resume=True)
    trained(kind, tmp_path, SAVED + 1, STEPS, resume=True)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.weights().statuses["0"].name == "exact"
    misplace(tmp_path / "m", old)
    query = torch.ones(1, 5).numpy()
    with dualform.open(tmp_path / "m") as memory:
        (status,) = (layer.status for layer in memory.info().layers if layer.name == "0")
        assert (status.name, status.since) == ("approximate", SAVED)
        assert "was resumed from a moment of run 0" in status.reason
        assert "(from step 4 on)" in status.reason
        for ask in (memory.weights, lambda: memory.output("0", query)):
            with pytest.raises(Inexact, match="counted wrongly"):
                ask()
        assert memory.weights(at_step=SAVED).statuses["0"].name == "exact"
        assert memory.verify()["0"].status.since == SAVED
