"""Answers say what they are about: their space, how exact they are, what they took; also of a running training."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.answers import Outputs, Status, Weights
from dualform.errors import BadInput, MissingPackage, NotFound
from tests.trainings import learn, record_steps, take_steps

STEPS, ROWS, TOKENS = 4, 5, 3


class TwoSpaces(nn.Module):
    """A layer of tokens and one of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        head: torch.Tensor = self.head(torch.relu(self.token(tokens)).mean(dim=1))
        return head


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TwoSpaces]:
    torch.manual_seed(0)
    path, model = tmp_path_factory.mktemp("spaces") / "run", TwoSpaces()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    record_steps(
        dualform.Recorder(model, optimizer, path),
        optimizer,
        (torch.randint(0, 2, (ROWS,)) for _ in range(STEPS)),
        lambda label: nn.functional.cross_entropy(model(torch.randn(ROWS, TOKENS, 3)), label),
        dataset="made",
        label=lambda label: label,
    )
    return path, model


@pytest.fixture
def memory(trained):
    with dualform.open(trained[0]) as memory:
        yield memory


def test_answers_carry_the_space_of_their_layer(memory):
    for layer, space in (("token", "token"), ("head", "sample")):
        queries = np.ones((1, 3 if layer == "token" else 4))
        assert memory.topk(layer, queries).space == space
        assert memory.group_sum(layer, queries, by="label").space == space
        assert memory.output(layer, queries).space == space


def test_slots_of_hits_are_those_of_their_space(memory):
    hits = memory.topk("token", np.ones(3), k=4)
    found = memory.slots(hits)
    assert found["slot"].tolist() == hits.ids.tolist()
    assert found["position"].tolist() == (hits.ids % TOKENS).tolist()
    assert found["row"].tolist() == (hits.ids // TOKENS % ROWS).tolist()
    assert memory.slots(hits.slots[0], "token").records() == found.records()


def test_ids_without_a_space_are_refused_where_there_are_several(memory):
    with pytest.raises(BadInput) as caught:
        memory.slots([0, 1])
    assert caught.value.message.startswith("space is missing: this memory has several slot spaces, ")
    assert {"sample", "token"} <= set(caught.value.message.rstrip(".").replace(",", "").split())
    assert caught.value.hint.endswith(", or call memory.slots(hits).")
    assert caught.value.field == "space"


def test_hits_are_not_looked_up_in_another_space(memory):
    hits = memory.topk("token", np.ones(3))
    with pytest.raises(BadInput, match=r"^space is 'sample', but these hits are slots of space 'token'\."):
        memory.slots(hits, "sample")


def test_one_mask_a_space_leaves_the_other_whole(memory):
    whole, masked = memory.weights(), memory.weights({"token": "position = 1"})
    assert masked.kept == {"token": STEPS * ROWS, "sample": STEPS * ROWS}
    assert torch.equal(masked["head.weight"], whole["head.weight"])
    kept = memory.output("token", np.eye(3), where="position = 1").values - masked["token.bias"].numpy()
    np.testing.assert_allclose(masked["token.weight"].numpy().T, kept, atol=1e-6)
    with pytest.raises(NotFound, match="no space 'nix'"):
        memory.weights({"nix": "label = 1"})


def test_cancellation_by_space_is_of_the_layers_of_that_space(memory):
    found = memory.cancellation({"token": "position = 1"})
    assert list(found) == ["token"]
    assert found == memory.cancellation("position = 1", layer="token")


def test_weights_are_taken_by_load_state_dict(memory, trained):
    weights, model = memory.weights(), TwoSpaces()
    model.load_state_dict(weights)
    for name, parameter in trained[1].state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], parameter, rtol=1e-5, atol=1e-6)
    assert {layer: status.name for layer, status in weights.statuses.items()} == {"token": "exact", "head": "exact"}
    assert weights.unrecorded_change == {"token": 0.0, "head": 0.0}
    assert weights.not_recorded == ()
    assert weights.scan.slots_scanned == weights.scan.slots_matching == STEPS * ROWS * (1 + TOKENS)


def test_keys_and_values_of_slots_are_those_of_the_training(memory):
    columns = memory.slots(np.arange(STEPS * ROWS), "sample")
    keys, values = memory.keys("head", columns["slot"]), memory.values("head", columns["slot"])
    assert (keys.dtype, keys.shape) == (np.float32, (STEPS * ROWS, 4))
    assert (values.dtype, values.shape) == (np.float32, (STEPS * ROWS, 2))
    assert memory.keys("head", [7, 2]).tobytes() == keys[[7, 2]].tobytes()
    terms = memory.coefficients("head", columns["slot"])[:, None] * values
    change = memory.weights()["head.weight"] - memory.weights(at_step=0)["head.weight"]
    np.testing.assert_allclose(terms.T @ keys.astype(np.float64), change, atol=1e-6)
    assert not memory.coefficients("head", [STEPS * ROWS - 1], at_step=STEPS - 1).any()
    with pytest.raises(NotFound, match=f"There is no slot with number {STEPS * ROWS}"):
        memory.keys("head", [STEPS * ROWS])


def test_look_ups_say_what_they_saw(memory):
    slots, snapshot = memory.slots([3, 1], "token"), memory.info().snapshot
    assert slots.space == "token"
    assert (slots.scan.slots_scanned, slots.scan.slots_matching) == (STEPS * ROWS * TOKENS, 2)
    rows, reconstructions = memory.sql("SELECT 1 AS one"), memory.verify()
    assert rows.space == ""
    assert reconstructions.scan.slots_scanned == STEPS * ROWS * (1 + TOKENS)
    assert [one.scan.snapshot for one in (slots, rows, reconstructions)] == [snapshot] * 3
    assert all(one.scan.seconds > 0 for one in (slots, rows, reconstructions))


def test_slots_that_share_a_key_have_equal_key_rows(memory):
    ids = np.arange(STEPS * ROWS * TOKENS)
    rows, keys = memory.key_rows("token", ids), memory.keys("token", ids)
    for row in np.unique(rows):
        assert len(np.unique(keys[rows == row], axis=0)) == 1


class TestOutputs:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    outputs = Outputs(values, "sample", Status("exact"))

    def test_numpy_takes_them_as_the_array(self):
        assert np.asarray(self.outputs).tobytes() == self.values.tobytes()
        assert np.asarray(self.outputs, dtype=np.float64).dtype == np.float64
        assert np.argmax(self.outputs, axis=1).tolist() == [2, 2]
        assert np.concatenate([self.outputs, self.outputs]).shape == (4, 3)
        np.testing.assert_array_equal(self.outputs - 1, self.values - 1)
        np.testing.assert_array_equal(self.values @ np.transpose(self.outputs), self.values @ self.values.T)
        np.testing.assert_array_equal(self.outputs == self.values, np.ones((2, 3), dtype=bool))

    def test_a_copy_is_a_copy(self):
        copied = np.array(self.outputs)
        copied[0, 0] = 9
        assert self.outputs[0, 0] == 0
        with pytest.raises(ValueError, match="would take a copy"):
            np.array(self.outputs, dtype=np.float64, copy=False)

    def test_shape_length_and_indexing(self):
        assert (self.outputs.shape, self.outputs.ndim, len(self.outputs)) == ((2, 3), 2, 2)
        assert self.outputs.dtype == np.float32
        assert self.outputs[1, 2] == 5
        assert [row.tolist() for row in self.outputs] == self.values.tolist()

    def test_they_are_not_written_into(self):
        with pytest.raises(TypeError):
            np.add(self.values, 1, out=self.outputs)


class TestWeights:
    arrays: ClassVar = {"w": np.ones((2, 2), np.float32), "steps": np.array(3)}
    weights = Weights(arrays, {}, {})

    def test_a_mapping_of_tensors(self):
        assert list(self.weights) == ["w", "steps"]
        assert torch.equal(self.weights["w"], torch.ones(2, 2))
        assert self.weights["steps"].shape == ()
        assert "w" in self.weights
        assert "nix" not in self.weights
        with pytest.raises(KeyError):
            self.weights["nix"]

    def test_without_torch_the_arrays_are_there_and_a_tensor_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "torch", None)
        weights = Weights(self.arrays, {}, {})
        assert weights.arrays["steps"] == 3
        with pytest.raises(MissingPackage, match=r"the extra \[record\] brings it"):
            weights["w"]


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (Status("exact", 1e-7), "exact"),
        (Status("exact to bfloat16", 2e-3), "exact to bfloat16"),
        (Status("approximate", 0.25, since=7), "approximate since step 7, error 2.5e-01"),
        (Status("approximate", reason="cut off"), "approximate"),
    ],
)
def test_a_status_says_what_it_is(status, says):
    assert str(status) == says
    assert status.exact is (says == "exact")


UPDATES, BATCH, INPUTS = 25, 8, 40


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))


def train(path, watch=None):
    """Two data sets one after the other; returns the network's weights before each step and after the last."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    inputs = torch.randn(INPUTS, 12)
    labels = torch.arange(INPUTS) % 3
    states = []
    with dualform.Recorder(model, optimizer, path) as recorder:
        for step in range(UPDATES):
            index = torch.randint(0, INPUTS, (BATCH,))
            states.append({name: value.clone() for name, value in model.state_dict().items()})
            dataset = "early" if step < 10 else "late"
            with recorder.step(dataset=dataset, label=labels[index], sample=index):
                loss = nn.functional.cross_entropy(model(inputs[index]), labels[index])
                learn(optimizer, loss, lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            if watch:
                watch(step, recorder)
        recorder.query_set("test", inputs, label=labels)
    states.append({name: value.clone() for name, value in model.state_dict().items()})
    return model, inputs, states


@pytest.fixture(scope="module")
def of_two_datasets(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "small"
    return path, *train(path)


@pytest.fixture(scope="module")
def whole(of_two_datasets):
    with dualform.open(of_two_datasets[0], backend="int8") as whole:
        yield whole


def test_info_says_what_there_is(whole):
    info = whole.info()
    assert (info.slots, info.steps, info.recording) == ({"sample": UPDATES * BATCH}, UPDATES, False)
    assert [(layer.name, layer.d_in, layer.d_out, layer.exact) for layer in info.layers] == [
        ("0", 12, 16, True),
        ("2", 16, 3, True),
    ]
    assert info.layers[0].distinct_keys <= INPUTS
    assert info.datasets == {"early": 10 * BATCH, "late": 15 * BATCH}
    assert info.columns["sample"]["label"] == "BIGINT"
    assert info.query_sets[0].rows == INPUTS


def test_slots_come_in_the_order_asked(whole):
    found = whole.slots([5, 3, 5])
    assert found["slot"].tolist() == [5, 3, 5]
    assert found.records()[1]["dataset"] == "early"
    with pytest.raises(NotFound, match="There is no slot with number 200"):
        whole.slots([0, 200])
    with pytest.raises(NotFound, match="There is no slot with number -1"):
        whole.slots([-1])
    with pytest.raises(NotFound, match="no space 'token'"):
        whole.slots([0], space="token")
    assert whole.slots([]).rows == 0


def test_a_reader_follows_a_training_that_is_still_running(tmp_path):
    seen = []

    def watch(step, recorder):
        if step == 4:
            recorder.flush()
            seen.append(dualform.open(tmp_path / "run"))
            assert seen[0].info().recording
            assert not seen[0].refresh()
            assert seen[0].topk("0", np.ones(12), k=1000).ids.size == 5 * BATCH

    model, _, _ = train(tmp_path / "run", watch)
    reader = seen[0]
    assert reader.topk("0", np.ones(12), k=1000).scan.slots_scanned == 5 * BATCH
    assert reader.sql("SELECT count(*) AS n FROM slots").records() == [{"n": 5 * BATCH}]
    assert reader.refresh()
    assert reader.topk("0", np.ones(12), k=1000).ids.size == UPDATES * BATCH
    assert reader.sql("SELECT count(*) AS n FROM slots").records() == [{"n": UPDATES * BATCH}]
    np.testing.assert_allclose(reader.weights()["0.weight"], model.state_dict()["0.weight"], atol=2e-6)
    reader.close()


def test_many_threads_get_the_answers_of_one(of_two_datasets):
    def ask(whole):
        hits = whole.topk("2", "test", k=7, where="label <> 1", by="dataset")
        sums = whole.group_sum("0", "test", by="label", score="abs")
        return (
            hits.ids.tobytes(),
            hits.flat_scores.tobytes(),
            sums.sums.tobytes(),
            whole.output("2", "test").values.tobytes(),
        )

    with dualform.open(of_two_datasets[0]) as alone:
        expected = ask(alone)
    found = []
    with dualform.open(of_two_datasets[0]) as whole:
        threads = [threading.Thread(target=lambda: found.append(ask(whole))) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [expected] * 5


CLASSES = 4


class Net(nn.Module):
    """What comes after `head` makes its outputs others than the network's."""

    def __init__(self, after=nn.Identity()):  # noqa: B008
        super().__init__()
        self.hidden, self.head, self.after = nn.Linear(6, CLASSES), nn.Linear(CLASSES, CLASSES), after

    def forward(self, x):
        return self.after(self.head(torch.tanh(self.hidden(x))))


@pytest.fixture
def record(tmp_path):
    def record(model, layers=None, query_set=True):
        torch.manual_seed(0)
        inputs, labels = torch.randn(20, 6), torch.randint(0, CLASSES, (20,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with dualform.Recorder(model, optimizer, tmp_path / "run", layers=layers, quiet=True) as recorder:
            take_steps(
                recorder,
                optimizer,
                3,
                lambda _: nn.functional.cross_entropy(model(inputs), labels),
                label=labels,
                sample=torch.arange(20),
            )
            if query_set:
                recorder.query_set("test", inputs[:5], label=labels[:5])
        return dualform.open(tmp_path / "run")

    return record


@pytest.mark.parametrize(
    ("after", "layers", "found"),
    [
        (nn.Identity(), None, "head"),
        (nn.Identity(), ["hidden"], None),
        (nn.Sigmoid(), None, None),
        (nn.LogSoftmax(dim=1), ["head"], None),
    ],
)
def test_a_layer_gives_the_outputs_only_if_they_are_its_own(record, after, layers, found):
    with record(Net(after), layers) as memory:
        assert memory.info().output_layer == found
        if found:
            assert memory.placebo(queries="test", where="label <> 1").margin.shape == (5,)
            return
        for ask in (memory.output, memory.topk, lambda queries: memory.placebo(queries=queries, where="label <> 1")):
            with pytest.raises(BadInput, match=r"which layer gives|the layer that gives") as refused:
                ask(queries="test")
            assert refused.value.field == "layer"
            assert (layers or ["head"])[0] in refused.value.hint


def test_the_only_layer_is_asked_where_nothing_tells_of_outputs(record):
    with record(nn.Sequential(nn.Linear(6, CLASSES)), query_set=False) as memory:
        assert memory.info().output_layer == "0"
