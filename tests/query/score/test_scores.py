"""The kinds of score: how they are named, and what a new one takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import dualform
from dualform.errors import BadInput
from dualform.query.score import kinds
from dualform.query.score.canonical import score_rows
from dualform.query.search.screen import scan_of
from dualform.query.sums import key_sums
from dualform.questions import Vectors
from dualform.questions.question import as_queries
from dualform.rerun import rerun
from tests.query import arrays, oracle
from tests.rerun.trained import Training

LABELS = [slot % 3 for slot in range(600)]


class Opposed:
    """The negated inner product, which the compiled screen does not know: what a file of a new score holds."""

    name = "opposed"
    linear = False
    screens_absolute = False

    def of(self, products):
        return np.negative(products, out=products)

    def searchers(self, backend):
        return [scan_of(self)]

    def sums(self, grouping, queries):
        return grouping.by_slot(queries, self.of) if grouping.many else -score_rows(grouping.key_sums().sums, queries)

    def additive(self, sums, queries):
        return np.ones((len(queries), len(sums.sums)), dtype=bool)


class DistanceSearcher:
    def find(self, search, queries):
        rows = search.rows
        entries, _ = rows.entries_of(np.flatnonzero(rows.stays))
        scores = nearness(rows.keys.take(rows.rows_of(entries)), queries)
        groups = np.zeros(len(entries), int) if search.groups is None else search.groups.numbers
        found = []
        for own in scores:
            order = np.lexsort((entries, -own, groups))
            places = np.arange(len(order)) - np.searchsorted(groups[order], groups[order])
            kept = order[places < search.k]
            found.append((entries[kept], own[kept]))
        return found


class Nearness:
    """The negated squared distance: a score that depends on more than the product."""

    name = "nearness"

    def searchers(self, backend):
        return [DistanceSearcher()]

    def sums(self, grouping, queries):
        rows, groups = grouping.rows(), grouping.groups
        scores = nearness(rows.keys.take(rows.rows_of(groups.entries)), queries)
        return np.stack([np.bincount(groups.numbers, own, minlength=len(groups.counts)) for own in scores])


def nearness(keys, queries):
    return -np.square(keys.astype(np.float64) - queries.astype(np.float64)[:, None]).sum(axis=2)


@pytest.fixture
def near(monkeypatch):
    monkeypatch.setattr(kinds, "_BY_NAME", {**kinds._BY_NAME, "nearness": Nearness()})


@pytest.fixture
def opposed(monkeypatch):
    monkeypatch.setattr(kinds, "_BY_NAME", {**kinds._BY_NAME, "opposed": Opposed()})


@pytest.mark.parametrize("backend", ["int8", "numpy", "torch", "faiss"])
def test_a_new_score_ranks_and_sums_once_it_stands_in_the_table(opposed, backend, rng):
    keys, queries = rng.normal(size=(600, 9)).astype(np.float32), rng.normal(size=(3, 9)).astype(np.float32)
    engine = arrays.engine(arrays.memory({"fc": keys}, {"label": LABELS}), backend)
    hits = engine.topk("fc", queries, k=7, score="opposed")
    grouped = engine.topk("fc", queries, k=4, by="label", score="opposed")
    sums = engine.group_sum("fc", queries, by="label", score="opposed").sums
    for i, query in enumerate(queries):
        expected = [-score for score in oracle.scores(keys, query)]
        assert hits.slots[i].tolist() == oracle.best(expected, range(600), 7)
        np.testing.assert_array_equal(hits.scores[i], np.float32([expected[slot] for slot in hits.slots[i]]))
        members = [range(label, 600, 3) for label in range(3)]
        assert [slots.tolist() for slots in grouped.slots[i]] == [oracle.best(expected, own, 4) for own in members]
        np.testing.assert_allclose(sums[i], [sum(expected[slot] for slot in own) for own in members], rtol=1e-10)


TRAINING, BLOCK = Training(steps=12, rows=60), 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A training recorded twice: with keys and without."""
    path = tmp_path_factory.mktemp("scores")
    TRAINING.run(lambda *of: dualform.Recorder(*of, path / "stored"))
    TRAINING.run(lambda *of: dualform.Recorder(*of, path / "m", keys=False))
    return path


@pytest.mark.parametrize("window_bytes", [1, 128 << 20], ids=["several windows", "one window"])
def test_new_scores_are_reran_as_a_stored_memory_answers_them(near, opposed, folder, rng, window_bytes, monkeypatch):
    for module in (key_sums, rerun):
        monkeypatch.setattr(module, "BLOCK", BLOCK)
    queries = dualform.Vectors(rng.normal(size=(3, 7)))
    questions = [
        question
        for name in ("nearness", "opposed", "cosine")
        for question in (
            dualform.TopK("2", queries, k=9, where="label < 2", score=name),
            dualform.TopK("2", queries, k=2, by=("dataset", "label"), score=name),
            dualform.GroupSum("2", queries, by=("dataset", "label"), where="sample > 40", score=name),
        )
    ]
    reran = TRAINING.run(lambda *of: dualform.Rerun(*of, folder / "m", questions, window_bytes=window_bytes))
    with dualform.open(folder / "stored") as stored:
        assert stored.info().slots["sample"] > 2 * BLOCK  # so that the smallest windows are three
        for found, expected in zip(reran.answers(), map(stored.ask, questions), strict=True):
            assert (found.groups, found.counts.tolist()) == (expected.groups, expected.counts.tolist())
            if isinstance(expected, dualform.Hits):
                assert found.ids.tolist() == expected.ids.tolist()
                np.testing.assert_array_equal(found.flat_scores, expected.flat_scores)
            else:
                np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-12)
        best = np.argsort(-nearness(stored.keys("2"), queries.rows[:1])[0], kind="stable")[:5]
        assert stored.topk("2", queries, k=5, score="nearness").slots[0].tolist() == best.tolist()


def test_a_score_that_is_not_in_the_table_is_refused_by_name():
    engine = arrays.engine(arrays.memory({"fc": np.eye(3, dtype=np.float32)}, {"label": [0, 1, 2]}))
    for ask in (
        lambda: engine.topk("fc", [1, 2, 3], score="nix"),
        lambda: engine.group_sum("fc", [1, 2, 3], by="label", score="nix"),
    ):
        with pytest.raises(BadInput) as refused:
            ask()
        assert (refused.value.message, refused.value.field) == ("Unknown score 'nix'.", "score")
        others = '"contribution" (with target=) or "gradient"'
        assert refused.value.hint == f'Choose "dot", "abs", "cosine", {others}.'


def test_masked_numbers_are_no_queries():
    """NumPy hands on what lies under the mask."""
    masked = np.ma.masked_invalid([[1.0, np.nan, 2.0]])
    with pytest.raises(BadInput, match=r"^queries must not contain masked numbers\."):
        Vectors(masked)
    with pytest.raises(BadInput, match=r"^queries must not contain masked numbers\."):
        as_queries(masked)
    assert Vectors(masked.filled(0.0)).rows.tolist() == [[1.0, 0.0, 2.0]]


def test_a_tensor_that_is_no_matrix_of_numbers_is_refused():
    for tensor in (torch.ones(1, 2, 3), torch.empty(0, 3), torch.full((1, 3), torch.nan, dtype=torch.bfloat16)):
        with pytest.raises(BadInput):
            as_queries(tensor)
