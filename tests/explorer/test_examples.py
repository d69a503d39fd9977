"""Which of a layer's stored queries is that of an example, and what the network made of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dualform
from dualform_explorer.panels.answer import output_panel
from dualform_explorer.panels.example import query_panel
from dualform_explorer.start import query_set_panel
from dualform_explorer.state import State
from dualform_explorer.view import Snapshot, View

TOKENS, EXAMPLES = 5, 12


class HeadFirst(nn.Module):
    """Reads tokens, and has its layers the other way round than it runs them."""

    def __init__(self, outputs: int = 3, pair: bool = False) -> None:
        super().__init__()
        self.head, self.mix, self.words = nn.Linear(6, outputs), nn.Linear(6, 6), nn.Embedding(11, 6)
        self.pair = pair

    def forward(self, words: Tensor) -> Tensor | tuple[Tensor, None]:
        found = self.head(torch.tanh(self.mix(self.words(words))).mean(dim=1))
        return (found, None) if self.pair else found


def record(path: Path, model: nn.Module, labels: bool = True) -> Tensor:
    """A few steps; a query set "test" of EXAMPLES examples. Returns its inputs, int64[EXAMPLES, TOKENS]."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    words = torch.randint(11, (EXAMPLES, TOKENS), generator=torch.Generator().manual_seed(1))
    own = words[:, 0] % 2
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        for _ in range(10):
            with recorder.step(label=own, sample=torch.arange(EXAMPLES)):
                optimizer.zero_grad()
                answer = model(words)
                answer = answer[0] if isinstance(answer, tuple) else answer
                if answer.shape[1] == 1:
                    nn.functional.binary_cross_entropy_with_logits(answer[:, 0], own.float()).backward()
                else:
                    nn.functional.cross_entropy(answer, own).backward()
                optimizer.step()
        recorder.query_set("test", words, label=own if labels else None)
    return words


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("pair", [True, False], ids=["outputs that are no matrix", "outputs"])
def test_a_layer_is_asked_by_the_query_of_the_pages_example_whatever_the_order_of_layers(tmp_path, labels, pair):
    torch.manual_seed(0)
    model = HeadFirst(pair=pair)
    words = record(tmp_path / "run", model, labels)
    model.eval()
    with torch.no_grad():
        mixed = model.words(words)
        headed = torch.tanh(model.mix(mixed)).mean(dim=1)
    with dualform.open(tmp_path / "run") as memory:
        info = memory.info()
        assert [layer.name for layer in info.layers] == ["head", "mix", "words"]
        assert Snapshot(memory, info).examples_of("test").count == EXAMPLES
        for row in (0, 3, EXAMPLES - 1):
            for layer, token, inputs in (("head", None, headed[row]), ("mix", 2, mixed[row, 2])):
                query = View(memory, info, State("", "test", row, layer, ("label",), token)).query()
                assert query == (f"test/{row}" if token is None else f"test/{row}:{token}")
                stored = memory.query_set("test", layer).queries
                at = row if token is None else row * (len(stored) // EXAMPLES) + token
                assert stored[at] == pytest.approx(inputs.numpy(), abs=1e-6)


def test_a_single_output_is_no_reading_of_the_example(tmp_path):
    torch.manual_seed(0)
    record(tmp_path / "run", HeadFirst(outputs=1))
    with dualform.open(tmp_path / "run") as memory:
        info = memory.info()
        labels = memory.query_set("test").labels
        row = int(np.flatnonzero(labels == 1)[0])
        state = State("", "test", row, "head", ("label",))
        panel = query_panel(View(memory, info, state))
        assert (panel.label, panel.read, panel.wrong) == (1, None, False)
        assert [own.label for own in output_panel(View(memory, info, state)).outputs] == [False]
        start = query_set_panel(Snapshot(memory, info), "test")
        assert start.misclassified is None
        assert {card.read for card in start.cards} == {None}
