"""A pass over the slots confirms what the watch estimated, or says what it found."""

from __future__ import annotations

import pytest
import torch

from dualform.answers import Status
from dualform.query.weights.exactness import BlockDistance
from dualform.query.weights.reconstruction import _confirmed

from .trained import train


def in_bfloat16(model, x):
    with torch.autocast("cpu", torch.bfloat16):
        return model(x).float()


@pytest.mark.parametrize(
    ("forward", "found", "name"),
    [
        (in_bfloat16, 0.9e-3, "exact"),
        (in_bfloat16, 1.1e-3, "exact to bfloat16"),
        (in_bfloat16, 9e-3, "approximate"),
        (None, 1.1e-3, "approximate"),
    ],
    ids=["as estimated", "bfloat16", "beyond bfloat16", "float32"],
)
def test_an_estimate_below_a_bound_may_be_found_above_it(tmp_path, forward, found, name):
    with train(tmp_path / "m", forward=forward, steps=2).engine as engine:
        view = engine._view
        layer = view.snapshot.layer("2")
        misses = [BlockDistance(block, found, 1.0, 0.0) for block in layer.parameters]
        reconstruction = _confirmed(view, found, misses, Status("exact", 0.8e-3, 0.0))
    assert (reconstruction.reconstruction_error, reconstruction.status.name) == (found, name)
    assert bool(reconstruction.status.reason) == (name == "approximate")
