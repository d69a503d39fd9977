"""A weight that layers of two spaces share, as a translator's embedding: what a mask says of both."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput
from tests.trainings import record_steps


class Translator(nn.Module):
    """Encoder and decoder embed words by one weight."""

    def __init__(self):
        super().__init__()
        self.read, self.said = nn.Embedding(9, 4), nn.Embedding(9, 4)
        self.said.weight = self.read.weight
        self.head = nn.Linear(4, 2)

    def forward(self, source, target):
        return self.head(self.said(target).mean(1) + self.read(source).mean(1))


@pytest.fixture(scope="module", params=[torch.optim.SGD, torch.optim.AdamW])
def memory(request, tmp_path_factory):
    torch.manual_seed(0)
    model = Translator()
    optimizer = request.param(model.parameters(), lr=0.1)
    path = tmp_path_factory.mktemp("tied") / "m"
    record_steps(
        dualform.Recorder(model, optimizer, path, spaces={"said": "target"}),
        optimizer,
        ((step, torch.randint(0, 9, (5, 7))) for step in range(6)),
        lambda step, words: model(words[:, :4], words[:, 4:]).square().sum(),
        dataset=lambda step, words: "ab"[step % 2],
        sample=np.arange(5),
    )
    with dualform.open(path) as opened:
        yield opened


@pytest.mark.parametrize("where", ["dataset = 'a'", "sample <> 1", "step > 2"])
def test_a_mask_over_samples_holds_in_both_spaces(memory, where):
    one_hot = np.eye(9, dtype=np.float32)
    expected = memory.weights(where=where).arrays["read.weight"]
    for layer in ("read", "said"):
        assert np.asarray(memory.output(layer, one_hot, where=where)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("layer", ["read", "said"])
@pytest.mark.parametrize("where", ["dataset = 'a'", "step > 2"])
def test_a_placebo_is_refused_whose_slots_are_of_both_spaces(memory, layer, where):
    """Each space numbers its own samples: a set that is drawn from one would leave out others of the other."""
    with pytest.raises(BadInput, match=r"layers .* share a parameter and have slots of several spaces") as refused:
        memory.placebo(layer, np.eye(9, dtype=np.float32), where)
    assert refused.value.field == "layer"
    assert "parameters of its own" in refused.value.hint
    assert len(memory.placebo("head", np.ones((1, 4), np.float32), where)) == 1


@pytest.mark.parametrize("layer", ["read", "said", None])
def test_slots_of_a_layer_whose_parameter_is_of_two_spaces_are_not_named_by_number(memory, layer):
    with pytest.raises(BadInput, match="slots are numbered by space"):
        memory.cancellation({"slot": [0, 1]}, layer=layer)
    assert list(memory.cancellation({"slot": [0, 1]}, layer="head").record())


def test_a_mask_over_tokens_speaks_of_one_space(memory):
    with pytest.raises(BadInput, match=r"'read' shares .* layer 'said', whose slots are of space 'target'"):
        memory.output("read", np.eye(9, dtype=np.float32), where="position > 1")
