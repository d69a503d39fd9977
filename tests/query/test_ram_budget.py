"""An engine of bounded memory answers as any other, holds no more than it was given, and refuses what does not fit."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import nn

import dualform
from dualform import kernels
from dualform.answers import Scan
from dualform.errors import BadInput
from dualform.query import engine, needs
from dualform.query.resolved import resolve
from dualform.query.sums import grouping
from dualform.query.sums.group_sum import group_sum
from dualform.query.view import never
from dualform.questions import GroupSum, Vectors
from dualform.store.batch import Batch, Extent, Header, LayerRows
from dualform.store.files import ram_budget
from dualform.store.layer import Layer, affine
from dualform.store.reading.runs import opened
from dualform.store.writing.writer import Writer
from tests.cases import some
from tests.query import arrays
from tests.query.plain_case import peak_bytes
from tests.trainings import record_steps
from tests.wire.values import same

WIDTH = 160
LAYERS = tuple(Layer(name, "sample", WIDTH, 2, affine(WIDTH, f"{name}.weight", None)) for name in ("one", "two"))
QUERIES = np.random.default_rng(5).normal(size=(3, WIDTH)).astype(np.float32)


def write(path: Path, steps: int, rows: int, commit_every: int) -> Path:
    """Keys and values without a training: one segment a layer and commit."""
    initial = {f"{layer.name}.weight": np.zeros((2, WIDTH), np.float32) for layer in LAYERS}
    writer = Writer(Header(path, layers=LAYERS, optimizer="none", rule="", reason="a test's", initial=initial))
    rng = np.random.default_rng(0)
    for step in range(steps):
        said = {
            "dataset": np.array(["a"] * rows, object),
            "label": rng.integers(0, 7, rows),
            "sample": np.arange(step * rows, (step + 1) * rows),
        }
        slots = {
            layer.name: [LayerRows(0, *(rng.random((rows, width), np.float32) - 0.5 for width in (WIDTH, 2)))]
            for layer in LAYERS
        }
        writer.append(Batch(step, said, [Extent("sample", 0, rows, None)], slots))
        if step % commit_every == commit_every - 1:
            writer.commit()
    writer.close()
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("budget") / "run", steps=24, rows=32, commit_every=4)


def asked(memory, number):
    layer, query = ("one", "two")[number % 2], QUERIES[: 1 + number % 3]
    kinds = [
        lambda: memory.topk(layer, query, k=3),
        lambda: memory.topk(layer, query, k=2, where="label < 4"),
        lambda: memory.topk(layer, query, k=2, by="label", score="abs"),
        lambda: memory.topk(layer, query, k=3, score="cosine"),
        lambda: memory.group_sum(layer, query, by="label"),
        lambda: memory.group_sum(layer, query, by="step", where="label <> 3", score="abs"),
        lambda: memory.group_sum(layer, query, by="row", score="cosine"),
        lambda: memory.distribution(layer, query, "label <> 2", "abs"),
    ]
    return replace(kinds[number // 2 % len(kinds)](), scan=Scan())


SCREENED = pytest.param(
    "int8", marks=pytest.mark.skipif(not kernels.fast(), reason="this processor has no loops for the screen")
)


@pytest.mark.parametrize("backend", ["numpy", SCREENED])
@settings(deadline=None, max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(numbers=st.lists(st.integers(0, 31), min_size=6, max_size=14), most=st.sampled_from([120_000, 250_000, 800_000]))
def test_answers_under_a_small_budget_have_the_same_bits_and_caches_hold_no_more(run, backend, numbers, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(needs, "WORK", 1000)
        patch.setattr(needs, "HELD_BYTES", 1000)
        patch.setattr(needs, "_COLUMNS", 1)
        patch.setattr(needs, "LEAST", 1000)
        patch.setattr(engine, "anonymous_bytes", lambda: 0)
        with dualform.open(run, backend) as free, dualform.open(run, backend, ram=most) as bounded:
            budget = bounded._budget
            caches = [
                bounded._segments,
                bounded._view.cache,
                *([bounded._backend.screen.codes] if backend == "int8" else []),
            ]
            for number in numbers:
                assert same(asked(bounded, number), asked(free, number))
                assert sum(cache.nbytes for cache in caches) == budget.kept_bytes <= budget.most_bytes < most
            assert free._segments.nbytes > 0
            bounded.close()
            assert budget.kept_bytes == 0


def test_a_question_that_cannot_fit_says_how_much_it_needs(run, monkeypatch):
    with dualform.open(run, ram="1 GB") as memory:
        memory.topk("one", QUERIES, k=3)
        monkeypatch.setattr(needs, "_COLUMNS", 1_000_000)
        with pytest.raises(BadInput, match=r"needs about 6\.\d+ GB of RAM; the limit is [78]\d\d MB") as caught:
            memory.topk("one", QUERIES, k=3)
        assert caught.value.field == "ram"
        with pytest.raises(BadInput, match="needs about"):
            memory.weights()


def test_too_little_memory_is_refused_as_it_is_opened(run):
    with pytest.raises(BadInput, match=r"50 MB is too small: opening the memory takes") as caught:
        dualform.open(run, ram="50 MB")
    assert caught.value.hint.startswith('Pass at least ram="')
    with pytest.raises(BadInput, match="ram must be a number of bytes, or a text with a unit, not 'much'"):
        dualform.open(run, ram="much")
    process = ram_budget.anonymous_bytes()
    least = needs.least(opened(run)) / 0.8
    assert least < needs.LEAST / 5
    with dualform.open(run, ram=int(least + 50e6)):
        pass
    if process > 50e6:
        with pytest.raises(BadInput, match="is too small"):
            dualform.open(run, ram=int(least + process / 2), whole_process=True)


@pytest.mark.skipif(not ram_budget.anonymous_bytes(), reason="the system does not say what a process holds")
def test_a_server_counts_the_libraries_it_has_loaded(run):
    with dualform.open(run, ram="4 GB", whole_process=True) as served, dualform.open(run, ram="4 GB") as memory:
        files = ram_budget.resident_bytes() - ram_budget.anonymous_bytes()
        assert files > 20e6
        assert served._budget.most_bytes <= 0.8 * (4e9 - files)
        assert memory._budget.most_bytes > served._budget.most_bytes


def test_what_is_claimed_of_a_small_memory_is_more_than_is_used_and_little(tmp_path):
    """10 MB of keys a layer, where any question claimed half a gigabyte.

    Allocated, not resident: what allocators and DuckDB keep from one question to the next is the process's, below.
    """
    path = write(tmp_path / "ten", steps=16, rows=1024, commit_every=8)
    many = np.random.default_rng(1).normal(size=(500, WIDTH)).astype(np.float32)
    asks = [
        lambda memory: memory.topk("one", many[:1], k=5),
        lambda memory: memory.topk("two", many[:1], k=5, where="label < 4"),
        lambda memory: memory.topk("one", many, k=5),
        lambda memory: memory.group_sum("one", many[:3], by="label"),
        lambda memory: memory.group_sum("two", many[:3], by="label", score="abs"),
        lambda memory: memory.distribution("one", many[:3]),
        lambda memory: memory.topk("one", many[:10], k=16384, distinct="sample"),
    ]
    pairs = []
    for ask in asks:
        with dualform.open(path) as memory, pytest.MonkeyPatch.context() as patch:
            room, claimed = memory._room, []

            def noted(size, *rest, room=room, claimed=claimed):
                claimed.append(size())
                return room(size, *rest)

            patch.setattr(memory, "_room", noted)
            used, _ = peak_bytes(partial(ask, memory))
            pairs.append((max(claimed), used))
    assert all(used <= claimed for claimed, used in some(pairs))
    assert all(claimed < 34e6 for claimed, _ in (*pairs[:2], *pairs[3:6]))
    assert pairs[2][0] < 100e6  # of 500 queries, with their scores
    assert max(used for _, used in pairs[:2]) > 5e6


MEASURED = """
import sys, threading, time
import numpy as np
import dualform
from dualform.query import needs
from dualform.store.files.ram_budget import anonymous_bytes
needs.WORK, needs.HELD_BYTES, needs.LEAST = 12 << 20, 8 << 20, 22 << 20
small, large = sys.argv[1:]
queries = np.random.default_rng(1).normal(size=(3, 160)).astype(np.float32)
def ask(path, memory=None):
    with dualform.open(path, ram=memory) as memory:
        for _ in range(2):
            for layer in ("one", "two"):
                memory.topk(layer, queries, k=3)
                memory.topk(layer, queries, k=2, by="label", where="label < 4", score="abs")
                memory.group_sum(layer, queries, by="step")
                memory.group_sum(layer, queries, by="label", score="abs")
                memory.distribution(layer, queries)
                look()
peak, done = [0], threading.Event()
def look():
    peak[0] = max(peak[0], anonymous_bytes())
ask(small)
def watch():
    while not done.wait(0.002):
        look()
watcher = threading.Thread(target=watch)
watcher.start()
before = anonymous_bytes()  # before both: the allocator gives back late what the first has let go
for memory in ("64 MB", None):
    peak[0] = 0
    ask(large, memory)
    print(peak[0] - before)
done.set()
watcher.join()
"""


@pytest.mark.skipif(not ram_budget.anonymous_bytes(), reason="the system does not say what a process holds")
def test_a_process_takes_no_more_than_it_was_given(run, tmp_path):
    large = write(tmp_path / "large", steps=64, rows=1024, commit_every=8)  # 84 MB of keys
    given = [sys.executable, "-c", MEASURED, str(run), str(large)]
    ran = subprocess.run(given, capture_output=True, text=True, check=True, timeout=120)
    bounded, free = map(int, ran.stdout.split())
    assert bounded <= 64e6
    assert free > 84e6


def test_a_server_looks_at_its_process_and_its_allocator_gives_back_early(run, monkeypatch):
    told = []
    monkeypatch.setattr(engine, "return_large_blocks", lambda: told.append(True))
    with dualform.open(run, ram="4 GB", whole_process=True) as served:
        assert told == [True]
        assert served._budget._resident is ram_budget.resident_bytes
    with dualform.open(run, ram="4 GB") as memory:
        assert told == [True]
        assert memory._budget._resident is None


WIDE, NET_STEPS, NET_ROWS = 700, 4, 8


class Net(nn.Module):
    """A small layer before wide ones, and one that is not recorded."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.narrow, self.wide, self.last = nn.Linear(5, 5), nn.Linear(5, WIDE), nn.Linear(WIDE, 5)
        self.square, self.norm = nn.Linear(WIDE, WIDE), nn.LayerNorm(WIDE)

    def forward(self, x):
        return self.last(self.norm(self.square(self.wide(self.narrow(x)))))


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    model, path = Net(), tmp_path_factory.mktemp("needs") / "run"
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    record_steps(
        dualform.Recorder(model, optimizer, path, quiet=True),
        optimizer,
        (torch.Generator().manual_seed(step) for step in range(NET_STEPS)),
        lambda generator: model(torch.randn(NET_ROWS, 5, generator=generator)).square().sum(),
        label=torch.arange(NET_ROWS),
    )
    return path


@pytest.fixture
def small_needs(monkeypatch):
    """Work and what is held take little, so that weights are most of what questions need."""
    for name, size in {"WORK": 1 << 20, "HELD_BYTES": 1 << 20, "LEAST": 3 << 20}.items():
        monkeypatch.setattr(needs, name, size)
    monkeypatch.setattr(engine, "anonymous_bytes", lambda: 0)


QUERY = np.ones((1, 5), np.float32)


def test_an_output_needs_its_own_layer_not_the_network(wide, small_needs):
    with dualform.open(wide) as free, dualform.open(wide, ram="16 MB") as bounded:
        asked = {"where": "label < 4"}
        assert same(bounded.output("narrow", QUERY, **asked).values, free.output("narrow", QUERY, **asked).values)
        assert bounded.cancellation("label < 4", layer="narrow") == free.cancellation("label < 4", layer="narrow")
        for whole in (
            bounded.weights,
            bounded.verify,
            lambda: bounded.output("square", np.ones((1, WIDE), np.float32)),
        ):
            with pytest.raises(BadInput, match=r"needs about .* of RAM") as caught:
                whole()
            assert (caught.value.field, caught.value.hint) == ("ram", "Open the memory with more RAM.")
        with pytest.raises(BadInput, match="needs about") as caught:
            bounded.cancellation("label < 4")
        assert caught.value.hint == "Ask of one layer, or open the memory with more RAM."


@pytest.mark.parametrize("layer", ["narrow", "square"])
def test_what_an_output_takes_is_less_than_what_it_claims(wide, layer):
    with dualform.open(wide) as memory:
        own = memory._view.snapshot.layer(layer)
        claimed = needs.of_weights(memory._view, own) - needs._blocks([own], memory._view.snapshot)
        query = np.ones((1, memory._view.snapshot.layer(layer).d_in), np.float32)
        memory.topk(layer, query, where="label < 4")  # masks and columns are counted apart
        taken, _ = peak_bytes(lambda: memory.output(layer, query, where="label < 4"))
    assert taken <= claimed + 2**20
    assert claimed <= 4 * taken + 2**20, "and not far from it"


def test_layers_that_hold_a_parameter_of_the_layer_count_with_it(tmp_path):
    model = nn.Sequential(nn.Embedding(300, 16), nn.Linear(16, 300, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    spaces = {"0": "token", "1": "token"}
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True, spaces=spaces),
        optimizer,
        1,
        lambda _: model(torch.arange(6).reshape(2, 3)).square().sum(),
        label=[0, 1],
    )
    with dualform.open(tmp_path / "m") as memory:
        view = memory._view
        assert needs.of_weights(view, view.snapshot.layer("0")) == needs.of_weights(view)


@pytest.mark.parametrize(
    ("ask", "instead"),
    [
        (lambda memory: memory.topk("narrow", QUERY), "Ask with fewer queries at once, or by fewer groups, or open"),
        (lambda memory: memory.group_sum("narrow", QUERY, by="label"), "Ask with fewer queries at once, or by"),
        (lambda memory: memory.slots([0, 1]), "Look up fewer slots at once, or open the memory with more RAM."),
    ],
    ids=["topk", "sums", "slots"],
)
def test_a_refusal_says_what_would_need_less(wide, small_needs, monkeypatch, ask, instead):
    with dualform.open(wide, ram="16 MB") as memory:
        ask(memory)
        monkeypatch.setattr(needs, "_of_layer", lambda resolved: 1 << 30)
        monkeypatch.setattr(needs, "_NUMBER", 1 << 30)
        with pytest.raises(BadInput, match="needs about") as caught:
            ask(memory)
        assert caught.value.hint.startswith(instead)


def test_sums_by_many_groups_hold_the_scores_of_one_batch(monkeypatch, rng):
    entries, groups, queries = 150_000, 4_000, 3 * grouping.BATCH
    monkeypatch.setattr(grouping, "BUDGET", 0)
    made = arrays.memory(
        {"fc": rng.standard_normal((entries, 4), np.float32)}, {"sample": rng.integers(0, groups, entries)}
    )
    memory = arrays.engine(made)
    asked = GroupSum("fc", Vectors(rng.standard_normal((queries, 4), np.float32)), ("sample",))
    memory.ask(asked)
    resolved = resolve(memory._view, asked, never)
    peak, _ = peak_bytes(lambda: group_sum(resolved, never))
    claimed = needs.of_group_sum(resolved) - needs._of_layer(resolved)
    batch, answer = 8 * grouping.BATCH * entries, 8 * queries * groups
    assert peak < 1.8 * batch + answer
    assert peak < claimed < 2 * (batch + answer) + 8 * needs._COLUMNS * entries
