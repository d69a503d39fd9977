"""What an engine holds: read once, counted, and let go of at once; another memory in its folder is another memory."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections import Counter
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform import kernels
from dualform.kernels import workers
from dualform.query.view import Counts
from dualform.query.weights import output
from dualform.store.files import segment
from tests.store.small_memory import batches_of, open_writer, write
from tests.trainings import record_steps

SIZES = [7, 5, 9, 4]
QUERIES = np.ones((1, 6), dtype=np.float32)


@pytest.fixture
def run_folder(tmp_path):
    write(tmp_path / "run", SIZES)
    return tmp_path / "run"


@pytest.fixture
def collector_off():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def ask(memory):
    best = memory.topk("layer-0", QUERIES, k=3).ids.tolist()
    return best, memory.group_sum("layer-0", QUERIES, by="dataset", where="step > 0", score="abs").sums.tolist()


def test_keys_go_with_the_engine_before_the_collector_looks(run_folder, collector_off):
    memory = dualform.open(run_folder)
    ask(memory)
    held = weakref.ref(memory._segments)
    del memory
    assert held() is None


def test_a_closed_engine_holds_nothing_and_can_be_asked(run_folder):
    memory = dualform.open(run_folder)
    before = ask(memory)
    assert memory._segments.nbytes
    memory.close()
    assert not memory._segments.nbytes
    assert not memory._view.cache.nbytes
    assert ask(memory) == before


LARGER = [40, 50, 60, 30]
NARROW = np.ones((1, 5), dtype=np.float32)
INT8 = "int8" if kernels.library() is not None else "numpy"


def answers(memory):
    best = memory.topk("layer-1", NARROW, k=2)
    sums = memory.group_sum("layer-1", NARROW, by="dataset").sums.tolist()
    rows = memory.keys("layer-1").tolist(), memory.values("layer-1").tolist()
    return best.ids.tolist(), best.flat_scores.tolist(), sums, rows


@pytest.mark.parametrize(("backend", "committed"), [(INT8, True), ("numpy", False)], ids=["segments", "journal"])
def test_a_refresh_holds_nothing_of_the_memory_before(tmp_path, backend, committed):
    folder = tmp_path / "run"
    for seed, place in enumerate((folder, tmp_path / "other")):
        if committed:
            write(place, LARGER, seed)
        else:
            writer = open_writer(place, journal_seconds=0.0)
            for batch in batches_of(LARGER, seed):
                writer.append(batch)
            writer.abandon()
    memory = dualform.open(folder, backend=backend)
    before = answers(memory)
    shutil.rmtree(folder)
    (tmp_path / "other").rename(folder)
    assert memory.refresh()
    expected = answers(dualform.open(folder, backend=backend))
    assert answers(memory) == expected != before


def grown(before: Counts, after: Counts) -> dict[str, float]:
    both = {own.name: (getattr(before, own.name), getattr(after, own.name)) for own in fields(Counts)}
    return {name: new - old for name, (old, new) in both.items() if old is not None and new != old}


def test_the_first_question_reads_and_makes_and_later_ones_find(small_run):
    with dualform.open(small_run) as memory:
        layer, counts = memory.info().layers[0], [memory.counts()]
        for _ in range(4):
            memory.topk(layer.name, [[1.0] * layer.d_in] * 3, k=2, where="step < 3")
            counts.append(memory.counts())
        stored = sum(file.stat().st_size for file in small_run.rglob("*") if file.is_file())
        assert (counts[-1].commits, counts[-1].recording) == (memory.info().snapshot, False)
    cold, warm = grown(*counts[:2]), grown(*counts[-2:])
    assert cold["queries"] == warm["queries"] == 3
    assert 0 < cold["read_bytes"] <= stored
    assert "read_bytes" not in warm
    assert cold["derived_made"] >= 1
    assert "derived_made" not in warm
    assert warm["derived_found"] >= 1
    assert cold["kept_bytes"] > 0
    assert "kept_bytes" not in warm


@pytest.mark.parametrize("name", ["int8", "numpy"])
def test_codes_are_of_backends_that_have_them(small_run, name):
    with dualform.open(small_run, backend=name) as memory:
        layer = memory.info().layers[0]
        for _ in range(3):
            memory.topk(layer.name, [[1.0] * layer.d_in], k=1)
        counts = memory.counts()
    # Of each file of keys, made by the first question and found by the two others.
    files = len(list(small_run.rglob(f"layers/{layer.name}/keys-*"))) if name == "int8" else 0
    assert (counts.codes_made, counts.codes_found) == (files, 2 * files)
    assert (counts.candidates >= 3) == (name == "int8")


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
    size = (ROWS, 30) if isinstance(first, nn.Linear) else (ROWS, 1, 5, 5)
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
        ("embedding", "step > 11"),
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
