"""A rerun follows examples as `dualform.ledger` does in a memory that had stored the keys: the same bits."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import dualform
from dualform import TopK
from dualform.errors import BadInput, DualformError, RecordingError
from tests.cases import some
from tests.influence.trainings import KINDS, ROWS, Training, labels, samples
from tests.trainings import take_steps

STEPS, FEW = 12, 3
LINEAR = KINDS["linear layers"]


def run(training: Training, recorded_by, steps=STEPS, inputs=None):
    """Train under a recorder of the model and its optimizer; returns the recorder."""
    torch.manual_seed(3)
    model = training.make()
    optimizer = training.optimizer(model)
    with recorded_by(model, optimizer) as recorder:
        take_steps(
            recorder,
            optimizer,
            steps,
            lambda step: training.loss(model((inputs or training.inputs)(step)), labels(step)).mean(),
            sample=lambda step: samples(step),
            label=lambda step: labels(step),
        )
    return recorder


def recorded(training: Training, path, steps=STEPS, **options) -> None:
    run(training, lambda *of: dualform.Recorder(*of, path, quiet=True, **options), steps)


UNDER_ADAM = replace(
    KINDS["convolution in groups"], optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01)
)


@pytest.mark.parametrize(
    "training",
    [
        UNDER_ADAM,
        KINDS["LSTM and embedding"],
        KINDS["batch norm and dropout"],
    ],
    ids=["convolution, Adam", "LSTM", "batch norm and dropout"],
)
def test_ledgers_are_those_of_a_memory_with_keys(tmp_path, training):
    recorded(training, tmp_path / "stored", FEW)
    recorded(training, tmp_path / "m", FEW, keys=False)
    influences = [training.influence(), training.influence(method="path", by="label")]
    found = run(training, lambda *of: dualform.Rerun(*of, tmp_path / "m", influences), FEW).answers()
    for influence, own in some(zip(influences, found, strict=True)):
        right = dualform.ledger(tmp_path / "stored", training.make(), influence)
        assert (own.groups, own.by, own.method) == (right.groups, right.by, right.method)
        assert own.counts.tolist() == right.counts.tolist()
        for one, other in ((own.sums, right.sums), (own.residual, right.residual), (own.final, right.final)):
            assert one.tobytes() == other.tobytes()
        assert {line: array.tobytes() for line, array in own.lines.items()} == {
            line: array.tobytes() for line, array in right.lines.items()
        }


@pytest.fixture(scope="module")
def memories(tmp_path_factory):
    """A folder of the memory with keys, `stored`, and the one without, `m`, of linear layers."""
    folder = tmp_path_factory.mktemp("linear")
    recorded(LINEAR, folder / "stored")
    recorded(LINEAR, folder / "m", keys=False)
    return folder


def test_influences_stand_among_other_questions_and_what_was_written_goes_with_the_answer(memories, tmp_path):
    queries = dualform.Vectors(np.ones((2, 6)))
    questions = [TopK("0", queries, 3), LINEAR.influence(), TopK("0", queries, 2)]
    before = {path: path.stat().st_mtime_ns for path in (memories / "m").rglob("*")}
    (tmp_path / "scratch").mkdir()
    rerun = run(LINEAR, lambda *of: dualform.Rerun(*of, memories / "m", questions, folder=tmp_path / "scratch"))
    assert list((tmp_path / "scratch").iterdir())
    hits, ledger, fewer = rerun.answers()
    assert not list((tmp_path / "scratch").iterdir())
    assert {path: path.stat().st_mtime_ns for path in (memories / "m").rglob("*")} == before
    with dualform.open(memories / "stored") as memory:
        assert hits.ids.tolist() == memory.topk("0", queries, 3).ids.tolist()
        assert fewer.ids.tolist() == memory.topk("0", queries, 2).ids.tolist()
    assert isinstance(ledger, dualform.Ledger)
    assert rerun.answers()[1] is ledger


def test_another_training_is_refused_where_it_departs(memories, tmp_path):
    steps = count()

    def changed(step):
        return LINEAR.inputs(step) + (next(steps) == 5)

    with pytest.raises(RecordingError, match="step 5, layer '0': its inputs differ from"):
        run(LINEAR, lambda *of: dualform.Rerun(*of, memories / "m", [LINEAR.influence()]), inputs=changed)
    (tmp_path / "scratch").mkdir()
    with pytest.raises(RecordingError, match=f"stopped after 7 of {STEPS} steps"):
        run(
            LINEAR,
            lambda *of: dualform.Rerun(*of, memories / "m", [LINEAR.influence()], folder=tmp_path / "scratch"),
            steps=7,
        )
    gc.collect()
    assert not list((tmp_path / "scratch").iterdir())


def test_other_labels_in_the_last_step_are_refused(tmp_path):
    """No key follows the last update, so that only the weights at the end tell."""

    def trained(recorder_of, last):
        torch.manual_seed(3)
        model = LINEAR.make()
        optimizer = LINEAR.optimizer(model)
        with recorder_of(model, optimizer) as recorder:
            for step in range(4):
                with recorder.step(sample=samples(step)):
                    optimizer.zero_grad()
                    given = labels(step) if step < 3 else last
                    LINEAR.loss(model(LINEAR.inputs(step)), given).mean().backward()
                    optimizer.step()
        return recorder

    trained(lambda *of: dualform.Recorder(*of, tmp_path / "m", keys=False, quiet=True), labels(3))
    influence = LINEAR.influence()
    with pytest.raises(RecordingError, match=r"The second training ended with a different '0\.bias'\."):
        trained(lambda *of: dualform.Rerun(*of, tmp_path / "m", [influence]), 3 - labels(3))
    assert trained(lambda *of: dualform.Rerun(*of, tmp_path / "m", [influence]), labels(3)).answers()


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            {"loss": lambda o, y: o.mean()},
            BadInput,
            r"The loss of .* must return one number for each of 5 examples, not \[\]\.",
        ),
        ({"by": "no such"}, DualformError, "no slot column 'no such'"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_training_begins(memories, change, error, said):
    torch.manual_seed(3)
    model = LINEAR.make()
    with pytest.raises(error, match=said):
        dualform.Rerun(model, LINEAR.optimizer(model), memories / "m", [replace(LINEAR.influence(), **change)])


def test_too_little_room_is_refused_before_the_training_begins(memories, tmp_path, monkeypatch):
    model = LINEAR.make()
    optimizer = LINEAR.optimizer(model)
    influence = LINEAR.influence()
    with monkeypatch.context() as patch:
        room = SimpleNamespace(free=4 * STEPS * ROWS * (6 + 7 + 7 + 4) - 1)
        patch.setattr("dualform.rerun.rerun.disk_usage", lambda _: room)
        with pytest.raises(BadInput, match="An Influence needs up to"):
            dualform.Rerun(model, optimizer, memories / "m", [influence])
    with pytest.raises(BadInput, match="nowhere is not a folder"):
        dualform.Rerun(model, optimizer, memories / "m", [influence], folder=tmp_path / "nowhere")
    monkeypatch.setattr("dualform.influence.ledger.memory_bytes", lambda: 2 * 8 * 24 * 5 - 1)
    with pytest.raises(BadInput, match="5 examples and 24 groups of sample"):
        dualform.Rerun(model, optimizer, memories / "m", [influence])
    with pytest.raises(BadInput, match="5 examples and 24 groups of sample"):
        dualform.ledger(memories / "stored", model, influence)
