"""A small training on rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import dualform
from tests.trainings import learn

ROWS, STEPS, BATCH = 40, 10, 8


def columns(rows: int = ROWS) -> dict[str, list[Any]]:
    """More than a page shows at once."""
    drawn = torch.Generator().manual_seed(2)
    numbers = torch.rand(ROWS, 7, generator=drawn).round(decimals=4)
    return {
        "name": [f"row {number} <i>" for number in range(rows)],
        **{f"feature {place}": numbers[:rows, place].tolist() for place in range(7)},
    }


def record(path: Path) -> Path:
    inputs = torch.tensor([own for name, own in columns().items() if name != "name"]).T.contiguous()
    labels = (inputs[:, 0] > 0.5).long()
    torch.manual_seed(0)
    model = nn.Linear(7, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    drawn = torch.Generator().manual_seed(3)
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        recorder.previews("rows", dualform.PreviewSet.table(columns()))
        for _ in range(STEPS):
            index = torch.randint(ROWS, (BATCH,), generator=drawn)
            with recorder.step(dataset="rows", label=labels[index], sample=index):
                learn(optimizer, nn.functional.cross_entropy(model(inputs[index]), labels[index]))
        recorder.query_set("held", inputs[:5], label=labels[:5], previews=dualform.PreviewSet.table(columns(5)))
    return path
