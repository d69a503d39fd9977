"""A second training that is not the first one again is refused, naming the step and the layer, and gives no answer."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform import GroupSum, QuerySetExamples, TopK, Vectors
from dualform.errors import BadInput, EmptyMask, NotAMemory, NotFound, RecordingError
from dualform.questions import Output
from dualform.rerun.rerun import Rerun

from .trained import Training

FIRST = Training(steps=6, tokens=4)
ASKED = [TopK("2", QuerySetExamples("test", (0,)))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("first") / "m"
    FIRST.run(lambda model, optimizer: dualform.Recorder(model, optimizer, path, keys=False))
    return path


def refused(folder, training, until=None):
    """What the second training is refused with, the step that heard of it, and the rerun."""
    made = []

    def make(model, optimizer):
        made.append(Rerun(model, optimizer, folder, ASKED))
        return made[0]

    with pytest.raises(RecordingError) as error:
        training.run(make, until)
    with pytest.raises(RecordingError, match="The training has not been rerun to its end"):
        made[0].answers()
    return str(error.value)


class Changed(Training):
    def batches(self):
        made = super().batches()
        made[3][0][1, 2, 0] += 1e-6
        return made


class Faster(Training):
    def built(self):
        model, optimizer = super().built()
        optimizer.param_groups[0]["lr"] = 0.2
        return model, optimizer


class Relabelled(Training):
    def batches(self):
        made = super().batches()
        made[4][2]["sample"] = made[4][2]["sample"] + 1
        return made


class Wider(Training):
    def built(self):
        model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


OTHERS = {
    "initial weights": (
        replace(FIRST, seed=3), "step 0: '0.weight' differs from its value at the start of the first training.",
    ),
    "data": (
        Changed(**vars(FIRST)),
        "step 3, layer '0': its inputs differ from the first training. Run the same script with",
    ),
    # The first layer's inputs are data, whatever was learned; the second's move with the first update.
    "learning rate": (Faster(**vars(FIRST)), "step 1, layer '2': its inputs differ from"),
    "batch order": (
        replace(FIRST, order=(0, 1, 4, 3, 2, 5)),
        "step 2, layer '0': the columns of its slots differ from the first training",
    ),
    "columns": (Relabelled(**vars(FIRST)), "step 4, layer '0': the columns of its slots differ"),
    "more steps": (replace(FIRST, steps=8), "step 6: the first training ended after 6 steps."),
    "width": (Wider(**vars(FIRST)), "step 0: layer '0' (5 to 7, by token) is recorded in only one of the two runs."),
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
def test_another_training_is_refused_at_the_step_and_layer_where_it_departs(folder, other):
    training, said = OTHERS[other]
    assert refused(folder, training).startswith(said)


def test_too_few_steps_and_none_are_refused(folder):
    assert refused(folder, FIRST, until=4).startswith("The second training stopped after 4 of 6 steps.")
    untrained = FIRST.run(lambda model, optimizer: Rerun(model, optimizer, folder, ASKED), until=0, query_set=False)
    with pytest.raises(RecordingError, match="The training has not been rerun to its end"):
        untrained.answers()


def test_a_training_that_fails_gives_no_answer(folder):
    made = []

    def make(model, optimizer):
        made.append(Rerun(model, optimizer, folder, ASKED))
        return made[0]

    with pytest.raises(ZeroDivisionError):
        FIRST.run(make, fail=True)
    with pytest.raises(RecordingError, match="The training has not been rerun to its end"):
        made[0].answers()


def test_a_model_without_a_recorded_layer_is_refused(folder):
    other = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Sequential(nn.Linear(7, 3)))
    with pytest.raises(RecordingError, match="This is not the model that was recorded: layers='2' does not match"):
        Rerun(other, torch.optim.SGD(other.parameters(), 0.1), folder, ASKED)


def test_what_cannot_be_reran_is_refused(folder, tmp_path):
    model, optimizer = FIRST.built()
    with pytest.raises(NotAMemory):
        Rerun(model, optimizer, tmp_path / "nowhere", ASKED)
    FIRST.run(lambda model, optimizer: dualform.Recorder(model, optimizer, tmp_path / "stored"))
    with pytest.raises(BadInput, match="stores its keys, so it needs no rerun"):
        Rerun(model, optimizer, tmp_path / "stored", ASKED)
    with pytest.raises(ZeroDivisionError):
        FIRST.run(lambda *of: dualform.Recorder(*of, tmp_path / "cut", keys=False), fail=True)
    with pytest.raises(BadInput, match="did not end, or still runs"):
        Rerun(model, optimizer, tmp_path / "cut", ASKED)


@pytest.mark.parametrize(
    ("question", "error"),
    [
        (TopK("nowhere", Vectors(np.ones((1, 7)))), NotFound),
        (TopK("2", Vectors(np.ones((1, 3)))), BadInput),
        (TopK("2", QuerySetExamples("none")), NotFound),
        (TopK("2", dualform.SlotKeys((0,))), NotFound),
        (TopK("2", QuerySetExamples("test"), where="step > 99"), EmptyMask),
        (GroupSum("2", QuerySetExamples("test"), by=("colour",)), NotFound),
        (Output("2", QuerySetExamples("test")), BadInput),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused_before_training(folder, question, error):
    with pytest.raises(error):
        Rerun(*FIRST.built(), folder, [question])


def test_the_rerun_changes_no_bit_of_the_training_and_nothing_on_disk(folder):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    finals = []

    def make(model, optimizer):
        finals.append(model)
        return Rerun(model, optimizer, folder, ASKED)

    FIRST.run(make)
    final = dualform.open(folder)._view.snapshot.final()
    assert all(np.array_equal(final[name], p.detach().numpy()) for name, p in finals[0].named_parameters())
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
