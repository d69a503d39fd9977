"""A training whose layers only its first step shows goes on with all of them, under their names."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

import dualform
from dualform.errors import RecordingError
from tests.trainings import learn

MOMENT, STEPS = 3, 6


class Free(nn.Module):
    """Multiplies a matrix both ways round, the first way in odd steps first."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.head = nn.Parameter(torch.randn(6, 6) * 0.3), nn.Linear(6, 3)

    def forward(self, x, number):
        one, other = (self.w, self.w.T) if number % 2 else (self.w.T, self.w)
        return self.head(torch.tanh(x @ one + x @ other))


class Late(Free):
    """Its matrix is not multiplied in every step: not in that from which the training goes on."""

    def forward(self, x, number):
        return self.head(torch.tanh(x if number == MOMENT else x @ self.w))


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.head = nn.Parameter(torch.randn(6, 6) * 0.3), nn.Linear(6, 3)

    def forward(self, x, number):
        return self.head(torch.tanh(dualform.tap(x, self.w.T, "hand")))


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(6, 6) * 0.3), nn.Parameter(torch.zeros(6))
        self.head = nn.Linear(6, 3)

    def forward(self, x, number):
        return self.head(torch.tanh(linear(x, self.w, self.b)))


class Experts(nn.Module):
    """Each row goes to one of three, and to the first alone in the step from which the training goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.head = nn.Parameter(torch.randn(3, 6, 6) * 0.3), nn.Linear(6, 3)

    def forward(self, x, number):
        to = torch.zeros(len(x), dtype=torch.long) if number == MOMENT else torch.arange(len(x)) % 3
        h = torch.zeros_like(x)
        for expert in to.unique().tolist():
            rows = (to == expert).nonzero()[:, 0]
            h = h.index_add(0, rows, linear(x[rows], self.up[expert]))
        return self.head(torch.tanh(h))


KINDS = {
    Free: {"head", "w", "w.2"},
    Late: {"head", "w"},
    ByHand: {"head", "hand"},
    Biased: {"head", "w"},
    Experts: {"head", "up[0]", "up[1]", "up[2]"},
}


def train(kind, path, first, until, saved=None, **options):
    """The states before each step and at the end."""
    torch.manual_seed(0)
    model = kind()
    if saved is not None:
        model.load_state_dict(saved)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with dualform.Recorder(model, optimizer, path, quiet=True, **options) as recorder:
        for number in range(first, until):
            seen.append({name: value.clone() for name, value in model.state_dict().items()})
            generator = torch.Generator().manual_seed(number)
            x, y = torch.randn(7, 6, generator=generator), torch.randint(3, (7,), generator=generator)
            with recorder.step(label=y):
                learn(optimizer, cross_entropy(model(x, number), y))
        recorder.flush()
    return [*seen, {name: value.clone() for name, value in model.state_dict().items()}]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_resumed_training_has_the_layers_and_weights_of_one_that_never_stopped(tmp_path, kind):
    live = train(kind, tmp_path / "whole", 0, STEPS)
    saved = train(kind, tmp_path / "m", 0, MOMENT)[-1]
    train(kind, tmp_path / "m", MOMENT, STEPS, saved, resume=True)
    with dualform.open(tmp_path / "whole") as whole, dualform.open(tmp_path / "m") as memory:
        assert {layer.name for layer in memory.info().layers} == KINDS[kind]
        spaces = [{layer.name: layer.space for layer in own.info().layers} for own in (whole, memory)]
        assert spaces[0] == spaces[1]
        assert whole.info().slots == memory.info().slots
        for at_step in (MOMENT, MOMENT + 1, STEPS):
            one, other = (own.weights(at_step=at_step) for own in (whole, memory))
            for name, value in live[at_step].items():
                assert torch.equal(one[name], other[name]), (at_step, name)
                assert torch.allclose(other[name], value, atol=2e-6), (at_step, name)
        for layer, reconstruction in memory.verify().items():
            assert (reconstruction.exact, reconstruction.reason) == (True, ""), layer


def test_a_network_without_the_matrix_is_refused_by_name(tmp_path):
    class Without(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x, number):
            return self.head(x)

    train(Free, tmp_path / "m", 0, 2)
    with pytest.raises(RecordingError, match="network differs from what it was"):
        train(Without, tmp_path / "m", 2, 4, resume=True)
    saved = train(Free, tmp_path / "other", 0, 2)[-1]
    with pytest.raises(RecordingError, match="layer 'w' was recorded before the training was resumed, and is not now"):
        train(Free, tmp_path / "other", 2, 4, saved, resume=True, layers="head")
