"""Which backend answers, and what is said where one is missing."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager, nullcontext
from importlib import metadata

import numpy as np
import pytest
import torch

from dualform.errors import MissingPackage, NotFound
from dualform.query.engine import Engine
from dualform.query.score import backends
from dualform.query.score.backends.torch import TorchBackend
from dualform.query.score.canonical import bound, norms
from tests.query import arrays

CPU = ["int8", "numpy", "torch", "faiss"]


@contextmanager
def changed(put, to, before):
    """A setting of torch for all of the process."""
    put(to)
    try:
        yield
    finally:
        put(before)


def fp32_precision(to):
    """As torch has it from 2.9 on, where `set_float32_matmul_precision` is not all that there is."""
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this torch has no such setting")
    torch.backends.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = to


SETTINGS = {
    "none": nullcontext,
    "autocast to float16": lambda: torch.autocast("cpu", torch.float16),
    "autocast to bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "default float64": lambda: changed(torch.set_default_dtype, torch.float64, torch.float32),
    "default bfloat16": lambda: changed(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "default device": lambda: torch.device("meta"),
    "high precision": lambda: changed(torch.set_float32_matmul_precision, "high", "highest"),
    "medium precision": lambda: changed(torch.set_float32_matmul_precision, "medium", "highest"),
    "fp32 as bf16": lambda: changed(fp32_precision, "bf16", "none"),
    "fp32 as tf32": lambda: changed(fp32_precision, "tf32", "none"),
    "flushed to zero": lambda: changed(torch.set_flush_denormal, True, False),
    "deterministic": lambda: changed(torch.use_deterministic_algorithms, True, False),
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "anomalies": torch.autograd.detect_anomaly,
}
"""What may be set in torch around a question, none of which changes its answer."""


def choose(name):
    """With "device", what a GPU would do, on the processor."""
    return TorchBackend(name, room=lambda: 1 << 30) if name == "device" else backends.choose(name)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize(
    ("name", "setting"),
    [(name, setting) for name in ("torch", "device") for setting in SETTINGS]
    + [(name, setting) for name in ("int8", "numpy", "faiss") for setting in ("none", "flushed to zero")],
)
def test_scores_keep_the_bound(name, rng, setting):
    backend = choose(name)
    keys, queries = rng.normal(size=(500, 512)).astype(np.float32), rng.normal(size=(64, 512)).astype(np.float32)
    exact = queries.astype(float) @ keys.T.astype(float)
    with SETTINGS[setting]():
        rounding, found = backend.rounding, backend.scores(keys, queries)
    assert found.shape == (64, 500)
    assert found.dtype == np.float32
    limit = bound(512, 2.0**-24, rounding)
    limits = np.array([limit.of(norms(keys), query_norm) for query_norm in norms(queries)])
    assert np.all(np.abs(found - exact) <= limits)
    lowered = name in ("torch", "device") and ("precision" in setting or "fp32" in setting)
    assert (rounding > 0) == lowered


@pytest.mark.parametrize("name", [*CPU, "device"])
def test_numbers_below_the_normal_ones_count_though_torch_flushes_them(name, rng):
    keys = (rng.normal(size=(3000, 18)) * 1e-39).astype(np.float32)
    queries = (rng.normal(size=(3, 18)) * 1e3).astype(np.float32)
    memory = arrays.memory({"0": keys}, {"label": [i % 3 for i in range(3000)]})
    exact = queries.astype(float) @ keys.T.astype(float)
    with SETTINGS["flushed to zero"](), Engine(memory, choose(name)) as engine:
        hits, sums = engine.topk("0", queries, k=5), engine.group_sum("0", queries, by="label", score="abs")
    assert np.array_equal(np.stack(hits.slots), np.argsort(-exact, axis=1)[:, :5])
    right = np.stack([np.abs(exact[:, label::3]).sum(axis=1) for label in range(3)], axis=1)
    np.testing.assert_allclose(sums.sums, right, rtol=1e-6)


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
        backends.choose("faiss")
    assert str(caught.value).startswith(message)
    assert backends.choose().name != "faiss"  # which no other backend asks for


ASKED = """
import dualform
with dualform.open({path!r}) as memory:
    for score in ("dot", "abs", "cosine"):
        hits = memory.topk("0", "test/0-2", k=5, score=score)
        print(hits.ids.tolist(), hits.flat_scores.tolist())
        print(memory.group_sum("0", "test/0-2", by="label", score=score).sums.tolist())
        print(memory.distribution("0", "test/0-2", score=score).scores.tolist())
    print(memory.topk("2", "test/1", k=3, score="contribution", target=1).flat_scores.tolist())
    print(memory.output("2", "test/1", where="label < 3").values.tolist())
    print(memory.contributions("2", "test/1", by="label").sums.tolist())
    print([(name, own.tolist()) for name, own in memory.weights().items()])
    print(memory.keys("0").sum(), memory.verify().reconstructions.keys())
    print(memory.sql("SELECT count(*) n FROM slots")["n"])
"""


def test_every_question_is_answered_where_faiss_is_not_installed(small_run, capsys):
    exec(ASKED.format(path=str(small_run)), {})
    here = capsys.readouterr().out
    without = "import sys; sys.modules['faiss'] = None" + ASKED.format(path=str(small_run))
    given = [sys.executable, "-c", without]
    assert subprocess.run(given, capture_output=True, text=True, check=True, timeout=120).stdout == here
    assert len(here.splitlines()) == 15
