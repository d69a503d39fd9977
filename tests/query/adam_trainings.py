"""Trainings under Adam and AdamW, and what their memories should answer, by a plain loop."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from tests.record.listed import batches, small_net, snapshot
from tests.trainings import learn

STEPS = 40


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), **({"lr": 3e-3, "weight_decay": 0.1} | options))


def record(path, make=adamw, steps=STEPS, loop=None, between=None, **options):
    """The trained model, and its parameters once so many steps were taken."""
    model = small_net()
    optimizer = make(model, **options)
    history = [snapshot(model)]
    with dualform.Recorder(model, optimizer, path) as recorder:
        for number, (x, y) in enumerate(batches(steps)):
            with recorder.step(label=y, sample=np.arange(8)):
                (loop or plain)(model, optimizer, x, y, number)
            if between is not None:
                between(number, model)
            history.append(snapshot(model))
    return model, history


def plain(model, optimizer, x, y, number):
    learn(optimizer, cross_entropy(model(x), y))


def closure(model, optimizer, x, y, number):
    def closed():
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    assert optimizer.step(closed) > 0


def accumulated(model, optimizer, x, y, number):
    cross_entropy(model(x), y).backward()
    if number % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()


def clipped(model, optimizer, x, y, number):
    learn(optimizer, cross_entropy(model(x), y), lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1))


def scheduled(model, optimizer, x, y, number):
    for group in optimizer.param_groups:
        group.update(lr=0.01 / (1 + number), betas=(0.5 + number / 100, 0.99), eps=1e-6)
    plain(model, optimizer, x, y, number)


class Scaled:
    def __init__(self):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7)

    def __call__(self, model, optimizer, x, y, number):
        optimizer.zero_grad()
        self.scaler.scale(cross_entropy(model(x), y)).backward()
        if number in (3, 20):  # as an overflow: the scaler skips this update
            model[0].weight.grad[0, 0] = torch.inf
        self.scaler.step(optimizer)
        self.scaler.update()


def in_groups(model, **options):
    weights = [p for p in model.parameters() if p.ndim == 2]
    biases = [p for p in model.parameters() if p.ndim == 1]
    return torch.optim.AdamW(
        [{"params": weights, "weight_decay": 0.3}, {"params": biases, "lr": 1e-3, "betas": (0.8, 0.9)}], lr=3e-3
    )


def coupled(model, **options):
    return torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=0.1)


def naive(memory, parameter, layer, where, beta=(0.9, 0.999), lr=3e-3, decay=0.1):
    """AdamW over the stored slots, update by update; the gradients of slots that are masked go into v alone."""
    stays = np.zeros(memory.info().layers[0].slots, bool)
    stays[np.asarray(memory.sql(f"SELECT slot FROM slots WHERE {where}")["slot"], dtype=int)] = True
    keys, values = memory.keys(layer).astype(float), memory.values(layer).astype(float)
    steps = np.repeat(np.arange(len(stays) // 8), 8)
    w = memory._view.stored_weights("initial")[parameter].astype(float)
    kept, m, kept_m, v = w.copy(), 0.0, 0.0, 0.0
    for t in range(1, steps[-1] + 2):
        grads = []
        for own in (steps == t - 1, (steps == t - 1) & stays):
            grads.append(values[own].sum(0) if w.ndim == 1 else values[own].T @ keys[own])
        m, kept_m = beta[0] * m + (1 - beta[0]) * grads[0], beta[0] * kept_m + (1 - beta[0]) * grads[1]
        v = beta[1] * v + (1 - beta[1]) * grads[0] ** 2
        scale = lr / (1 - beta[0] ** t) / (np.sqrt(v / (1 - beta[1] ** t)) + 1e-8)
        w, kept = (1 - lr * decay) * w - scale * m, (1 - lr * decay) * kept - scale * kept_m
    return kept
