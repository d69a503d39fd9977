"""The kinds of score: how they are named, and what a new one takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import dualform
from dualform.errors import BadInput
from dualform.query.score import algebra
from dualform.query.search.codes import RowFactors
from dualform.query.sums import key_sums
from dualform.questions import Vectors
from dualform.questions.question import as_queries
from dualform.rerun import rerun
from tests.query import arrays, oracle
from tests.rerun.trained import Training

LABELS = [slot % 3 for slot in range(600)]


@dataclass(frozen=True)
class Minus:
    """The weight -1 of every row."""

    rows: int
    by_row = True
    tiny = 0.0
    most_queries = 1 << 30

    def weigh(self, products, query, of, check):
        return np.negative(products, out=products)

    def at(self, query, of, check):
        return np.full(len(of), -1.0)

    def row_factors(self, rows, queries, codes, check):
        factors = np.full((1, self.rows), -1, np.float32)
        return RowFactors(factors, factors)


class Opposed(algebra.Score):
    """The negated inner product: what a new score holds."""

    name = "opposed"
    weighted = True

    def weights(self, view, layer, rows, queries):
        return Minus(len(rows.norms))

    def sums(self, grouping, queries):
        return -grouping.sums(queries)


@pytest.fixture
def opposed(monkeypatch):
    monkeypatch.setattr(algebra, "_BY_NAME", {**algebra._BY_NAME, "opposed": Opposed()})


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
def test_new_scores_are_reran_as_a_stored_memory_answers_them(opposed, folder, rng, window_bytes, monkeypatch):
    for module in (key_sums, rerun):
        monkeypatch.setattr(module, "BLOCK", BLOCK)
    queries = dualform.Vectors(rng.normal(size=(3, 7)))
    questions = [
        question
        for name in ("opposed", "cosine")
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
