"""A unit that goes dead leaves averages behind that fade. The watch keeps them where processors are quick, and what it
measures stays the same to the last bit.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dualform.record.recorded_entries import RecordedEntries
from dualform.record.recorded_parameters import RecordedParameters
from dualform.record.taps import ModuleTap
from dualform.record.watched_states import WatchedStates
from dualform.rules import named

from .listed import Opened, batches, small_net, train

LEAST = np.finfo(np.float64).smallest_normal
STEPS = 1040
"""0.5 takes what gradients are made of to numbers that are denormal in float64, and not to 0 yet."""
OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, {"betas": (0.5, 0.5)}),
    "adam": (torch.optim.Adam, {"betas": (0.5, 0.6), "eps": 0.0}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.5, "momentum": 0.5}),
    "nadam": (torch.optim.NAdam, {"betas": (0.5, 0.5)}),
    "adadelta": (torch.optim.Adadelta, {"rho": 0.5}),
}


class Fading(WatchedStates):
    """As the watch had them before."""

    def lift(self):
        pass


def denormal(states):
    numbers = np.concatenate([own.reshape(-1) for own in states.buffers.values()])
    return bool(np.any((numbers != 0) & (np.abs(numbers) < LEAST)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_averages_stay_where_processors_are_quick(name):
    """Weights alone move: those of a unit that gets no gradient any more, and those beside it."""
    make, chosen = OPTIMIZERS[name]
    rule, layer = named(name), nn.Linear(4, 3)
    (group,) = make(layer.parameters(), lr=1e-3, **chosen).param_groups
    parameters = RecordedParameters([ModuleTap.kind_of(layer)("0", layer)], np.random.default_rng(0))
    image, names = RecordedEntries(parameters, np.random.default_rng(0)), [own.parameter for own in parameters]
    both = [kind(image, names, [rule] * 2, image.weights(), {}, count=3) for kind in (WatchedStates, Fading)]
    generator, settings = np.random.default_rng(1), rule.read(group)
    with np.errstate(all="ignore"):
        for step in range(STEPS):
            gradient = generator.normal(size=image.size)
            gradient[:5] *= step < 3
            for states in both:
                states.advance(0, 1, np.stack([gradient] * 3), settings)
                states.lift()
            np.testing.assert_array_equal(both[0].weight, both[1].weight)
    assert [denormal(states) for states in both] == [False, True]


def test_what_is_measured_stays_the_same(monkeypatch, tmp_path):
    """Of a network whose first three units go dead at step 3."""
    held, found = list[WatchedStates](), list[list[tuple[str, ...]]]()
    for kind in (WatchedStates, Fading):

        class Spy(kind):
            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                held.append(self)

        monkeypatch.setattr("dualform.record.watch.WatchedStates", Spy)
        model, data = small_net(), batches(STEPS)
        opened = Opened(model, torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.5, 0.5)), tmp_path / kind.__name__)
        with opened.recorder:
            train(opened, model, data[:3])
            with torch.no_grad():
                model[0].bias[:3] = -1000.0
            train(opened, model, data[3:])
        rows = [row for own in opened.sink.watch.values() for row in own]
        measured = ("one_step", "accumulated", "way", "rounding", "noise")
        found.append([(row.parameter, *(getattr(row, name).hex() for name in measured)) for row in rows])
    assert len(found[0]) > STEPS
    assert found[0] == found[1]
    assert [denormal(states) for states in held] == [False, True]
