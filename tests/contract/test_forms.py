"""Every form of the compiled loops gives the same answers, bit for bit, and so does an engine without any."""

from __future__ import annotations

import numpy as np
import pytest

import dualform
from dualform import kernels
from dualform.kernels import loader
from tests.kernels.forms import using

QUERIES = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
ASKED = [
    ("topk", {"k": 5}),
    ("topk", {"k": 2, "by": "label", "where": "step > 1", "score": "abs"}),
    ("topk", {"k": 3, "score": "cosine"}),
    ("group_sum", {"by": ("dataset", "label")}),
    ("group_sum", {"by": ("dataset", "label"), "score": "abs"}),
    ("output", {"where": "dataset = 'first'"}),
]


@pytest.fixture(scope="module")
def expected(run):
    """What the engine answers without compiled loops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "library", lambda: None)
        return answers(run, "numpy")


def answers(run, backend):
    with dualform.open(run, backend=backend) as memory:
        return [told(getattr(memory, method)("0", QUERIES, **named)) for method, named in ASKED]


def told(answer):
    if hasattr(answer, "sums"):
        return [answer.groups, answer.sums.tobytes()]
    if hasattr(answer, "scores"):
        rows = zip(answer.slots, answer.scores, strict=True)
        return [[np.concatenate([np.ravel(part) for part in each]).tobytes() for each in row] for row in rows]
    return [np.asarray(answer).tobytes()]


@pytest.mark.parametrize("form", loader.FORMS)
def test_answers(form, run, expected):
    with using(form):
        assert answers(run, "int8") == expected
