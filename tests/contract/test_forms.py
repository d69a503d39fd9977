"""Every form of the compiled loops gives the same answers, bit for bit, and so does an engine without any.

Every backend gives them, too, whatever is set in torch around the question.
"""

from __future__ import annotations

import numpy as np
import pytest

import dualform
from dualform import kernels
from dualform.kernels import loader
from dualform.query.score import backends
from dualform.query.score.backends import torch as torch_backends
from tests.kernels.forms import using
from tests.query.test_backends import SETTINGS, choose

QUERIES = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
ASKED = [
    ("topk", {"k": 5}),
    ("topk", {"k": 2, "by": "label", "where": "step > 1", "score": "abs"}),
    ("topk", {"k": 3, "score": "cosine"}),
    ("group_sum", {"by": ("dataset", "label")}),
    ("group_sum", {"by": ("dataset", "label"), "score": "abs"}),
    ("topk", {"k": 4, "score": "contribution", "target": "1-3"}),
    ("group_sum", {"by": "step", "score": "contribution", "target": np.eye(5, dtype=np.float32)[:3]}),
    ("topk", {"layer": "*", "queries": "traced", "k": 6, "score": "gradient"}),
    ("group_sum", {"layer": "0", "queries": "traced", "by": "step", "score": "gradient"}),
    ("contributions", {"by": "label"}),
    ("distribution", {}),
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
        return [told(getattr(memory, method)(**{"layer": "0", "queries": QUERIES} | named)) for method, named in ASKED]


def told(answer):
    if hasattr(answer, "sums"):
        return [answer.groups, answer.sums.tobytes()]
    if hasattr(answer, "ranks"):
        return [own.tobytes() for own in (answer.ranks, answer.scores, answer.cumulative)]
    if hasattr(answer, "scores"):
        rows = zip(answer.slots, answer.scores, strict=True)
        return [[np.concatenate([np.ravel(part) for part in each]).tobytes() for each in row] for row in rows]
    return [np.asarray(answer).tobytes()]


@pytest.mark.parametrize("form", loader.FORMS)
def test_answers(form, run, expected):
    with using(form):
        assert answers(run, "int8") == expected


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize(
    ("backend", "setting"),
    [(own, one) for n, one in enumerate(SETTINGS) for own in ("torch", ("int8", "numpy", "faiss", "device")[n % 4])],
)
def test_no_setting_of_torch_changes_an_answer(backend, setting, run, expected, monkeypatch):
    monkeypatch.setattr(torch_backends, "device", lambda: choose("device"), raising=False)
    monkeypatch.setattr(backends, "NAMES", backends.NAMES | {"device": ("torch", "device")})
    if backend == "int8" and kernels.library() is None:
        pytest.skip("the loops are not compiled")
    with SETTINGS[setting]():
        assert answers(run, backend) == expected
