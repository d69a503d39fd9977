"""An embedding of which a training uses few rows: what it does to them must be seen, or be measured at the end."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import Inexact
from dualform.query.weights import exactness
from tests.trainings import record_steps

WIDTH = 64


class Words(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(rows, WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, tokens):
        return self.head(self.words(tokens).mean(1))


def trained(path, rows, used, after=lambda model: None):
    """A memory of a training that uses the first rows alone; `after`: what happens behind the recorder's back."""
    model, generator = Words(rows), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer.register_step_post_hook(lambda *_: after(model))
    record_steps(
        dualform.Recorder(model, optimizer, path, quiet=True),
        optimizer,
        (
            (torch.randint(used, (16, 6), generator=generator), torch.randint(10, (16,), generator=generator))
            for _ in range(20)
        ),
        lambda tokens, label: cross_entropy(model(tokens), label),
        label=lambda tokens, label: label,
    )
    return model, dualform.open(path)


@pytest.mark.parametrize("rows", [3000, 5000, 20_000])
def test_of_some_neighbouring_rows_a_few_are_watched(tmp_path, rows):
    def shrink(model):
        model.words.weight.detach().numpy()[:30] *= 0.999  # which no version counter sees

    _, memory = trained(tmp_path / "memory", rows, 30, shrink)
    with memory:
        assert memory.verify()["words"].status.name == "approximate"
        with pytest.raises(Inexact, match="'words' cannot be reconstructed exactly"):
            memory.output("words", np.eye(1, rows, 3, dtype=np.float32), at_step=15)


@pytest.mark.parametrize("shrinks", [False, True], ids=["as the optimizer does", "shrunk by hand"])
def test_where_none_of_them_is_watched_a_pass_at_the_end_tells(tmp_path, shrinks):
    def shrink(model):
        if shrinks:
            model.words.weight.detach().numpy()[:2] *= 0.999

    model, memory = trained(tmp_path / "memory", 50_000, 2, shrink)
    query = np.eye(1, 50_000, 1, dtype=np.float32)
    with memory:
        (layer,) = (own for own in memory.info().layers if own.name == "words")
        why = "none of the watched numbers of words.weight moved"
        assert str(layer.status) == "approximate"
        assert layer.status.reason == f"{why} while training; `verify` measures the end of it."
        with pytest.raises(Inexact, match=f"{why} while training"):
            memory.output("words", query, at_step=15)
        found = memory.verify()["words"]
        if shrinks:
            assert found.status.name == "approximate"
            assert found.status.reason.endswith(f" of the distance it moved; {why}.")
            with pytest.raises(Inexact, match=why):
                memory.output("words", query)
            return
        assert found.status.name == "exact"
        assert 0 < found.reconstruction_error < 1e-4
        output = memory.output("words", query)
        assert output.status.name == "exact"
        moved = np.linalg.norm(model.words.weight.detach()[1] - Words(50_000).words.weight.detach()[1])
        assert np.linalg.norm(output.values[0] - model.words.weight.detach()[1].numpy()) < 1e-4 * moved


def test_every_block_at_rest_is_asked_not_the_first_alone(tmp_path, monkeypatch):
    _, memory = trained(tmp_path / "memory", 50, 50)
    with memory:
        layer = memory._view.snapshot.layers["head"]
        at_rest = [SimpleNamespace(way=np.zeros(1)) for _ in layer.parameters]
        monkeypatch.setattr(exactness, "distances", lambda view, layer: at_rest)
        before = {name: own.copy() for name, own in memory._view.stored_weights("initial").items()}
        after = before | {"head.bias": before["head.bias"] + 1}
        stored = {"initial": before, "final": after}
        monkeypatch.setattr(memory._view, "stored_weights", stored.__getitem__)
        assert exactness.unwatched(memory._view, layer) == "none of the watched numbers of head.bias moved"
        stored["final"] = before
        assert exactness.unwatched(memory._view, layer) == ""
