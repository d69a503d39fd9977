"""Examples, their figures, and what a prediction attends to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualform.answers import Columns, GroupSums, Hits
from dualform.questions import QuerySetExamples
from dualform_studies.images.datasets import Dataset, digits, permuted
from dualform_studies.images.prediction import (
    LayerSpotlight,
    ask_spotlight,
    draw_distribution,
    draw_sums,
    draw_top_images,
)
from dualform_studies.images.query_figure import Query


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


@pytest.mark.parametrize(
    ("draw", "across", "up", "numbers"),
    [
        (
            draw_distribution,
            "training class; within each, its 59 datapoints of greatest weight from the left,\n"
            "ranks on a logarithmic scale (dots: ranks 1, 10)",
            "attention weight",
            "Figure 4",
        ),
        (draw_sums, "training class", "summed weights", "Figure 5"),
    ],
    ids=["distribution", "sums"],
)
def test_axes_are_labelled_and_figures_of_the_paper_named(
    draw, across, up, numbers, tmp_path: Path, pair, layers, drawn
):
    path = draw(tmp_path / "report" / "figure.png", layers, Query(pair[0], 4, 3), pair, numbers)
    assert path.read_bytes().startswith(b"\x89PNG")
    panels = [axes for axes in drawn[0].get_axes() if axes.get_ylabel()]
    assert all(panel.get_ylabel().startswith(up) for panel in panels)
    assert panels[-1].get_xlabel() == across
    names = [tick.get_text().strip("★● ") for tick in panels[-1].get_xticklabels()]
    assert names == [str(label) for label in range(10)] * 2
    words = " ".join(text.get_text() for axes in drawn[0].get_axes() for text in axes.texts)
    assert f"({numbers} of the paper)" in words
    assert f"digits test image 4, class {pair[0].test.labels[4]}, recognised as 3" in words
    assert "permuted-digits" in words


@pytest.mark.parametrize("draw", [draw_distribution, draw_sums], ids=["distribution", "sums"])
def test_the_querys_classes_are_marked_by_more_than_a_colour(draw, tmp_path: Path, pair, layers, drawn):
    true = int(pair[0].test.labels[4])
    given = (true + 1) % 10
    draw(tmp_path / "figure.png", layers, Query(pair[0], 4, given), pair, "Figure 4")
    panels = [axes for axes in drawn[0].get_axes() if axes.get_ylabel()]
    ticks = panels[-1].get_xticklabels()
    assert [at for at, tick in enumerate(ticks) if tick.get_text() == f"{true} ★"] == [true]
    assert [at for at, tick in enumerate(ticks) if tick.get_text() == f"{given} ●"] == [given, 10 + given]
    assert {tick.get_weight() for tick in ticks if tick.get_text()[-1] in "★●"} == {"bold"}
    framed = [patch for patch in panels[0].patches if patch.get_facecolor()[3] == 0]
    assert sorted(round(patch.get_x()) for patch in framed) == [given, 10 + given]
    explained = [
        text.get_text() for axes in drawn[0].get_axes() if axes.get_legend() for text in axes.get_legend().texts
    ]
    assert explained == ["★ its class", "● the class recognised"]


def test_a_query_that_is_recognised_has_one_mark(tmp_path: Path, pair, layers, drawn):
    true = int(pair[0].test.labels[4])
    draw_sums(tmp_path / "sums.png", layers, Query(pair[0], 4, true), pair, "Figure 5")
    panels = [axes for axes in drawn[0].get_axes() if axes.get_ylabel()]
    marked = [tick.get_text() for tick in panels[-1].get_xticklabels() if not tick.get_text().isdigit()]
    assert marked == [f"{true} ★"]


def test_each_panel_says_what_leads(tmp_path: Path, pair, layers, drawn):
    layers[0].best[7][0] = 2.0
    layers[1].best[13][0] = 2.0
    draw_distribution(tmp_path / "best.png", layers, Query(pair[0], 4, 3), pair, "Figure 4")
    titles = [axes.get_title(loc="left") for axes in drawn[0].get_axes() if axes.get_ylabel()]
    assert titles == [
        "layer-0: the greatest weight goes to digits 7",
        "layer-1: the greatest weight goes to permuted-digits 3",
    ]
    draw_sums(tmp_path / "sums.png", layers, Query(pair[0], 4, 3), pair, "Figure 5")
    titles = [axes.get_title(loc="left") for axes in drawn[-1].get_axes() if axes.get_ylabel()]
    for title, layer in zip(titles, layers, strict=True):
        dataset, label = divmod(int(layer.sums.argmax()), 10)
        assert title == f"{layer.layer}: the greatest sum goes to {pair[dataset].name} {label}"


def test_a_line_is_the_weights_by_rank_and_its_first_is_seen(tmp_path: Path, pair, layers, drawn):
    layers[0].best[0] = np.linspace(9, 1, 500, dtype=np.float32)
    draw_distribution(tmp_path / "best.png", layers, Query(pair[0], 4, 3), pair, "Figure 4")
    panel = next(axes for axes in drawn[0].get_axes() if axes.get_ylabel())
    line, dots = (one for one in panel.get_lines() if one.get_ydata()[0] == 9)
    np.testing.assert_array_equal(dots.get_ydata(), layers[0].best[0][[0, 9, 99]])
    np.testing.assert_allclose(dots.get_xdata(), 0.08 + 0.84 * np.log([1, 10, 100]) / np.log(500))
    ranks = np.exp((np.asarray(line.get_xdata()) - 0.08) / 0.84 * np.log(500)).round().astype(int)
    np.testing.assert_array_equal(line.get_ydata(), layers[0].best[0][ranks - 1])
    assert (ranks[0], ranks[-1]) == (1, 500)
    # The first ten of 500 take more than a third of the width.
    assert dots.get_xdata()[1] - dots.get_xdata()[0] > 0.3


def test_top_images_name_dataset_class_weight_and_step(tmp_path: Path, pair, layers, drawn):
    path = draw_top_images(tmp_path / "top.png", layers, Query(pair[0], 4, 3), pair, "Figure 10")
    assert path.stat().st_size > 1000
    titles = [axes.get_title() for axes in drawn[0].get_axes()]
    assert titles.count("1. digits: 3\nweight 9.500, step 0") == 2
    assert titles.count("3. digits: 3\nweight 7.500, step 2") == 1


def test_all_weights_of_a_figure_have_the_same_decimals(tmp_path: Path, pair, layers, drawn):
    for number, layer in enumerate(layers):
        for hit in layer.top:
            hit["score"] = 347.04 - number
    draw_top_images(tmp_path / "top.png", layers, Query(pair[0], 4, 3), pair, "Figure 10")
    titles = [axes.get_title() for axes in drawn[0].get_axes() if "weight" in axes.get_title()]
    assert {title.split("weight ")[1].split(",")[0] for title in titles} == {"347.0", "346.0"}


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
