"""Models and losses that would make a ledger wrong in silence are followed as autograd has it, or refused in words."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dualform
from dualform.errors import BadInput, DualformError, Inexact, RecordingError
from tests.influence.trainings import (
    EXAMPLES,
    KINDS,
    ROWS,
    Training,
    labels,
    losses,
    numbers,
    perceptron,
    samples,
    sgd,
    squares,
)
from tests.trainings import learn, record_steps

FEW = 10


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 7), nn.Linear(7, 7), nn.Linear(7, 4)

    def middle(self, x):
        return self.second(torch.tanh(self.first(x)))

    def forward(self, x):
        return self.head(torch.tanh(self.middle(x)))


class Checkpointed(Plain):
    """Its middle runs again in the backward pass, in eval mode too."""

    reentrant = False

    def forward(self, x):
        if self.reentrant:
            x = x.clone().requires_grad_()
        return self.head(torch.tanh(checkpoint(self.middle, x, use_reentrant=self.reentrant)))


class Reentrant(Checkpointed):
    reentrant = True


class Writing(Plain):
    """Writes to what it is given, which does no harm to a batch that is used once."""

    def forward(self, x):
        x -= 0.3
        return super().forward(x)


class Shifted(Plain):
    def forward(self, x):
        return super().forward(x - 0.3)


def recorded(make, path, **options):
    training = Training(make, numbers((6,)), sgd(lr=0.3, momentum=0.5), **options)
    training.record(path, FEW)
    return training


@pytest.mark.parametrize(("make", "method"), [(Checkpointed, "path"), (Reentrant, "first-order")])
def test_what_a_backward_pass_runs_again_has_the_weights_of_the_step(tmp_path, make, method):
    training = recorded(make, tmp_path / "m")
    torch.manual_seed(5)
    model = make()  # with weights that are none of the training's
    found = dualform.ledger(tmp_path / "m", model, training.influence(method=method))
    plain = dualform.ledger(tmp_path / "m", Plain(), training.influence(method=method))
    np.testing.assert_allclose(found.sums, plain.sums, rtol=0, atol=1e-6 * np.abs(plain.sums).max())
    assert found.final == pytest.approx(plain.final, rel=1e-6)


def test_a_loss_that_reads_the_model_reads_the_weights_of_the_step(tmp_path):
    training = recorded(Plain, tmp_path / "m")
    model = Plain()

    def heavier(output, y):
        return losses(output, y) + 0.1 * model.head.weight.square().sum()

    found = dualform.ledger(tmp_path / "m", model, replace(training.influence(), loss=heavier))
    plain = dualform.ledger(tmp_path / "m", model, training.influence())
    with dualform.open(tmp_path / "m") as memory:
        for step, own, other in ((0, found.initial, plain.initial), (FEW, found.final, plain.final)):
            weight = memory.weights(at_step=step).arrays["head.weight"].astype(np.float64)
            np.testing.assert_allclose(own - other, 0.1 * np.square(weight).sum(), rtol=1e-5)


def test_a_model_that_writes_to_its_inputs_leaves_those_of_the_examples(tmp_path):
    training = recorded(Writing, tmp_path / "m")
    influence = training.influence(method="path")
    before = influence.inputs.clone()
    found = dualform.ledger(tmp_path / "m", Writing(), influence)
    assert torch.equal(influence.inputs, before)
    right = dualform.ledger(tmp_path / "m", Shifted(), training.influence(method="path"))
    assert found.sums.tobytes() == right.sums.tobytes()
    assert found.final.tobytes() == right.final.tobytes()


def test_a_query_set_of_a_model_that_writes_to_its_inputs_has_its_gradients(tmp_path):
    torch.manual_seed(0)
    model, x, y = Writing(), numbers((6,))(99)[:EXAMPLES], labels(99)[:EXAMPLES]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = x.clone()
    with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True) as recorder:
        with recorder.step(sample=samples(0)):
            losses(model(numbers((6,))(0)), labels(0)).mean().backward()
            optimizer.step()
        recorder.query_set("test", given, y, loss=losses)
    assert torch.equal(given, x)
    memory = dualform.open(tmp_path / "m")
    shifted = Shifted()
    shifted.load_state_dict(model.state_dict())
    right = memory.group_sum("*", memory.gradients(shifted, x, y, losses), by="sample", score="gradient")
    found = memory.group_sum("*", "test", by="sample", score="gradient")
    assert found.sums.tobytes() == right.sums.tobytes()


class BatchStatistics(nn.Module):
    """Mixes its examples in eval mode, too; at first its head brings nothing back to the layer before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 7), nn.Linear(7, 4)
        self.norm = nn.BatchNorm1d(7, affine=False, track_running_stats=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.first(x))))


class SortedRows(nn.Module):
    """Has its rows in an order of their own, which is theirs at first."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.first, self.head = nn.Linear(6, 1, bias=False), nn.Linear(6, 7), nn.Linear(7, 4)
        nn.init.zeros_(self.gate.weight)

    def forward(self, x):
        order = torch.argsort(self.gate(x)[:, 0], stable=True)
        middle = torch.tanh(self.first(x[order]) * (1 + self.gate(x)[order]))
        return self.head(middle[torch.argsort(order)])


@pytest.mark.parametrize("make", [BatchStatistics, SortedRows])
def test_examples_that_come_to_be_mixed_are_refused(tmp_path, make):
    training = recorded(make, tmp_path / "m")
    with pytest.raises(BadInput, match="do not belong to single examples"):
        dualform.ledger(tmp_path / "m", make(), training.influence())


class Halves(Plain):
    """Has the halves of a large batch in each other's place, inside."""

    def forward(self, x):
        if len(x) < 16:
            return super().forward(x)
        half = len(x) // 2
        swapped = torch.tanh(self.middle(torch.cat([x[half:], x[:half]])))
        return self.head(torch.cat([swapped[half:], swapped[:half]]))


def test_rows_that_stand_in_each_others_place_are_found_out(tmp_path):
    recorded(Halves, tmp_path / "m")
    memory, model, plain = dualform.open(tmp_path / "m"), Halves(), Plain()
    plain.load_state_dict(model.state_dict())
    x, y = torch.randn(16, 6), torch.arange(16) % 4
    with pytest.warns(RuntimeWarning, match="not those that the training ended with"):
        found, right = (memory.gradients(own, x, y, losses) for own in (model, plain))
    for name, own in right.layers.items():
        np.testing.assert_allclose(found.layers[name].keys, own.keys, atol=1e-6)
        np.testing.assert_allclose(found.layers[name].errors, own.errors, atol=1e-6)
        assert found.layers[name].examples.tolist() == own.examples.tolist()


class Seldom(nn.Module):
    """A layer of samples that some steps skip, and one of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.seldom, self.always, self.tokens = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(2, 2)
        self.skips = False

    def forward(self, x):
        tokens = self.tokens(x.reshape(len(x), 3, 2)).reshape(len(x), 6)
        return self.always(x) + (0 if self.skips else self.seldom(tokens))


@pytest.fixture(scope="module")
def seldom(tmp_path_factory):
    path = tmp_path_factory.mktemp("seldom") / "m"
    torch.manual_seed(0)
    model = Seldom()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = np.array([1.0, np.nan, 2.0, np.nan])
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        for step in range(4):
            model.skips = step % 2 == 0
            with recorder.step(sample=np.arange(ROWS), weight=np.tile(weights, 2)):
                learn(optimizer, losses(model(numbers((6,))(step)), labels(step)).mean())
    model.skips = False
    return path, model


def followed(by):
    return dualform.Influence("test", numbers((6,))(99)[:EXAMPLES], labels(99)[:EXAMPLES], losses, by=by)


def test_slots_of_layers_that_lack_some_are_counted_once(seldom):
    path, model = seldom
    found = dualform.ledger(path, model, followed("sample"))
    # 4 steps of samples, and 2 of them of 3 tokens each: `tokens` ran in all, but has gradients where it was used.
    memory = dualform.open(path)
    slots = memory.info().slots
    assert found.counts.sum() == sum(slots.values())


def test_nan_is_one_group_in_all_spaces(seldom):
    path, model = seldom
    found = dualform.ledger(path, model, followed("weight"))
    assert [str(key[0]) for key in found.groups] == ["1.0", "2.0", "nan"]
    memory = dualform.open(path)
    asked = memory.gradients(model, numbers((6,))(99)[:2], labels(99)[:2], losses)
    sums = memory.group_sum("*", asked, by="weight", score="gradient")
    assert [str(key[0]) for key in sums.groups] == ["1.0", "2.0", "nan"]
    by_sample = memory.group_sum("*", asked, by="sample", score="gradient").sums
    np.testing.assert_allclose(sums.sums[:, 2], by_sample[:, 1::2].sum(1), rtol=1e-12)


@pytest.mark.parametrize("by", ["slot", "position"])
def test_slots_of_several_spaces_are_no_groups_together(seldom, by):
    path, model = seldom
    with pytest.raises(BadInput, match="slots of several spaces"):
        dualform.ledger(path, model, followed(by))


STEPS = 12
LINEAR = KINDS["linear layers"]


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    """The memory of a training of linear layers, and the model."""
    path = tmp_path_factory.mktemp("linear") / "m"
    return path, LINEAR.record(path, 2)


def infinite(output, y):
    return squares(output, y) / torch.arange(len(y))


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            {"loss": lambda o, y: squares(o, y).mean()},
            BadInput,
            r"The loss of .* must return one number for each of 5 examples, not \[\]\.",
        ),
        ({"loss": lambda o, y: y.double()}, BadInput, "does not depend on any parameter of the model."),
        ({"loss": infinite}, BadInput, "is (inf|nan) for example 0"),
        ({"labels": labels(99)[:4]}, BadInput, "has 5 examples but 4 labels."),
        ({"labels": None}, BadInput, "The labels of influence 'test' cannot be made a tensor: NoneType"),
        ({"labels": 3}, BadInput, "has 5 examples but 0 labels."),
        ({"by": "no such"}, DualformError, "no slot column 'no such'"),
        ({"by": ()}, BadInput, "by must name at least one column."),
        ({"method": "third-order"}, BadInput, "Unknown method 'third-order'"),
        ({"points": 0, "method": "path"}, BadInput, "points must be a whole number from 1 to 16, not 0"),
        ({"tail": 1.0}, BadInput, r"tail must be at least 0 and less than 1, not 1\.0"),
    ],
)
def test_what_does_not_fit_is_refused(linear, change, error, said):
    with pytest.raises(error, match=said):
        dualform.ledger(linear[0], LINEAR.make(), replace(LINEAR.influence(), **change))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Linear(6, 7)), "The model lacks '2'"),
        (
            nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)),
            r"'0.bias' is \[7\] in the memory, and \[9\] in the model",
        ),
    ],
)
def test_another_model_is_refused(linear, model, said):
    with pytest.raises(BadInput, match=said):
        dualform.ledger(linear[0], model, LINEAR.influence())


def test_rules_that_take_numbers_together_are_refused_with_the_reason(tmp_path):
    training = replace(LINEAR, optimizer=lambda model: torch.optim.Adafactor(model.parameters()))
    training.record(tmp_path / "m", 2)
    with pytest.raises(
        Inexact,
        match=r"dualform\.ledger does not support Adafactor, which does not scale the gradient of "
        r"'0\.weight' number by number\.",
    ):
        dualform.ledger(tmp_path / "m", training.make(), training.influence())


class Placed(nn.Module):
    """Words and their places, of which a table has one row for all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(12, 6), nn.Embedding(5, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.head(torch.tanh(self.words(x) + self.places(torch.arange(5))).mean(1))


def test_rows_that_examples_share_are_refused_and_one_example_is_followed(tmp_path):
    """There are as many places as examples."""
    training = replace(KINDS["LSTM and embedding"], make=Placed)
    training.record(tmp_path / "m", STEPS)
    influence = training.influence(method="path")
    with pytest.raises(BadInput, match="rows of layer 'places' do not belong to single examples"):
        dualform.ledger(tmp_path / "m", training.make(), influence)
    one = replace(influence, inputs=influence.inputs[:1], labels=influence.labels[:1])
    found = dualform.ledger(tmp_path / "m", training.make(), one)
    assert np.abs(found.residual).max() <= 1e-3 * np.abs(found.final - found.initial).max()


def test_a_model_that_is_being_recorded_is_refused(linear, tmp_path):
    path, model = linear
    with dualform.Recorder(model, LINEAR.optimizer(model), tmp_path / "n", quiet=True) as recorder:
        with recorder.step(sample=samples(0)):
            LINEAR.loss(model(LINEAR.inputs(0)), labels(0)).mean().backward()
        with pytest.raises(RecordingError, match="A recorder is open on this model"):
            dualform.ledger(path, model, LINEAR.influence())


def test_a_memory_of_which_samples_were_deleted_is_refused(linear, tmp_path):
    shutil.copytree(linear[0], tmp_path / "m")
    dualform.delete(tmp_path / "m", "sample = 3")
    with pytest.raises(
        Inexact, match="Samples were deleted, so their effect is known only for the end of the training"
    ):
        dualform.ledger(tmp_path / "m", LINEAR.make(), LINEAR.influence())


def test_a_memory_without_values_is_refused(tmp_path):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True, values=False),
        optimizer,
        2,
        lambda step: LINEAR.loss(model(LINEAR.inputs(step)), labels(step)).mean(),
        sample=lambda step: samples(step),
    )
    with pytest.raises(Inexact, match="no layer has values"):
        dualform.ledger(tmp_path / "m", perceptron(), LINEAR.influence())
