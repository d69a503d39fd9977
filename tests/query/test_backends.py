"""Which backend answers, and what is said where one is missing."""

from __future__ import annotations

from importlib import metadata

import numpy as np
import pytest

from dualform.errors import MissingPackage, NotFound
from dualform.query.score import backends
from dualform.query.score.backends import faiss as faiss_backend
from dualform.query.score.bound import bound, norms

CPU = ["int8", "numpy", "torch", "faiss"]


@pytest.mark.parametrize("name", CPU)
def test_scores_keep_the_bound(name, rng):
    backend = backends.choose(name)
    keys, queries = rng.normal(size=(500, 300)).astype(np.float32), rng.normal(size=(3, 300)).astype(np.float32)
    found = backend.scores(keys, queries)
    assert found.shape == (3, 500)
    assert found.dtype == np.float32
    exact = queries.astype(float) @ keys.T.astype(float)
    limit = bound(300, 2.0**-24, backend.rounding)
    for row, query_norm, wanted in zip(found, norms(queries), exact, strict=True):
        assert np.all(np.abs(row - wanted) <= limit.of(norms(keys), query_norm))


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_torch_says_what_precision_it_is_set_to(setting, rng):
    import torch

    backend = backends.choose("torch")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(setting)
    try:
        assert (backend.rounding > 0) == (setting != "highest")
        keys, queries = rng.normal(size=(64, 512)).astype(np.float32), rng.normal(size=(64, 512)).astype(np.float32)
        off = np.abs(backend.scores(keys, queries) - queries.astype(float) @ keys.T.astype(float))
        limit = bound(512, 2.0**-24, backend.rounding)
        assert np.all(off <= [limit.of(norms(keys), query_norm) for query_norm in norms(queries)])
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_bound_counts_every_rounding():
    assert bound(1, 2.0**-24).slope >= 2 * 2.0**-24
    assert bound(800, 2.0**-24).slope >= 800 * 2.0**-24
    assert bound(800, 2.0**-24, 2.0**-8).slope >= 2 * 2.0**-8 + 800 * 2.0**-24
    assert bound(800, 2.0**-53).slope < 1e-12


@pytest.mark.parametrize(("fast", "name"), [(True, "int8"), (False, "numpy")])
def test_without_a_gpu_the_processor_decides(monkeypatch, tmp_path, fast, name):
    monkeypatch.setattr(backends, "_DRIVER", tmp_path / "version")
    monkeypatch.setattr(backends.kernels, "fast", lambda: fast)
    assert backends.choose().name == name


def test_loops_that_were_not_compiled_are_named(monkeypatch):
    monkeypatch.setattr(backends.kernels, "library", lambda: None)
    with pytest.raises(MissingPackage, match=r"Install a wheel of dualform, or install it again"):
        backends.choose("int8")


def test_an_unknown_backend_is_named():
    with pytest.raises(
        NotFound, match=r"no backend 'jax'. Backends: int8, numpy, torch, faiss, torch-cuda, faiss-gpu\."
    ):
        backends.choose("jax")


@pytest.mark.parametrize("name", ["torch-cuda", "faiss-gpu"])
def test_a_gpu_that_is_not_there_is_named(name):
    try:
        backend = backends.choose(name)
    except MissingPackage as error:
        assert "no GPU" in str(error)  # noqa: PT017
    else:
        pytest.skip(f"{backend.name} is there")


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ({"faiss-cpu", "faiss-gpu"}, "faiss-cpu and faiss-gpu are both installed, and each overwrites the other."),
        (set(), "faiss is not installed. pip install 'dualform[cpu]' or 'dualform[gpu]'."),
    ],
    ids=["both", "none"],
)
def test_faiss_is_installed_once(monkeypatch, installed, message):
    def version(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(MissingPackage) as caught:
        faiss_backend.FaissBackend()
    assert str(caught.value).startswith(message)
