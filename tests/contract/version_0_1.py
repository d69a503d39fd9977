"""A training whose keys and error signals are given, and what is asked of its memory.

    python -m tests.contract.version_0_1 tests/contract/version_0_1.npz

wrote the file beside this one, run by dualform 0.1: what that version answered, to the last bit. Top-k and signed sums
are canonical, so that every machine has the same bits.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import dualform

STEPS, ROWS, LENGTH, D_IN, D_OUT = 40, 6, 5, 23, 3


class Given(nn.Module):
    """Layers whose inputs are given; what reaches them as error signals are the factors of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.samples, self.tokens = nn.Linear(D_IN, D_OUT), nn.Linear(D_IN, D_OUT)


def record(path: Path) -> None:
    """Record it; half of the sample layer's inputs come again and again."""
    rng = np.random.default_rng(7)
    pool = rng.normal(size=(20, D_IN)).astype(np.float32)
    torch.manual_seed(0)
    model = Given()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with dualform.Recorder(model, optimizer, path) as recorder:
        for step in range(STEPS):
            chosen = rng.integers(0, len(pool), ROWS)
            tokens = np.maximum(rng.normal(size=(ROWS, LENGTH, D_IN)), 0).astype(np.float32)
            errors = [rng.normal(size=(*shape, D_OUT)).astype(np.float32) for shape in ((ROWS,), (ROWS, LENGTH))]
            name = "first" if step < STEPS // 2 else "second"
            with recorder.step(dataset=name, label=chosen % 4, sample=chosen, word=rng.integers(0, 9, (ROWS, LENGTH))):
                outputs = model.samples(torch.from_numpy(pool[chosen])), model.tokens(torch.from_numpy(tokens))
                sum((o * torch.from_numpy(e)).sum() for o, e in zip(outputs, errors, strict=True)).backward()
                optimizer.step()
                optimizer.zero_grad()


def answers(path: Path) -> dict[str, np.ndarray]:
    """Ids, scores and sums by the question's name."""
    rng = np.random.default_rng(8)
    queries = rng.normal(size=(4, D_IN)).astype(np.float32)
    found = {}
    with dualform.open(path) as memory:
        for layer, own in (("samples", "sample"), ("tokens", "word")):
            for said, score in (("signed", "dot"), ("abs", "abs")):  # the first is what 0.1 called it
                for where in (None, "label < 3 AND step >= 5", f"{own} = 2"):
                    for by in (None, "label", ("dataset", own)):
                        hits = memory.topk(layer, queries, k=7, where=where, by=by, score=score)
                        name = f"{layer} {said} {where} {by}"
                        found |= {f"{name} ids": hits.ids, f"{name} scores": hits.flat_scores, f"{name} n": hits.counts}
            for by in ("label", "step", ("dataset", own)):
                found[f"{layer} sums {by}"] = memory.group_sum(layer, queries, by=by, where="label <> 1").sums
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder) / "run")
        np.savez_compressed(sys.argv[1], **answers(Path(folder) / "run"))
