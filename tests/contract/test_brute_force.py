"""Answers, in process and over gRPC, against a brute force over what plain FAISS, DuckDB and NumPy read.

The oracle knows nothing of dualform: keys by `faiss.read_index`, values by `numpy.load`, columns and masks by DuckDB,
scores summed exactly by `math.fsum`, outputs by running the optimizer's own update over the masked gradients.
"""

from __future__ import annotations

import math
from pathlib import Path

import duckdb
import faiss
import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import dualform
from dualform.errors import EmptyMask
from dualform_client import Client
from dualform_service.server import Server

STEPS, ROWS, LAYERS = 7, 9, ("0", "2", "4")
COLUMNS = ("slot", "step", "row", "dataset", "label", "sample", "weight", "kind")


def record(path: Path) -> None:
    """Repeated inputs, keys that tie (a dead relu gives zeros), NULL labels and texts, several segments."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.8)
    images, labels = torch.randn(12, 6), torch.randint(0, 3, (12,))
    with dualform.Recorder(model, optimizer, path) as recorder:
        for step in range(STEPS):
            index = torch.randint(0, 12, (ROWS,))
            known = np.ma.MaskedArray(labels[index].numpy(), mask=index.numpy() % 4 == 0)
            kind = [None if i % 5 == 0 else f"kind {i % 3}" for i in index.tolist()]
            name = "first" if step < 4 else "second"
            with recorder.step(dataset=name, label=known, sample=index, weight=torch.rand(ROWS), kind=kind):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images[index]), labels[index]).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
            if step in (1, 4):
                recorder.flush()
        recorder.query_set("test", images, label=labels)


class Folder:
    """The memory as other tools read it."""

    def __init__(self, path: Path) -> None:
        self.shard = path / "shard-00000"
        self.tables = duckdb.connect(self.shard / "slots.duckdb", read_only=True)
        self.keys = {layer: self._keys(layer) for layer in LAYERS}
        self.values = {
            layer: np.concatenate([np.load(f) for f in self._files(layer, "values-*.npy")]) for layer in LAYERS
        }
        self.initial = safetensors.numpy.load_file(path / "weights" / "initial.safetensors")

    def _files(self, layer: str, pattern: str) -> list[Path]:
        return sorted((self.shard / "layers" / layer).glob(pattern))

    def _keys(self, layer: str) -> np.ndarray:
        indexes = [faiss.read_index(str(file)) for file in self._files(layer, "keys-*.faiss")]
        stored = np.concatenate([index.reconstruct_n(0, index.ntotal) for index in indexes])
        query = "SELECT key_rows FROM key_rows WHERE layer = ? ORDER BY first_entry"
        lists = self.tables.execute(query, [layer]).fetchall()
        return stored[[row for (rows,) in lists for row in rows]] if lists else stored

    def slots(self, where: str) -> list[int]:
        return [s for (s,) in self.tables.execute(f"SELECT slot FROM slots WHERE {where} ORDER BY slot").fetchall()]

    def groups(self, where: str, by: tuple[str, ...]) -> dict[tuple, list[int]]:
        """Slots by group, in value order, NULLs last."""
        names = ", ".join(by)
        order = ", ".join(f"{name} NULLS LAST" for name in by)
        query = f"SELECT list(slot ORDER BY slot), {names} FROM slots WHERE {where} GROUP BY {names} ORDER BY {order}"
        return {tuple(row[1:]): row[0] for row in self.tables.execute(query).fetchall()}

    def scores(self, layer: str, query: np.ndarray, sign: str) -> list[float]:
        keys, query = self.keys[layer].astype(np.float64), query.astype(np.float64)
        products = keys * query
        found = [math.fsum(row) for row in products]
        if sign == "cosine":
            lengths = np.linalg.norm(keys, axis=1) * np.linalg.norm(query)
            return (found / np.where(lengths == 0, 1.0, lengths)).tolist()
        return [abs(score) for score in found] if sign == "abs" else found

    def coefficients(self, layer: str, at_step: int) -> list[float]:
        """By step, what momentum and learning rates made of one unit of its gradient until then."""
        log = self.tables.execute(
            "SELECT step, lr, momentum, factor FROM steps JOIN factors USING (step) "
            "WHERE parameter = ? AND step < ? ORDER BY step",
            [f"{layer}.weight", at_step],
        ).fetchall()
        found = []
        for of_step in range(at_step):
            moved = buffer = 0.0
            for step, lr, momentum, factor in log:
                buffer = momentum * buffer + (factor if step == of_step else 0.0)
                moved -= lr * buffer
            found.append(moved)
        return found

    def weight(self, layer: str, where: str, at_step: int) -> np.ndarray:
        """[W | b] from running SGD with momentum over the gradients of the slots that stay."""
        names = [name for name in (f"{layer}.weight", f"{layer}.bias") if name in self.initial]
        kept = set(self.slots(where))
        parts = []
        for name in names:
            weight = self.initial[name].astype(np.float64).reshape(self.values[layer].shape[1], -1)
            buffer = np.zeros_like(weight)
            log = self.tables.execute(
                "SELECT step, lr, momentum, factor FROM steps JOIN factors USING (step) "
                "WHERE parameter = ? AND step < ? ORDER BY step",
                [name, at_step],
            ).fetchall()
            for step, lr, momentum, factor in log:
                rows = [slot for slot in range(step * ROWS, (step + 1) * ROWS) if slot in kept]
                keys = self.keys[layer][rows] if name.endswith("weight") else np.ones((len(rows), 1))
                gradient = factor * (self.values[layer][rows].astype(np.float64).T @ keys.astype(np.float64))
                buffer = momentum * buffer + gradient
                weight = weight - lr * buffer
            parts.append(weight)
        return np.concatenate(parts, axis=1)


def softmax(scores: list[float], temperature: float) -> list[float]:
    powers = [math.exp(max((score - max(scores)) / temperature, -745.0)) for score in scores]
    return [power / math.fsum(powers) for power in powers]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("brute") / "run"
    record(path)
    with dualform.open(path) as engine, Server(engine) as server, Client(server.address) as client:
        yield Folder(path), {"engine": engine, "client": client}


ATOMS = st.one_of(
    st.integers(-1, 4).map(lambda n: f"label = {n}"),
    st.integers(0, 9).map(lambda n: f"step < {n}"),
    st.integers(0, 70).map(lambda n: f"slot = {n}"),
    st.tuples(st.integers(0, 8), st.integers(0, 8)).map(lambda ab: f"row BETWEEN {ab[0]} AND {ab[1]}"),
    st.integers(0, 2).map(lambda n: f"sample % 3 = {n}"),
    st.integers(0, 10).map(lambda n: f"weight > {n / 10}"),
    st.lists(st.integers(0, 3), min_size=1, max_size=3).map(lambda ns: f"label IN ({', '.join(map(str, ns))})"),
    st.sampled_from(["dataset = 'first'", "dataset <> 'first'", "label IS NULL", "kind LIKE '%1'", "kind IS NOT NULL"]),
)
MASKS = st.one_of(
    st.none(),
    st.recursive(
        ATOMS,
        lambda inner: st.one_of(
            inner.map(lambda a: f"NOT ({a})"),
            st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        ),
        max_leaves=4,
    ),
)
SIGNS = st.sampled_from(["dot", "abs", "cosine"])
BY = st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3, unique=True).map(tuple)
QUERIES = st.one_of(
    st.integers(0, 11).map(lambda row: f"test/{row}"),
    st.integers(0, STEPS * ROWS - 1).map(lambda slot: dualform.SlotKeys((slot,))),
    st.lists(st.floats(-8, 8, width=32), min_size=6, max_size=6),
)


def queried(folder: Folder, engine: dualform.Engine, layer: str, query: object) -> tuple[object, np.ndarray]:
    """The question's queries, and the numbers that stand for."""
    if isinstance(query, list):
        vector = np.array(query[: folder.keys[layer].shape[1]], dtype=np.float32)
        return vector, vector
    if isinstance(query, str):
        stored = engine.query_set("test", layer).queries
        assert stored is not None
        return query, stored[int(query.removeprefix("test/"))]
    return query, folder.keys[layer][query.slots[0]]


def ranking(scores: list[float], sign: str) -> list[float]:
    """What slots rank by: cosines by the float32 that is reported."""
    return np.float32(scores).tolist() if sign == "cosine" else scores


def best(slots: list[int], scores: list[float], k: int) -> list[int]:
    return sorted(slots, key=lambda slot: (-scores[slot], slot))[:k]


def refuses_empty(ask, folder: Folder, where: str | None) -> bool:
    if where is None or folder.slots(where):
        return False
    with pytest.raises(EmptyMask):
        ask()
    return True


@pytest.mark.parametrize(("layer", "answerer"), [("0", "engine"), ("2", "client"), ("4", "engine"), ("4", "client")])
class TestAgainstBruteForce:
    @settings(max_examples=13, deadline=None)
    @given(query=QUERIES, where=MASKS, k=st.integers(1, 80), sign=SIGNS)
    def test_topk(self, recorded, answerer, layer, query, where, k, sign):
        folder, answerers = recorded
        question, vector = queried(folder, answerers["engine"], layer, query)
        ask = lambda: answerers[answerer].topk(layer, question, k=k, where=where, score=sign)  # noqa: E731
        if refuses_empty(ask, folder, where):
            return
        scores = ranking(folder.scores(layer, vector, sign), sign)
        expected = best(folder.slots(where or "true"), scores, k)
        hits = ask()
        assert hits.slots[0].tolist() == expected
        np.testing.assert_allclose(hits.scores[0], [scores[slot] for slot in expected], rtol=1e-6, atol=1e-12)

    @settings(max_examples=10, deadline=None)
    @given(query=QUERIES, where=MASKS, k=st.integers(1, 9), by=BY, sign=SIGNS)
    def test_topk_by_group(self, recorded, answerer, layer, query, where, k, by, sign):
        folder, answerers = recorded
        question, vector = queried(folder, answerers["engine"], layer, query)
        ask = lambda: answerers[answerer].topk(layer, question, k=k, where=where, by=by, score=sign)  # noqa: E731
        if refuses_empty(ask, folder, where):
            return
        scores = ranking(folder.scores(layer, vector, sign), sign)
        groups = folder.groups(where or "true", by)
        hits = ask()
        assert hits.groups == tuple(groups)
        assert [found.tolist() for found in hits.slots[0]] == [best(g, scores, k) for g in groups.values()]

    @settings(max_examples=13, deadline=None)
    @given(query=QUERIES, where=MASKS, by=BY, sign=SIGNS)
    def test_group_sum(self, recorded, answerer, layer, query, where, by, sign):
        folder, answerers = recorded
        question, vector = queried(folder, answerers["engine"], layer, query)
        ask = lambda: answerers[answerer].group_sum(layer, question, by=by, where=where, score=sign)  # noqa: E731
        if refuses_empty(ask, folder, where):
            return
        scores, groups = folder.scores(layer, vector, sign), folder.groups(where or "true", by)
        sums = ask()
        assert sums.groups == tuple(groups)
        assert sums.counts.tolist() == [len(slots) for slots in groups.values()]
        for found, slots in zip(sums.sums[0], groups.values(), strict=True):
            expected = math.fsum(scores[slot] for slot in slots)
            # Terms of a signed sum may cancel: its rounding is relative to what was summed.
            size = math.fsum(np.abs(folder.keys[layer][slots].astype(np.float64) * vector).ravel())
            size = float(len(slots)) if sign == "cosine" else size
            assert abs(found - expected) <= (1e-6 * expected if sign == "abs" else 1e-12 * size)

    @settings(max_examples=10, deadline=None)
    @given(query=QUERIES, where=MASKS, at_step=st.one_of(st.none(), st.integers(0, STEPS)))
    def test_output(self, recorded, answerer, layer, query, where, at_step):
        folder, answerers = recorded
        question, vector = queried(folder, answerers["engine"], layer, query)
        ask = lambda: answerers[answerer].output(layer, question, where=where, at_step=at_step)  # noqa: E731
        if refuses_empty(ask, folder, where):
            return
        weight = folder.weight(layer, where or "true", STEPS if at_step is None else at_step)
        biased = np.append(vector, 1.0) if weight.shape[1] > len(vector) else vector
        expected = weight @ biased.astype(np.float64)
        np.testing.assert_allclose(ask()[0], expected, rtol=1e-6, atol=1e-9)

    @settings(max_examples=15, deadline=None)
    @given(
        query=QUERIES,
        where=MASKS,
        at_step=st.one_of(st.none(), st.integers(0, STEPS)),
        temperature=st.sampled_from([1e-300, 0.01, 1.0, 1e9]),
        initial=st.booleans(),
    )
    def test_softmax(self, recorded, answerer, layer, query, where, at_step, temperature, initial):
        folder, answerers = recorded
        question, vector = queried(folder, answerers["engine"], layer, query)
        ask = lambda: answerers[answerer].output(  # noqa: E731
            layer, question, where, at_step, False, "softmax", temperature, initial
        )
        if refuses_empty(ask, folder, where):
            return
        stop = STEPS if at_step is None else at_step
        slots = [slot for slot in folder.slots(where or "true") if slot < stop * ROWS]
        scores = folder.scores(layer, vector, "dot")
        weights = softmax([scores[slot] for slot in slots], temperature)
        # Each slot's value, from the network's own update with no other slot; the bias under the mask.
        before, whole = folder.weight(layer, "false", stop), folder.weight(layer, where or "true", stop)
        expected = np.zeros(len(before))
        if initial:
            expected += before[:, : len(vector)] @ vector.astype(np.float64)
            expected += whole[:, -1] if whole.shape[1] > len(vector) else 0.0
        coefficients = folder.coefficients(layer, stop)
        for slot, weight in zip(slots, weights, strict=True):
            expected += weight * coefficients[slot // ROWS] * folder.values[layer][slot].astype(np.float64)
        answer = ask()
        np.testing.assert_allclose(answer[0], expected, rtol=1e-6, atol=1e-8)
        effective = 1 / math.fsum(weight**2 for weight in weights) if slots else 0.0
        np.testing.assert_allclose(answer.effective_slots, [effective], rtol=1e-9)
