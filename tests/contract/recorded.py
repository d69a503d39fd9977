"""A small memory as a training leaves it behind: two datasets, two layers, steps with momentum, a query set."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import dualform

CLASSES, WIDTH, ROWS = 4, 6, 8


def record(path: Path, steps: int = 6) -> Path:
    """`steps` steps of ROWS samples; the first half from "first", the second from "zweites ü"."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 5), nn.ReLU(), nn.Linear(5, CLASSES, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, labels = torch.randn(40, WIDTH), torch.randint(0, CLASSES, (40,))
    with dualform.Recorder(model, optimizer, path) as recorder:
        recorder.previews("first", dualform.PreviewSet.images(images.reshape(40, 2, 3)))
        for step in range(steps):
            index = torch.randint(0, 40, (ROWS,))
            name = "first" if step < steps // 2 else "zweites ü"
            with recorder.step(dataset=name, label=labels[index], sample=index, weight=torch.rand(ROWS)):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images[index]), labels[index]).backward()
                optimizer.step()
        recorder.previews("zweites ü", dualform.PreviewSet.texts(["ein Wort", "é"], offsets=[[(0, 3), (4, 8)], []]))
        frame = {"number": [1, None, 3, 4, 5, 6, 7], "word": list("abcdefg"), "half": [0.5] * 7, "yes": [True] * 7}
        recorder.query_set("test", images[:7], label=labels[:7], previews=dualform.PreviewSet.table(frame))
        recorder.query_set("traced", images[:5], label=labels[:5], loss=nn.CrossEntropyLoss(reduction="none"))
    return path
