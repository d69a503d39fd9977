"""How well the record rebuilds the trained layers: ||[W|b]_T - rebuilt|| / ||[W|b]_T - [W|b]_0||."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.answers import Certificate, Grade
from dualform.query.view import Check, View
from dualform.query.weights.exactness import grade
from dualform.query.weights.rebuilt import build
from dualform.store.layer import Layer


def certify(view: View, check: Check) -> dict[str, Certificate]:
    """One certificate per recorded layer."""
    initial, final = view.snapshot.initial(), view.snapshot.final()
    return {name: _certify(view, layer, initial, final, check) for name, layer in view.snapshot.layers.items()}


def _certify(
    view: View,
    layer: Layer,
    initial: Mapping[str, NDArray[Any]],
    final: Mapping[str, NDArray[Any]] | None,
    check: Check,
) -> Certificate:
    known = grade(view, layer, None)
    if not view.snapshot.linear or not layer.values:
        return Certificate(None, known)
    if final is None or any(parameter.name not in final for parameter in layer.parameters):
        cut = Grade("off", reason="the training was cut off, so there are no final weights.")
        return Certificate(None, cut if known.exact else known)
    rebuilt = build(view, layer, view.select(layer, None), None, check)
    wanted = _joined(final, layer)
    found = _joined(rebuilt.parameters, layer)
    error, moved = np.linalg.norm(wanted - found), np.linalg.norm(wanted - _joined(initial, layer))
    if not moved:  # a layer that never moved is rebuilt exactly or not at all
        return Certificate(math.inf if error else 0.0, Grade("off", math.inf) if error and known.exact else known)
    return Certificate(float(error / moved), known)


def _joined(weights: Mapping[str, NDArray[Any]], layer: Layer) -> NDArray[np.float64]:
    """float64[d_out, d_in + biases]: every parameter's columns, side by side."""
    return np.column_stack([weights[parameter.name].astype(np.float64) for parameter in layer.parameters])
