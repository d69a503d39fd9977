"""Examples, their figures, and what a prediction attends to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from dualform.answers import Columns, GroupSums, Hits
from dualform.questions import QuerySetExamples
from dualform_studies.images.datasets import Dataset, digits, permuted
from dualform_studies.images.prediction import (
    LayerSpotlight,
    Query,
    ask_spotlight,
    draw_distribution,
    draw_sums,
    draw_top_images,
)


@pytest.fixture(scope="module")
def pair() -> tuple[Dataset, Dataset]:
    return digits(), permuted(digits())


@pytest.fixture
def layers(pair: tuple[Dataset, Dataset]) -> list[LayerSpotlight]:
    groups = tuple((dataset.name, label) for dataset in pair for label in range(10))
    top = [{"dataset": "digits", "label": 3, "sample": row, "step": row, "score": 9.5 - row} for row in range(3)]
    rng = np.random.default_rng(0)
    return [
        LayerSpotlight(
            layer=f"layer-{number}",
            groups=groups,
            best=[np.sort(rng.random(40 + at, dtype=np.float32))[::-1] for at in range(20)],
            sums=rng.random(20) * 1000,
            counts=np.full(20, 480),
            top=top[: 3 - number],
        )
        for number in range(2)
    ]


def panels_of(figure: Any) -> list[Axes]:
    return [axes for axes in figure.get_axes() if axes.get_ylabel()]


@pytest.mark.parametrize("draw", [draw_distribution, draw_sums])
def test_figures_name_axes_leaders_and_the_papers_figure_and_mark_the_querys_classes(
    draw, tmp_path: Path, pair, layers, drawn
):
    true = int(pair[0].test.labels[4])
    given = (true + 1) % 10
    layers[0].best[7][0] = layers[1].best[13][0] = 2.0
    draw(tmp_path / "figure.png", layers, Query(pair[0], 4, given), pair, "Figure 4")
    panels = panels_of(drawn[0])
    if draw is draw_distribution:
        label, what, leaders = "attention weight", "greatest weight", ["digits 7", "permuted-digits 3"]
        assert panels[-1].get_xlabel() == (
            "training class; within each, its 59 datapoints of greatest weight from the left,\n"
            "ranks on a logarithmic scale (dots: ranks 1, 10)"
        )
    else:
        label, what = "summed weights", "greatest sum"
        best = [divmod(int(layer.sums.argmax()), 10) for layer in layers]
        leaders = [f"{pair[dataset].name} {number}" for dataset, number in best]
        assert panels[-1].get_xlabel() == "training class"
    titles = [f"layer-{at}: the {what} goes to {leader}" for at, leader in enumerate(leaders)]
    assert [panel.get_title(loc="left") for panel in panels] == titles
    assert all(panel.get_ylabel().startswith(label) for panel in panels)
    ticks = panels[-1].get_xticklabels()
    names = [str(number) for number in range(10)] * 2
    names[true] += " ★"
    for at in (given, 10 + given):
        names[at] += " ●"
    assert [tick.get_text() for tick in ticks] == names
    assert {tick.get_weight() for tick in ticks if tick.get_text()[-1] in "★●"} == {"bold"}
    framed = [patch for patch in panels[0].patches if patch.get_facecolor()[3] == 0]
    assert sorted(round(patch.get_x()) for patch in framed) == [given, 10 + given]
    legends = [axes.get_legend() for axes in drawn[0].get_axes() if axes.get_legend()]
    assert [text.get_text() for one in legends for text in one.texts] == ["★ its class", "● the class recognised"]
    words = " ".join(text.get_text() for axes in drawn[0].get_axes() for text in axes.texts)
    assert "(Figure 4 of the paper)" in words
    assert f"digits test image 4, class {true}, recognised as {given}" in words
    assert "permuted-digits" in words


def test_a_query_that_is_recognised_has_one_mark(tmp_path: Path, pair, layers, drawn):
    true = int(pair[0].test.labels[4])
    draw_sums(tmp_path / "sums.png", layers, Query(pair[0], 4, true), pair, "Figure 5")
    ticks = panels_of(drawn[0])[-1].get_xticklabels()
    assert [tick.get_text() for tick in ticks if not tick.get_text().isdigit()] == [f"{true} ★"]


def test_a_line_is_the_weights_by_rank_and_its_first_is_seen(tmp_path: Path, pair, layers, drawn):
    layers[0].best[0] = np.linspace(9, 1, 500, dtype=np.float32)
    draw_distribution(tmp_path / "best.png", layers, Query(pair[0], 4, 3), pair, "Figure 4")
    line, dots = (one for one in panels_of(drawn[0])[0].get_lines() if one.get_ydata()[0] == 9)
    np.testing.assert_array_equal(dots.get_ydata(), layers[0].best[0][[0, 9, 99]])
    np.testing.assert_allclose(dots.get_xdata(), 0.08 + 0.84 * np.log([1, 10, 100]) / np.log(500))
    ranks = np.exp((np.asarray(line.get_xdata()) - 0.08) / 0.84 * np.log(500)).round().astype(int)
    np.testing.assert_array_equal(line.get_ydata(), layers[0].best[0][ranks - 1])
    assert (ranks[0], ranks[-1]) == (1, 500)


def test_top_images_name_dataset_class_step_and_weights_of_the_same_decimals(tmp_path: Path, pair, layers, drawn):
    layers[1] = replace(layers[1], top=[hit | {"score": hit["score"] + 338} for hit in layers[1].top])
    draw_top_images(tmp_path / "top.png", layers, Query(pair[0], 4, 3), pair, "Figure 10")
    titles = [axes.get_title() for axes in drawn[0].get_axes() if "weight" in axes.get_title()]
    assert titles == [
        "1. digits: 3\nweight 9.5, step 0", "2. digits: 3\nweight 8.5, step 1", "3. digits: 3\nweight 7.5, step 2",
        "1. digits: 3\nweight 347.5, step 0", "2. digits: 3\nweight 346.5, step 1",
    ]  # fmt: skip


QUERIES = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]])


class BruteForce:
    """Answers group sums and top-k by (dataset, label) over slots that it holds in arrays."""

    def __init__(self) -> None:
        self.keys = np.random.default_rng(0).normal(size=(120, 2))
        self.dataset = np.array(["zebra"] * 60 + ["apple"] * 60, dtype=object)
        self.label = np.arange(120) % 2
        self.sample = np.arange(120) % 30

    def scores(self, queries: QuerySetExamples) -> np.ndarray:
        return np.abs(QUERIES[list(queries.examples or ())] @ self.keys.T)

    def members(self) -> dict[tuple[str, int], np.ndarray]:
        groups = [(dataset, label) for dataset in sorted(set(self.dataset)) for label in (0, 1)]
        return {(name, label): np.flatnonzero((self.dataset == name) & (self.label == label)) for name, label in groups}

    def group_sum(self, layer: str, queries: QuerySetExamples, by: Any, score: str = "dot") -> GroupSums:
        assert (by, score) == (("dataset", "label"), "abs")
        rows = self.members()
        sums = np.stack([self.scores(queries)[:, own].sum(axis=1) for own in rows.values()], axis=1)
        return GroupSums(tuple(rows), sums, np.array([len(own) for own in rows.values()]), by)

    def topk(
        self, layer: str, queries: QuerySetExamples, k: int, score: str, by: Any = None, distinct: str | None = None
    ) -> Hits:
        assert (score, distinct) == ("abs", None if by else "sample")
        scores, groups = self.scores(queries)[0], self.members()
        best = [
            rows[np.argsort(-scores[rows], kind="stable")][:k] for rows in (groups.values() if by else [np.arange(120)])
        ]
        ids, counts = np.concatenate(best), np.array([[len(rows) for rows in best]])
        return Hits(ids, scores[ids].astype(np.float32), counts, tuple(groups) if by else None)

    def slots(self, hits: Hits) -> Columns:
        columns = {name: getattr(self, name)[hits.ids] for name in ("dataset", "label", "sample")}
        return Columns({"slot": hits.ids} | columns)


def test_groups_stand_in_the_order_of_training():
    memory: Any = BruteForce()
    (layer,) = ask_spotlight(memory, ["layer-0"], QuerySetExamples("test", (2,)), ["zebra", "apple"])
    assert layer.groups == (("zebra", 0), ("zebra", 1), ("apple", 0), ("apple", 1))
    scores = np.abs(memory.keys @ QUERIES[2])
    for group, best, total, count in zip(layer.groups, layer.best, layer.sums, layer.counts, strict=True):
        own = scores[memory.members()[group]]
        np.testing.assert_allclose(best, np.sort(own)[::-1], rtol=1e-6)
        assert (total, count) == (pytest.approx(own.sum()), 30)
    assert layer.strongest == layer.groups[int(layer.sums.argmax())]
    assert [hit["score"] for hit in layer.top] == sorted((hit["score"] for hit in layer.top), reverse=True)
    assert len(layer.top) == 5
