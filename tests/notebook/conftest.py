from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import dualform
from dualform.methods import Answers
from tests.trainings import learn

UNSAFE = "<img src=x onerror=\"document.title='run'\">"
"""A text of somebody's data set, which stays text wherever it is shown."""
QUOTED = 'it\'s "quoted"'


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers; labels, some of them unknown, and a column of texts that are hard to quote."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = torch.randn(40, 6), torch.arange(40) % 4
    texts = [(UNSAFE, QUOTED, "plain")[number % 3] for number in range(40)]
    path = tmp_path_factory.mktemp("notebook") / "run"
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        for step in range(6):
            index = torch.arange(8) + 6 * step % 40
            said = {} if step == 5 else {"label": labels[index % 40]}
            with recorder.step(
                dataset="first" if step < 3 else "second",
                **said,
                sample=index,
                text=[texts[number] for number in (index % 40).tolist()],
            ):
                learn(optimizer, nn.functional.cross_entropy(model(images[index % 40]), labels[index % 40]))
        recorder.query_set("test", images[:9], label=labels[:9])
        recorder.query_set("other", images[9:12])
    return path


@pytest.fixture(scope="session")
def memory(folder: Path) -> Iterator[Answers]:
    with dualform.open(folder) as opened:
        yield opened
