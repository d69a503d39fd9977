"""Examples followed through a training: what that takes beside the training, and how well the ledger adds up.

Shapes: n examples.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

import dualform
from benchmarks.contest import cell
from benchmarks.gradient_errors import gradient_errors, loss
from benchmarks.plan import Plan
from benchmarks.result import OURS, Row, Section, Target
from benchmarks.timing import race
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.data.download import load_dataset

WIDTH, BATCH, STEPS, FOLLOWED = 800, 128, 200, 100
TRAINING = "the training itself"
RESIDUAL, OF_GRADIENTS = 0.01, 1e-5


def run(plan: Plan) -> Section:
    section = Section("ledger", "Examples followed through a training")
    errors = gradient_errors(plan.folder / "gradients")
    for kind, error in errors.items():
        section.facts[f"gradient dot products beside autograd in float64, {kind} (at most {OF_GRADIENTS:g})"] = (
            f"{error:.1e}"
        )
    section.numbers |= {f"gradients of {kind}": error for kind, error in errors.items()}
    if plan.images is None:
        section.notes.append("MNIST was not at hand: no training was followed.")
        return section
    dataset = load_dataset("mnist", plan.images)
    steps = STEPS // 4 if plan.quick else STEPS
    for name, momentum, rows in (
        ("SGD", 0.0, ((10, "first-order", 1.3), (FOLLOWED, "first-order", 2.0), (FOLLOWED, "path", None))),
        ("SGD with momentum 0.9", 0.9, ((FOLLOWED, "first-order", None), (FOLLOWED, "path", None))),
    ):
        training = _Training(dataset, steps, momentum)
        path = plan.folder / "followed"
        training.run(path)
        for examples, method, most in rows:
            target = None if most is None else Target("at most", most)
            section.rows.append(_row(plan, section, training, path, name, examples, method, target))
        shutil.rmtree(path)
    section.notes.append(
        f"A network of two hidden layers of {WIDTH} on MNIST, {steps} steps of {BATCH} images; examples are the first "
        "test images, followed by sample. The ledger is made from the record, beside the same training without a "
        "recorder, on all cores. Of a residual its size over that of the change of the loss, the median of "
        f"{FOLLOWED} examples; that of first order has all curvature in it."
    )
    return section


class _Training:
    def __init__(self, dataset: Dataset, steps: int, momentum: float) -> None:
        self._images = torch.from_numpy(dataset.inputs(dataset.train))
        self._labels = torch.from_numpy(np.asarray(dataset.train.labels)).long()
        self._tests = torch.from_numpy(dataset.inputs(dataset.test))
        self._test_labels = torch.from_numpy(np.asarray(dataset.test.labels)).long()
        self._steps, self._momentum = steps, momentum

    def model(self) -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))

    def run(self, path: Path | None = None) -> None:
        """Train, recorded into `path` where there is one."""
        model = self.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=self._momentum)
        recorder = None if path is None else dualform.Recorder(model, optimizer, path, quiet=True)
        drawn = torch.Generator().manual_seed(1)
        with recorder or nullcontext():
            for _ in range(self._steps):
                index = torch.randint(0, len(self._images), (BATCH,), generator=drawn)
                with nullcontext() if recorder is None else recorder.step(sample=index):
                    optimizer.zero_grad()
                    torch.autograd.backward(
                        nn.functional.cross_entropy(model(self._images[index]), self._labels[index])
                    )
                    optimizer.step()

    def influence(self, examples: int, method: Literal["first-order", "path"]) -> dualform.Influence:
        own: tuple[Tensor, Tensor] = self._tests[:examples], self._test_labels[:examples]
        return dualform.Influence("test", *own, loss, by=("sample",), method=method)


def _row(
    plan: Plan,
    section: Section,
    training: _Training,
    path: Path,
    name: str,
    examples: int,
    method: Any,
    target: Target | None,
) -> Row:
    model, influence = training.model(), training.influence(examples, method)
    contestants: dict[str, Callable[[], Any]] = {
        OURS: partial(dualform.ledger, path, model, influence),
        TRAINING: training.run,
    }
    ran = race(contestants, min(3, plan.repeats), 2 * plan.patience)
    ours, beside = (cell(who, ran[who], lambda _, __: ("", "")) for who in (OURS, TRAINING))
    if examples == FOLLOWED:
        found = ran[OURS].answer
        share = float(np.median(np.abs(found.residual) / np.abs(found.final - found.initial)))
        wanted = f" (at most {RESIDUAL:.0%})" if method == "path" else ""
        section.facts[f"residual of the ledger, {name}, {method}{wanted}"] = f"{share:.2%}"
        section.numbers[f"residual, {name}, {method}"] = share
    assert ours.seconds is not None
    assert beside.seconds is not None
    return Row(
        f"{examples} examples followed through {name}, {method}",
        {OURS: ours},
        TRAINING,
        beside.seconds,
        ours.seconds / beside.seconds,
        target,
        f"{examples}, {method}",
    )
