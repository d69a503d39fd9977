"""A probe, as it is stored."""

from __future__ import annotations

import time

import numpy as np

from dualform.answers import Probe
from dualform.query.view import View


def stored_probe(view: View, name: str, layer: str | None) -> Probe:
    """A stored probe. Raises NotFound for one that does not exist, or that does not hold the layer."""
    began = time.perf_counter()
    stored = view.snapshot.probe(name)
    queries = None
    if layer is not None:
        asked = view.snapshot.layer(layer)
        view.bounds.require(stored.rows, 4 * asked.d_in, "Ask by the probe's name instead.", "layer")
        queries = np.ascontiguousarray(stored.queries(asked.stored.name)[:, asked.own_keys])
    return Probe(name, stored.labels, stored.outputs, queries, view.scan(began))
