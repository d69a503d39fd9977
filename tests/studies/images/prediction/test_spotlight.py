"""The questions of a spotlight, put to a stand-in that answers them by brute force over a few made-up datapoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dualform.answers import Columns, GroupSums, Hits
from dualform.questions import QuerySetExamples
from dualform_studies.images.prediction.spotlight import ask_spotlight, clearest_interference

QUERIES = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]])


class BruteForce:
    """Answers group sums and top-k by (dataset, label) over slots that it holds in arrays."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.keys = rng.normal(size=(120, 2))
        self.dataset = np.array(["zebra"] * 60 + ["apple"] * 60, dtype=object)
        self.label = np.arange(120) % 2
        self.sample = np.arange(120) % 30
        self.asked: list[int] = []
        self.groups = [(dataset, label) for dataset in ("apple", "zebra") for label in (0, 1)]

    def _scores(self, queries: QuerySetExamples) -> np.ndarray:
        return np.abs(QUERIES[list(queries.examples or ())] @ self.keys.T)

    def _members(self, group: tuple[str, int]) -> np.ndarray:
        return np.flatnonzero((self.dataset == group[0]) & (self.label == group[1]))

    def group_sum(
        self, layer: str, queries: QuerySetExamples, by: Any, where: None = None, score: str = "dot"
    ) -> GroupSums:
        assert (by, score) == (("dataset", "label"), "abs")
        members = [self._members(group) for group in self.groups]
        sums = np.stack([self._scores(queries)[:, rows].sum(axis=1) for rows in members], axis=1)
        return GroupSums(tuple(self.groups), sums, np.array([len(rows) for rows in members]), by)

    def topk(
        self, layer: str, queries: QuerySetExamples, k: int = 10, where: None = None, by: Any = None, score: str = "dot"
    ) -> Hits:
        assert score == "abs"
        self.asked.append(k)
        scores = self._scores(queries)[0]
        groups = [self._members(group) for group in self.groups] if by else [np.arange(120)]
        best = [rows[np.argsort(-scores[rows], kind="stable")][:k] for rows in groups]
        ids = np.concatenate(best)
        counts = np.array([[len(rows) for rows in best]])
        return Hits(ids, scores[ids].astype(np.float32), counts, tuple(self.groups) if by else None)

    def slots(self, hits: Hits) -> Columns:
        ids = hits.ids
        return Columns(
            {"slot": ids, "dataset": self.dataset[ids], "label": self.label[ids], "sample": self.sample[ids]}
        )


@pytest.fixture
def memory() -> Any:
    return BruteForce()


def test_groups_stand_in_the_order_of_training(memory: Any):
    (layer,) = ask_spotlight(memory, ["layer-0"], QuerySetExamples("test", (2,)), ["zebra", "apple"], per_group=7)
    assert layer.groups == (("zebra", 0), ("zebra", 1), ("apple", 0), ("apple", 1))
    scores = np.abs(memory.keys @ QUERIES[2])
    for group, best, total, count in zip(layer.groups, layer.best, layer.sums, layer.counts, strict=True):
        own = scores[(memory.dataset == group[0]) & (memory.label == group[1])]
        np.testing.assert_allclose(best, np.sort(own)[::-1][:7], rtol=1e-6)
        assert total == pytest.approx(own.sum())
        assert count == 30
    assert layer.strongest == layer.groups[int(layer.sums.argmax())]


def test_an_image_that_came_in_many_epochs_is_shown_once(memory: Any):
    memory.keys[:] = memory.keys[memory.sample]
    (layer,) = ask_spotlight(memory, ["layer-0"], QuerySetExamples("test", (0,)), ["zebra", "apple"], top=5)
    shown = [(hit["dataset"], hit["sample"]) for hit in layer.top]
    assert len(set(shown)) == len(shown) == 5
    assert [hit["score"] for hit in layer.top] == sorted((hit["score"] for hit in layer.top), reverse=True)


def test_more_datapoints_are_asked_for_until_enough_images_are_found(memory: Any):
    memory.keys[:100] = 5.0
    memory.dataset[:] = "zebra"
    memory.sample[:100] = 0
    memory.groups = [("zebra", 0), ("zebra", 1)]
    (layer,) = ask_spotlight(memory, ["layer-0"], QuerySetExamples("test", (0,)), ["zebra"], top=5)
    assert len(layer.top) == 5
    assert memory.asked[-2:] == [80, 320]


def test_the_clearest_interference_is_that_of_the_greatest_share(memory: Any):
    rows = np.array([0, 1, 2])
    given = np.array([1, 0, 1])
    answer = memory.group_sum("layer-2", QuerySetExamples("test", (0, 1, 2)), ("dataset", "label"), score="abs")
    group = [memory.groups.index(("apple", label)) for label in given]
    own = answer.sums[rows, group]
    ranked = [(own[at] == answer.sums[at].max(), own[at] / answer.sums[at].sum(), at) for at in rows]
    found = clearest_interference(memory, "layer-2", "test", rows, given, "apple")
    assert found == max(ranked)[2]


def test_no_interference_is_none(memory: Any):
    nothing = np.array([], dtype=np.int64)
    assert clearest_interference(memory, "layer-2", "test", nothing, nothing, "apple") is None
