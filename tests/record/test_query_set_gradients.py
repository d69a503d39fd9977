"""Query sets that are taken with a loss: the gradients of their examples, stored, asked with, and looked after."""

from __future__ import annotations

import shutil
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput, Damaged, NotFound
from dualform.questions import QuerySetExamples
from dualform.store.maintenance.check import what_is_wrong
from dualform.store.maintenance.copying import copy_memory
from tests.query.test_gradients import NETWORKS, ROWS, STEPS, TESTS, loss
from tests.trainings import take_steps
from tests.wire.values import same

CLASSES = 3


def record(path, name="mlp", **options):
    """A recorded training with a query set of its gradients; and the model, inputs and labels of it."""
    torch.manual_seed(0)
    build, draw = NETWORKS[name]
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    tests = draw(TESTS), torch.randint(0, CLASSES, (TESTS,))
    with dualform.Recorder(model, optimizer, path, quiet=True, **options) as recorder:
        take_steps(
            recorder,
            optimizer,
            ((step, draw(ROWS), torch.randint(0, CLASSES, (ROWS,))) for step in range(STEPS)),
            lambda step, inputs, labels: loss(model(inputs), labels).sum(),
            label=lambda step, inputs, labels: labels,
            sample=lambda step, inputs, labels: torch.arange(ROWS) + ROWS * step,
        )
        recorder.query_set("test", tests[0], tests[1], loss=loss)
    return model, *tests


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """By name of the network: the folder, which nobody changes, and what `record` gives; each is made once."""
    folder = tmp_path_factory.mktemp("recorded")
    return cache(lambda name: (folder / name, *record(folder / name, name)))


@pytest.fixture
def copied(recorded, tmp_path):
    return shutil.copytree(recorded("mlp")[0], tmp_path / "m")


@pytest.mark.parametrize("name", ["mlp", "images", "gated words"])
def test_a_query_sets_gradients_are_those_of_the_live_model(name, recorded):
    path, model, *tests = recorded(name)
    memory = dualform.open(path)
    live = memory.gradients(model, *tests, loss)
    asked = memory.group_sum("*", "test", by="sample", score="gradient")
    assert asked.sums.tobytes() == memory.group_sum("*", live, by="sample", score="gradient").sums.tobytes()
    alone = memory.group_sum("*", "test/2,0", by="sample", score="gradient")
    assert alone.sums.tobytes() == np.ascontiguousarray(asked.sums[[2, 0]]).tobytes()
    last = "2" if name == "mlp" else "head"
    hits = memory.topk(last, "test/1-2", 4, score="gradient")
    assert hits.ids.tobytes() == memory.topk(last, live, 4, score="gradient").part(1, 3).ids.tobytes()
    assert memory.query_set("test").labels.tolist() == tests[1].tolist()
    assert what_is_wrong(path) == []


def test_the_training_goes_on_as_without_the_query_set(tmp_path):
    weights = []
    for taken in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.Linear(6, CLASSES))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        with dualform.Recorder(model, optimizer, tmp_path / f"m{taken}", quiet=True) as recorder:
            for step in range(4):
                inputs, labels = torch.randn(ROWS, 5), torch.randint(0, CLASSES, (ROWS,))
                with recorder.step():
                    optimizer.zero_grad()
                    loss(model(inputs), labels).sum().backward()
                    if taken and step == 2:  # midway: gradients are there, and no update has used them
                        recorder.query_set("midway", torch.ones(2, 5), torch.tensor([0, 1]), loss=loss)
                    optimizer.step()
                if taken:
                    recorder.query_set(f"after-{step}", torch.ones(2, 5), torch.tensor([0, 1]), loss=loss)
            weights.append([own.detach().clone() for own in model.parameters()])
    for one, other in zip(*weights, strict=True):
        assert torch.equal(one, other)
    memory = dualform.open(tmp_path / "mTrue")
    assert all(layer.exact for layer in memory.info().layers)
    assert memory.info().slots == {"sample": 4 * ROWS}
    sums = [memory.group_sum("*", name, by="step", score="gradient").sums for name in ("after-0", "after-3")]
    assert not np.allclose(*sums)  # of the weights as they were


def test_a_layer_that_is_called_twice_has_the_rows_of_both_calls(tmp_path):
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True) as recorder:
        with recorder.step():
            loss(model(torch.randn(3, 4)), torch.zeros(3, dtype=torch.long)).sum().backward()
            optimizer.step()
        inputs, labels = torch.randn(2, 4), torch.tensor([0, 1])
        recorder.query_set("test", inputs, labels, loss=loss)
    memory = dualform.open(tmp_path / "m")
    stored = memory._view.snapshot.query_set("test").gradients("0")
    assert stored.examples.tolist() == [0, 1, 0, 1]
    live = memory.gradients(model, inputs, labels, loss)
    assert same(stored.keys, live.layers["0"].keys)
    assert same(stored.errors, live.layers["0"].errors)


def test_labels_of_other_types_go_to_the_loss(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(nn.Sequential(model), optimizer, tmp_path / "m", quiet=True) as recorder:
        with recorder.step():
            model(torch.randn(3, 3)).square().mean().backward()
            optimizer.step()
        recorder.query_set(
            "test", torch.ones(2, 3), torch.rand(2, 2), loss=lambda output, wanted: (output - wanted).square().sum(1)
        )
    memory = dualform.open(tmp_path / "m")
    assert memory.query_set("test").labels is None
    assert memory.topk("*", "test", 2, score="gradient").counts.tolist() == [[2], [2]]


def test_what_cannot_be_asked_or_taken_is_refused_and_nothing_is_stored(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = torch.randn(2, 5), torch.tensor([0, 1])
    with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True) as recorder:
        with recorder.step():
            loss(model(inputs), labels).sum().backward()
            optimizer.step()
        recorder.query_set("plain", inputs, labels)
        with pytest.raises(BadInput, match="The loss of query set 'test' must return") as refused:
            recorder.query_set("test", inputs, labels, loss=nn.functional.cross_entropy)
        assert refused.value.field == "loss"
        for said, more in (
            ("has 2 examples but 1 labels", {"label": labels[:1], "loss": loss}),
            ("labels of query set 'test' cannot be made a tensor: NoneType", {"loss": loss}),
            ("is nan for example", {"label": labels, "loss": lambda *of: loss(*of) * torch.nan}),
        ):
            with pytest.raises(BadInput, match=said):
                recorder.query_set("test", inputs, **more)
        recorder.query_set("test", inputs, labels, loss=loss)
    memory = dualform.open(tmp_path / "m")
    assert {query_set.name for query_set in memory.info().query_sets} == {"plain", "test"}
    for error, said, asked in (
        (BadInput, "Query set 'plain' was recorded without a loss, so it has no gradients", "plain"),
        (NotFound, "example", "test/2"),
        (NotFound, "nix", "nix"),
        (BadInput, "at least one example", QuerySetExamples("test", ())),
    ):
        with pytest.raises(error, match=said):
            memory.topk("*", asked, score="gradient")


def test_a_file_that_was_altered_is_named(copied):
    (file,) = (copied / "probes" / "test").glob("errors-0.npy")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(Damaged, match=r"errors-0\.npy"):
        dualform.open(copied).topk("*", "test", score="gradient")
    assert any("errors-0.npy" in said for said in what_is_wrong(copied))


def test_a_copy_has_them_and_deleting_the_query_set_takes_them_along(copied, tmp_path):
    before = dualform.open(copied).group_sum("*", "test", by="sample", score="gradient")
    copy_memory(copied, tmp_path / "copy")
    after = dualform.open(tmp_path / "copy").group_sum("*", "test", by="sample", score="gradient")
    assert after.sums.tobytes() == before.sums.tobytes()
    shutil.rmtree(copied)
    dualform.delete(tmp_path / "copy", "sample = 3", query_sets=("test",))
    assert not (tmp_path / "copy" / "probes" / "test").exists()
    with pytest.raises(NotFound):
        dualform.open(tmp_path / "copy").topk("*", "test", score="gradient")


def test_a_budget_counts_them(tmp_path):
    sizes = []
    for asked in (None, loss):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(500, 40), nn.Linear(40, CLASSES))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        path = tmp_path / f"m{asked is None}"
        with dualform.Recorder(model, optimizer, path, budget="50 MB", quiet=True) as recorder:
            with recorder.step():
                loss(model(torch.randn(4, 500)), torch.zeros(4, dtype=torch.long)).sum().backward()
                optimizer.step()
            recorder.query_set("test", torch.randn(900, 500), torch.zeros(900, dtype=torch.long), loss=asked)
            with pytest.raises(BadInput, match="of the budget is left"):
                recorder.query_set("more", torch.randn(30000, 500), torch.zeros(30000, dtype=torch.long), loss=asked)
        sizes.append(sum(file.stat().st_size for file in (path / "probes").rglob("*.npy")))
    assert sizes[1] - sizes[0] >= 900 * (40 + CLASSES) * 4


def test_a_memory_without_values_has_no_gradients(tmp_path):
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = torch.randn(3, 5), torch.tensor([0, 1, 2])
    with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True, values=False) as recorder:
        with recorder.step():
            loss(model(inputs), labels).sum().backward()
            optimizer.step()
        with pytest.raises(BadInput, match=r"^The memory was recorded without values, which query set 'test' need\."):
            recorder.query_set("test", inputs, labels, loss=loss)
    with (
        dualform.open(tmp_path / "m") as memory,
        pytest.raises(BadInput, match="The memory was recorded without values, which"),
    ):
        memory.gradients(model, inputs, labels, loss)
