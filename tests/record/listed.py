"""A sink that keeps what it is given, and what that rebuilds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dualform.record.recorder import Recorder
from dualform.rules import Update, named
from dualform.store.reading.runs import opened
from tests.trainings import learn


class ListSink:
    """Batches in a list."""

    def __init__(self, header):
        self.header = header
        self.batches, self.query_sets, self.preview_sets = [], {}, {}
        self.final, self.finished, self.commits, self.abandoned = None, None, 0, False

    def append(self, batch):
        self.batches.append(batch)

    def tick(self):
        return None

    def commit(self):
        self.commits += 1

    def add_query_set(self, query_set):
        self.query_sets[query_set.name] = (query_set.queries, query_set.labels, query_set.outputs)

    def add_preview_set(self, dataset, preview_set, most_bytes=None):
        self.preview_sets[dataset] = preview_set

    def close(self, ending):
        self.final, self.finished, self.skipped = ending.final, ending.finished, ending.skipped

    def abandon(self):
        self.abandoned = True

    # What was recorded.

    @property
    def logs(self):
        return {log.step: log for batch in self.batches for log in batch.logs}

    @property
    def defects(self):
        return [(d.layer, d.step, d.reason) for batch in self.batches for d in batch.defects]

    @property
    def layers(self):
        return [*self.header.layers, *(layer for batch in self.batches for layer in batch.joined)]

    @property
    def watch(self):
        """By parameter, the rows of the watch in order."""
        rows = {}
        for row in (row for batch in self.batches for row in batch.watch):
            rows.setdefault(row.parameter, []).append(row)
        return rows

    @property
    def layer_names(self):
        return [layer.name for layer in self.layers]

    @property
    def recorded(self):
        """The batches of steps, without those that bring late news only."""
        return list({batch.step: batch for batch in reversed(self.batches)}.values())[::-1]

    def parts(self, layer):
        """(step, rows) of each call of a layer."""
        return [(batch.step, part) for batch in self.batches for part in batch.layers.get(layer, ())]

    def keys(self, layer):
        return np.concatenate([part.keys for _, part in self.parts(layer)])

    def values(self, layer):
        return np.concatenate([part.values for _, part in self.parts(layer)])

    def column(self, name, space="sample"):
        """One entry a slot of a space, as its view shows it."""
        return [v for batch in self.batches for extent in batch.extents if extent.space == space
                for v in slot_column(batch, extent, name)]  # fmt: skip

    def rebuilt(self, parameter, steps):
        """float64: a parameter once `steps` recorded steps were taken, from the record alone; a layer may hold rows."""
        holders = [(x, p) for x in self.layers for p in x.parameters if p.name == parameter]
        updates = []
        for log in (self.logs[step] for step in sorted(self.logs) if step < steps):
            factor = next((f for f in log.factors if f.parameter.split("[")[0] == parameter), None)
            if log.updated and factor is not None and factor.factor is not None:
                settings = log.groups[factor.group].settings
                updates.append(Update(log.first_step, log.step, factor.factor, settings))
        buffers = self.header.buffers.get(parameter, {})
        weights = named(self.header.rule).coefficients(updates, steps, has_buffers=bool(buffers))
        total = weights.initial * self.header.initial[parameter].astype(np.float64)
        for kind, factor in weights.buffers.items():
            total = total + factor * buffers[kind]
        for layer, place in holders:
            for step, rows in self.parts(layer.name):
                if step < steps:
                    keys, values = rows.keys.astype(np.float64), rows.values.astype(np.float64)
                    gradient = values.sum(0) if place in layer.biases else values.T @ keys[:, place.start : place.stop]
                    own = slice(*place.rows) if place.rows else slice(None)
                    total[own] += weights.per_step[step] * gradient
        return total


def slot_column(batch, extent, name):
    """One entry a slot of an extent, by plain loops."""
    length, n = extent.length, extent.slots
    rows = extent.row.tolist() if extent.row is not None else [i // (length or 1) for i in range(n)]
    if name == "row":
        return [None if row < 0 else row for row in rows]
    if name == "call":
        return [extent.call] * n
    if name == "position":
        given = extent.position
        return given.tolist() if given is not None else [None if length is None else i % length for i in range(n)]
    if name in extent.columns:
        return extent.columns[name].tolist()
    if name not in batch.samples:
        return [None] * n
    of_samples = batch.samples[name].tolist()
    return [batch.unknown[name] if row < 0 else of_samples[row] for row in rows]


class Opened:
    """A recorder whose sink can be looked at."""

    def __init__(self, model, optimizer, path, **options):
        self.sinks, self.optimizer = [], optimizer
        self.recorder = Recorder(model, optimizer, path, sink=self._make, **options)

    def _make(self, header):
        self.sinks.append(ListSink(header))
        return self.sinks[-1]

    @property
    def sink(self):
        """What was put so far is there."""
        thread = self.recorder._controller.session.writer.sink
        if thread._thread.is_alive() and thread._error is None:
            thread._do(lambda: None)
        return self.sinks[0]


def small_net(seed=0, bias=True):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7, bias=bias), nn.ReLU(), nn.Linear(7, 6, bias=bias), nn.ReLU(), nn.Linear(6, 3))


def batches(count, seed=1, rows=8):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(rows, 5, generator=generator), torch.randint(3, (rows,), generator=generator))
        for _ in range(count)
    ]


def snapshot(model):
    return {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}


def assert_rebuilt(sink, snapshots):
    """Every parameter at every step; `snapshots[t]` is the network once t steps were taken."""
    for steps, expected in enumerate(snapshots):
        for name, weight in expected.items():
            moved = np.linalg.norm(snapshots[-1][name] - snapshots[0][name])
            error = np.linalg.norm(sink.rebuilt(name, steps) - weight)
            assert error <= 2e-5 * moved + 1e-7, f"{name} after {steps} steps: {error / max(moved, 1e-30):.1e}"


def train(opened, model, data, **said):
    for x, y in data:
        with opened.recorder.step(label=y, **said):
            learn(opened.optimizer, cross_entropy(model(x), y))


def opened_on(model, path, **options):
    return Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), path, **options)


def skip_without_bfloat16(layer=nn.LSTM):
    try:
        with torch.autocast("cpu", torch.bfloat16):
            layer(4, 3)(torch.randn(2, 5, 4))
    except RuntimeError as error:
        pytest.skip(f"torch runs no {layer.__name__} in bfloat16 on this processor: {error}")


def rows_of(path, table):
    """The rows of a memory's stored table; SQL would start a process to answer."""
    return opened(path).table(table).to_pylist()
