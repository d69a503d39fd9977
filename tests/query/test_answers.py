"""Answers say what they are about: their slot space, how exact they are, and what they took."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.answers import Outputs, Status, Weights
from dualform.errors import BadInput, MissingPackage, NotFound
from tests.trainings import record_steps

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
