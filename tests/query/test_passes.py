"""What a question goes through once, it reads once: a block of a narrow layer's file holds many pieces of a pass."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.kernels import workers
from dualform.query.weights import output
from dualform.store.files import segment
from tests.trainings import record_steps

STEPS, ROWS = 24, 1000


@pytest.fixture
def read(monkeypatch):
    """How often each block of each file was read."""
    blocks, read_block = Counter(), segment._read_block

    def counted(of, file, block, part):
        blocks[of.path.name, block] += 1
        read_block(of, file, block, part)

    monkeypatch.setattr(segment, "_read_block", counted)
    return blocks


FIRST = {
    "linear": lambda: nn.Linear(30, 24),
    "embedding": lambda: nn.Embedding(50, 24),
    "patches": lambda: nn.Conv2d(1, 5, 3),
}


@pytest.fixture(scope="module")
def path(request, tmp_path_factory):
    """Of a network that begins with a narrow layer."""
    torch.manual_seed(0)
    path, first = tmp_path_factory.mktemp("passes") / "run", FIRST[request.param]()
    model = nn.Sequential(first, nn.Flatten(), nn.LazyLinear(3))
    given = torch.randint(50, (ROWS, 2)) if isinstance(first, nn.Embedding) else None
    size = (ROWS, 30) if isinstance(first, nn.Linear) else (ROWS, 1, 8, 8)
    model(torch.randn(size) if given is None else given)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record_steps(
        dualform.Recorder(model, optimizer, path),
        optimizer,
        (
            (torch.randn(size) if given is None else torch.randint(50, (ROWS, 2)), torch.randint(3, (ROWS,)))
            for _ in range(STEPS)
        ),
        lambda x, y: nn.functional.cross_entropy(model(x), y),
        label=lambda x, y: y,
    )
    return path


@pytest.mark.parametrize(
    ("path", "mask"),
    [
        ("linear", "label <> 1"),
        ("linear", "slot % 3 <> 0"),
        ("linear", "step > 11"),
        ("embedding", "label <> 1"),
        ("patches", "slot % 3 <> 0"),
    ],
    indirect=["path"],
)
def test_the_first_masked_output_of_a_narrow_layer_reads_each_block_once(path, monkeypatch, read, mask):
    monkeypatch.setattr(output, "LEAST_PRODUCT", 0)
    monkeypatch.setattr(workers, "cores", lambda: 1)  # one that sleeps may find its block gone
    with dualform.open(path) as memory:
        query = np.abs(memory.keys("0", [5]))
        read.clear()
        found = memory.output("0", query, mask)
        assert set(read.values()) == {1}
        again = memory.output("0", query, mask)  # by weights, which go over the same rows in another way
        assert found.values.tobytes() == again.values.tobytes()
