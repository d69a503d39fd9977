from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dualform_studies.images.data.datasets import Dataset, digits, permuted
from dualform_studies.images.prediction.figures import (
    draw_accuracies,
    draw_distribution,
    draw_sums,
    draw_top_images,
    draw_weighted_sums,
)
from dualform_studies.images.prediction.spotlight import LayerSpotlight
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
            "ranks on a logarithmic scale (dots: ranks 1 and 10)",
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


def test_accuracies_are_in_percent(tmp_path: Path, drawn):
    accuracy = {"digits": {"a": 0.97, "b": 0.5}, "permuted-digits": {"a": 0.1, "b": 0.96}}
    path = draw_accuracies(tmp_path / "accuracy.png", accuracy, {"a": "after the first", "b": "at the end"})
    assert path.stat().st_size > 1000
    axes = drawn[0].get_axes()[0]
    assert axes.get_ylabel() == "test accuracy (%)"
    assert axes.get_xlabel() == "the network"
    assert [text.get_text() for text in axes.texts] == ["97.0", "50.0", "10.0", "96.0"]
    assert [bar.get_hatch() for bar in axes.patches] == ["", "", "////", "////"]


def test_weighted_sums_are_labelled_as_such(tmp_path: Path, pair, layers, drawn):
    path = draw_weighted_sums(tmp_path / "weighted.png", layers, Query(pair[0], 4, 3), pair)
    assert path.stat().st_size > 1000
    panels = [axes for axes in drawn[0].get_axes() if axes.get_ylabel()]
    assert all(panel.get_ylabel().startswith("weighted sums") for panel in panels)
    heights = [bar.get_height() for bar in panels[0].patches if bar.get_width() == 0.72]
    assert heights == layers[0].sums.tolist()
