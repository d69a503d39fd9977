"""A small convolutional network on pictures that are wider than high, each class of which has its own corner."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import dualform
from tests.trainings import learn

HEIGHT, WIDTH, IMAGES, STEPS, ROWS, HELD = 7, 9, 40, 20, 8, 6


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 5, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5 * 3 * 4, 4),
    )


def images_of(seed: int) -> tuple[Tensor, Tensor]:
    """float32[IMAGES, 1, HEIGHT, WIDTH] and their labels."""
    drawn = torch.Generator().manual_seed(seed)
    images, labels = 0.1 * torch.rand(IMAGES, 1, HEIGHT, WIDTH, generator=drawn), torch.arange(IMAGES) % 4
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = (0, HEIGHT - 3)[label // 2], (0, WIDTH - 3)[label % 2]
        image[0, top : top + 3, left : left + 3] += 0.8
    return images, labels


def preview_set(images: Tensor) -> dualform.PreviewSet:
    return dualform.PreviewSet.images(images[:, 0])


def record(path: Path) -> Path:
    """STEPS steps of ROWS images by AdamW; the first HELD others as the query set "test"."""
    images, labels = images_of(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    drawn = torch.Generator().manual_seed(1)
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        recorder.previews("corners", preview_set(images))
        for _ in range(STEPS):
            index = torch.randint(IMAGES, (ROWS,), generator=drawn)
            with recorder.step(dataset="corners", label=labels[index], sample=index):
                learn(optimizer, nn.functional.cross_entropy(model(images[index]), labels[index]))
        others, own = images_of(2)
        recorder.query_set("test", others[:HELD], label=own[:HELD], previews=preview_set(others[:HELD]))
    return path
