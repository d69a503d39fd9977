"""A training run again to answer questions, in place of keys on disk: what it takes, beside the same training."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from time import perf_counter

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from benchmarks import networks
from benchmarks.plan import Plan
from benchmarks.result import OURS, Cell, Row, Section
from benchmarks.timing import Timing
from dualform import GroupSum, Recorder, Rerun, TopK, Vectors
from dualform_studies.limits import answer_bits
from dualform_studies.pages.folder import bytes_on_disk

LAYERS = {"0": 784, "2": 800, "4": 800}
"""Of the network, with the widths of their keys."""

Make = Callable[[nn.Module, torch.optim.Optimizer], Recorder]


def run(plan: Plan) -> Section:
    section, steps = Section("rerun", "Training again in place of stored keys"), 40 if plan.quick else 200
    draw = np.random.default_rng(0)
    asked = {layer: Vectors(draw.normal(size=(20, width)).astype(np.float32)) for layer, width in LAYERS.items()}
    questions: list[TopK | GroupSum] = [TopK(name, own, 10) for name, own in asked.items()]
    questions += [GroupSum(name, own, ("label",)) for name, own in asked.items()]
    stored, bare = plan.folder / "stored", plan.folder / "bare"
    makes: dict[str, Make | None] = {
        "unrecorded": None,
        "keys stored": lambda model, optimizer: Recorder(model, optimizer, stored, values=False, quiet=True),
        "no keys stored": lambda model, optimizer: Recorder(
            model, optimizer, bare, keys=False, values=False, quiet=True
        ),
        "run again, answering": lambda model, optimizer: Rerun(model, optimizer, bare, questions),
    }
    seconds: dict[str, list[float]] = {name: [] for name in makes}
    wrong = ""
    for _, name in product(range(min(3, plan.repeats)), makes):
        if name == "unrecorded":
            shutil.rmtree(stored, ignore_errors=True)
            shutil.rmtree(bare, ignore_errors=True)
        taken, recorder = _train(makes[name], steps)
        seconds[name].append(taken)
        if isinstance(recorder, Rerun):
            with dualform.open(stored) as memory:
                right = [answer_bits(memory.ask(question)) for question in questions]
            differ = sum(one != answer_bits(other) for one, other in zip(right, recorder.answers(), strict=True))
            wrong = wrong or (f"{differ} of {len(right)} answers differ" if differ else "")
    timings = {name: Timing.of(taken) for name, taken in seconds.items()}
    beside = timings.pop("unrecorded")
    for name, own in timings.items():
        cell = Cell(own.seconds, own.best, own.repeats, wrong=wrong if name.startswith("run again") else "")
        question = f"training of {steps:,} steps, {name}"
        row = Row(question, {OURS: cell}, "the same training, unrecorded", beside.seconds, own.seconds / beside.seconds)
        section.rows.append(row)
    for name, folder in {"keys stored": stored, "no keys stored": bare}.items():
        section.numbers[f"{name}, bytes"] = size = bytes_on_disk(folder)
        section.facts[f"on disk, {name}"] = f"{size / 1e6:,.1f} MB"
    section.notes.append(
        f"A network of 784, 800, 800 and 10 units under SGD with momentum, 256 rows a step. The run again answers "
        f"{len(questions)} questions with 20 queries each: the ten best slots and the sums by label of "
        "every layer. Each answer is compared with that of the stored keys, bit for bit."
    )
    return section


def _train(make: Make | None, steps: int) -> tuple[float, Recorder | None]:
    """Seconds until the record is durable, and the recorder."""
    torch.manual_seed(0)
    model, generator = networks.perceptron(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 3e-3, 0.9)
    began = perf_counter()
    recorder = None if make is None else make(model, optimizer)
    with recorder or nullcontext():
        for _ in range(steps):
            images, labels = networks.images(generator)
            with nullcontext() if recorder is None else recorder.step(label=labels):
                optimizer.zero_grad()
                torch.autograd.backward(cross_entropy(model(images), labels))
                optimizer.step()
    return perf_counter() - began, recorder
