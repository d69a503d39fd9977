"""Small memories with preview sets: of images, and of passages of three tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

import dualform


def record_images(path: Path) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3))
    images, labels = torch.randint(0, 256, (8, 2, 2), dtype=torch.uint8), torch.arange(8) % 3
    _train(path, model, images.flatten(1).float() / 255, labels, dualform.PreviewSet.images(images.numpy()))
    return path


def record_passages(path: Path) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3))
    offsets = [np.array([[0, 2], [3, 5], [6, 8]])] * 8
    preview_set = dualform.PreviewSet.texts(["aa bb cc"] * 8, offsets=offsets)
    _train(path, model, torch.randn(8, 3, 4), torch.arange(8) % 3, preview_set)
    return path


def _train(
    path: Path, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, preview_set: dualform.PreviewSet
) -> None:
    """Two steps over all samples of a dataset "mine"; the preview set is theirs, and the query set's."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        for _ in range(2):
            with recorder.step(dataset="mine", label=labels, sample=torch.arange(8)):
                optimizer.zero_grad()
                answers = model(inputs)
                nn.functional.cross_entropy(
                    answers.flatten(0, -2), labels.repeat_interleave(answers[0, ..., 0].numel())
                ).backward()
                optimizer.step()
        recorder.previews("mine", preview_set)
        recorder.query_set("test", inputs, label=labels, previews=preview_set)
