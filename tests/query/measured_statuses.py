"""The status of a layer of a training that was recorded, and whether questions about it are answered."""

from __future__ import annotations

from dualform.query.weights.exactness import status
from dualform.query.weights.reconstruction import require

LAYERS = ("0", "2", "4")


def status_of(trained, layer="2", at_step=None):
    view = trained.engine._view
    return status(view, view.snapshot.layer(layer), at_step)


def required(trained, layer, at_step=None, allow_inexact=False):
    view = trained.engine._view
    return require(view, view.snapshot.layer(layer), at_step, allow_inexact, lambda: None)


# What happens to the weights of layer "2" after step WHEN.
